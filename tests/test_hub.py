"""Every source of models, and every way in which there is none."""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from vision_attn.cli import main
from vision_attn.compat import download as download_module
from vision_attn.data.preprocess import Preprocess
from vision_attn.errors import ModelError
from vision_attn.hub import load_model
from vision_attn.models import SpatialCNN, TimmModel, ViT, checkpoint, describe
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.types import Model, TokenLayout

CLASSES = ["cat", "dog", "hen"]
PREPROCESS = Preprocess((16, 24), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), fit="squash")


def vit() -> ViT:
    return ViT(image_size=(16, 24), num_classes=3, dim=12, depth=1, heads=3)


def save(path: Path, model: Rebuildable, **changes: Any) -> Path:
    about = {
        "format": 1,
        "network": describe(model),
        "classes": CLASSES,
        "preprocess": asdict(PREPROCESS),
        "version": "0.1.0",
        **changes,
    }
    state = {f"network.{name}": tensor for name, tensor in model.state_dict().items()}
    state["loss.weight"] = torch.ones(3)
    torch.save({"vision_attn": about, "state_dict": state, "epoch": 1}, path)
    return path


@pytest.mark.parametrize(
    ("network", "layout"),
    [
        (vit(), TokenLayout(1, (2, 3), "cls")),
        (SpatialCNN(3, widths=(4, 8)), None),
        (
            TimmModel("test_vit", 3, model_args={"img_size": (16, 32)}),
            TokenLayout(1, (1, 2), "cls"),
        ),
    ],
)
def test_a_checkpoint_is_all_it_takes(
    tmp_path: Path, network: Rebuildable, layout: TokenLayout | None
) -> None:
    preprocess = Preprocess(
        (16, 32 if isinstance(network, TimmModel) else 24), (0.4,) * 3, (0.2,) * 3
    )
    path = save(tmp_path / "best.ckpt", network, preprocess=asdict(preprocess))
    model = load_model(path)
    assert (model.preprocess, model.classes, model.layout) == (preprocess, CLASSES, layout)
    images = torch.randn(2, 3, *preprocess.input_size)
    torch.testing.assert_close(model.network(images), network.eval()(images))
    assert not model.network.training


def test_a_checkpoint_takes_other_weights(tmp_path: Path) -> None:
    other = vit()
    save_file(other.state_dict(), tmp_path / "best.safetensors")
    path = save(tmp_path / "best.ckpt", vit())
    model = load_model(path, weights=tmp_path / "best.safetensors")
    torch.testing.assert_close(model.network.state_dict(), other.state_dict())


def test_a_checkpoint_takes_another_image_size(tmp_path: Path) -> None:
    model = load_model(save(tmp_path / "a.ckpt", vit()), image_size=(32, 40))
    assert model.preprocess.input_size == (32, 40)
    assert model.layout == TokenLayout(1, (4, 5), "cls")
    with pytest.raises(ModelError, match=r"image_size: .* patch size 8, got 33x33"):
        load_model(tmp_path / "a.ckpt", image_size=33)

    fixed = TimmModel("test_vit", 3, model_args={"img_size": 32})
    model = load_model(save(tmp_path / "b.ckpt", fixed), image_size=64)
    assert model.network(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert model.layout == TokenLayout(1, (4, 4), "cls")


def test_timm_by_name() -> None:
    model = load_model("timm:test_vit", pretrained=False)
    preprocess: Any = model.preprocess
    assert preprocess.input_size == (160, 160)
    assert preprocess.interpolation == "bicubic"
    assert model.classes[:2] == ["tench, Tinca tinca", "goldfish, Carassius auratus"]
    assert len(model.classes) == 1000
    assert model.layout == TokenLayout(1, (10, 10), "cls")
    assert type(model.network).__module__.startswith("timm.")


def test_where_the_weights_come_from(tmp_path: Path) -> None:
    saved = save(tmp_path / "best.ckpt", vit())
    random = load_model("timm:test_vit", pretrained=False)
    save_file(random.network.state_dict(), tmp_path / "given.safetensors")
    given = load_model("timm:test_vit", pretrained=False, weights=tmp_path / "given.safetensors")
    own = Model(torch.nn.Identity(), PREPROCESS, CLASSES, None)
    args: dict[str, Any] = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    hugging_face = load_model("hf:vit", pretrained=False, image_size=(32, 48), **args)
    assert random.weights == hugging_face.weights == "random"
    assert load_model("torchvision:squeezenet1_1", pretrained=False).weights == "random"
    assert load_model(saved).weights == load_model(saved, pretrained=False).weights == "trained"
    assert (given.weights, own.weights) == ("trained", "unknown")
    assert random.warning == "Random weights: this model has not been trained"
    assert given.warning == own.warning == ""


@pytest.mark.parametrize(("classes", "weights"), [(7, "random classifier"), (1000, "trained")])
def test_a_classifier_of_other_classes_than_the_weights_is_random(
    classes: int, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vision_attn.hub import libraries

    create = vars(libraries)["create_timm"]  # what timm would download is not what is asked here
    monkeypatch.setattr(
        libraries,
        "create_timm",
        lambda name, pretrained, **args: create(name, pretrained=False, **args),
    )
    model = load_model("timm:test_vit", num_classes=classes)
    assert model.weights == weights
    assert model.warning.startswith("Random classifier: ") == (classes == 7)
    assert load_model("timm:test_vit", num_classes=0).weights == "trained"  # there is none


def test_a_pretrained_network_without_a_classifier_has_a_random_one(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "intermediate_size": 8}
    config = transformers.ViTConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    transformers.ViTModel(config).save_pretrained(tmp_path / "trunk")
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "whole")
    assert load_model(f"hf:{tmp_path / 'trunk'}").weights == "random classifier"
    assert load_model(f"hf:{tmp_path / 'whole'}").weights == "trained"


def test_timm_takes_a_size_and_arguments_of_its_own() -> None:
    model = load_model("timm:test_vit", pretrained=False, image_size=(32, 64), num_classes=3)
    assert model.classes == ["class 0", "class 1", "class 2"]
    assert model.network(torch.zeros(1, 3, *model.preprocess.input_size)).shape == (1, 3)
    assert model.layout == TokenLayout(1, (2, 4), "cls")
    assert load_model("timm:test_resnet", pretrained=False, image_size=96).layout is None
    assert load_model("timm:test_vit", pretrained=False, img_size=64).preprocess.input_size == (
        64,
        64,
    )
    assert load_model("timm:test_vit", pretrained=False, num_classes=0).classes == []


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_timm_weights_come_from_a_file(tmp_path: Path, suffix: str) -> None:
    theirs = timm.create_model("test_vit")
    path = tmp_path / f"a.{suffix}"
    if suffix == "pth":
        torch.save(theirs.state_dict(), path)
    else:
        save_file(theirs.state_dict(), path)
    model = load_model("timm:test_vit", weights=path)
    torch.testing.assert_close(model.network.state_dict(), theirs.state_dict())
    larger = load_model("timm:test_vit", weights=path, image_size=320)
    assert larger.network.pos_embed.shape[1] == 1 + 20 * 20
    with pytest.raises(ModelError, match=r"a\.\w+: .* 2 of another shape .*number of classes"):
        load_model("timm:test_vit", weights=path, num_classes=3)


def test_our_checkpoint_gives_its_weights_to_timm(tmp_path: Path) -> None:
    trained = TimmModel("test_vit", 3)
    model = load_model("timm:test_vit", weights=save(tmp_path / "a.ckpt", trained))
    torch.testing.assert_close(model.network.state_dict(), trained.network.state_dict())
    assert model.classes == ["class 0", "class 1", "class 2"]


def test_torchvision_by_name(tmp_path: Path) -> None:
    model = load_model("torchvision:resnet18", pretrained=False)
    assert model.classes[:2] == ["tench", "goldfish"]
    assert model.preprocess.input_size == (224, 224)
    preprocess: Any = model.preprocess
    assert preprocess.crop_pct == 224 / 256
    assert model.layout is None
    theirs = torchvision.models.vit_b_16(num_classes=5)
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    model = load_model(
        "torchvision:vit_b_16", weights=tmp_path / "a.pth", image_size=64, num_classes=5
    )
    assert model.layout == TokenLayout(1, (4, 4), "cls")
    assert model.network(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    with pytest.raises(ModelError, match="takes square images only"):
        load_model("torchvision:vit_b_16", pretrained=False, image_size=(64, 96))


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_torchvision_vit_is_built_for_the_size_of_its_photos(
    monkeypatch: pytest.MonkeyPatch, pretrained: bool
) -> None:
    """vit_h_14 itself, of 518 pixels, with one narrow block."""
    from torchvision.models import _api, vision_transformer

    def narrow(
        patch_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        image_size: int = 224,
        **_: Any,
    ) -> Any:
        return torchvision.models.VisionTransformer(image_size, patch_size, 1, 1, 4, 4)

    theirs = narrow(14, 32, 16, 1280, 5120, image_size=518)
    torch.nn.init.normal_(theirs.heads.head.weight)
    monkeypatch.setattr(vision_transformer, "_vision_transformer", narrow)
    monkeypatch.setattr(_api.WeightsEnum, "get_state_dict", lambda *_, **__: theirs.state_dict())
    model = load_model("torchvision:vit_h_14", pretrained=pretrained)
    assert model.preprocess.input_size == (518, 518)
    assert model.layout == TokenLayout(1, (37, 37), "cls")
    photo = torch.randn(1, 3, 518, 518)
    same = torch.equal(model.network(photo), theirs.eval()(photo))
    assert same == pretrained
    smaller = load_model("torchvision:vit_h_14", pretrained=pretrained, image_size=28)
    assert smaller.network(torch.zeros(1, 3, 28, 28)).shape == (1, 1000)


def test_hugging_face_by_kind_of_network() -> None:
    pytest.importorskip("transformers")
    args: dict[str, Any] = {
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_labels": 3,
    }
    model = load_model("hf:vit", pretrained=False, image_size=(32, 48), **args)
    assert model.preprocess.input_size == (32, 48)
    assert model.classes == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert model.layout == TokenLayout(1, (2, 3), "cls")
    assert model.network(torch.zeros(2, 3, 32, 48)).shape == (2, 3)


def test_hugging_face_from_a_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, id2label={0: "cat", 1: "dog"}
    )
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    images = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(model.network(images), theirs(images).logits)
    assert model.classes == ["cat", "dog"]
    assert model.preprocess == Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3, fit="squash")


def of_hugging_face(folder: Path, options: dict[str, Any] | None = None) -> str:
    """A tiny network in a folder, with the options of its image processor, if it has one."""
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "intermediate_size": 8}
    config = transformers.ViTConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    if options is not None:
        options = {"image_processor_type": "ViTImageProcessor", "size": 16} | options
        (folder / "preprocessor_config.json").write_text(json.dumps(options))
    return f"hf:{folder}"


MEANS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}


@pytest.mark.parametrize(
    ("options", "mean", "std"),
    [
        (None, (0.5,) * 3, (0.5,) * 3),
        ({}, (0.5,) * 3, (0.5,) * 3),
        (MEANS, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        ({"image_mean": 0.1, "image_std": 0.2}, (0.1,) * 3, (0.2,) * 3),
        (MEANS | {"do_normalize": False}, (0.0,) * 3, (1.0,) * 3),
        (MEANS | {"do_normalize": None}, (0.0,) * 3, (1.0,) * 3),
        ({"image_mean": None}, (0.0,) * 3, (1.0,) * 3),
        (MEANS | {"image_std": None}, (0.1, 0.2, 0.3), (1.0,) * 3),
    ],
)
def test_hugging_face_normalizes_as_the_image_processor_does(
    tmp_path: Path,
    options: dict[str, list[float] | float | None] | None,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> None:
    preprocess = load_model(of_hugging_face(tmp_path, options)).preprocess
    assert preprocess == Preprocess((16, 16), mean, std, fit="squash")


def test_an_image_processor_without_do_normalize_subtracts_nothing(tmp_path: Path) -> None:
    """MobileViT's has means all the same."""
    kind = {"image_processor_type": "MobileViTImageProcessor", "do_flip_channel_order": False}
    model = load_model(of_hugging_face(tmp_path, kind | {"do_center_crop": False}))
    assert (model.preprocess.mean, model.preprocess.std) == ((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_processor_type": "MobileViTImageProcessor"},
            "expected a network of RGB images, got one of BGR .*do_flip_channel_order is true",
        ),
        (
            {"size": {"longest_edge": 32}},
            r"expected size to be a number, .* got \{'longest_edge': 32\}: in a copy, set it",
        ),
        (
            {"image_processor_type": "DeiTImageProcessor", "crop_size": {"longest_edge": 32}},
            r"expected crop_size to be a number, .* got \{'longest_edge': 32\}",
        ),
    ],
)
def test_an_image_processor_that_cannot_be_followed_is_one_line(
    tmp_path: Path, options: dict[str, str | dict[str, int] | Collection[str]], message: str
) -> None:
    with pytest.raises(ModelError, match=f"hf:{tmp_path}: {message}") as caught:
        load_model(of_hugging_face(tmp_path, options))
    assert "\n" not in str(caught.value)


def test_a_network_of_timm_inside_hugging_faces_takes_the_photos_of_timm(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    about = timm.create_model("test_vit").pretrained_cfg | {"mean": (0.1, 0.2, 0.3)}
    config = transformers.TimmWrapperConfig(architecture="test_vit", pretrained_cfg=about)
    transformers.TimmWrapperForImageClassification(config).save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    assert model.preprocess == Preprocess(
        (160, 160), (0.1, 0.2, 0.3), (0.5,) * 3, crop_pct=0.95, interpolation="bicubic"
    )
    assert model.network(torch.zeros(1, 3, 160, 160)).shape == (1, 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("outputs/none/best.ckpt", "outputs/none/best.ckpt: no such file; expected a checkpoint"),
        ("vit_small_patch16_224", "the network of that name is timm:vit_small_patch16_224"),
        ("senet_imagenette", "the network of that name is vision_attn:senet_imagenette"),
        ("senet_imagenett", r"no such file; did you mean vision_attn:senet_imagenette\?"),
        ("tim:vit_small_patch16_224", "no source of models named 'tim'; did you mean timm?"),
        ("timm:", "expected a checkpoint file, vision_attn:NAME"),
        ("timm:vit_smal_patch16_224", "no network named .*; did you mean vit_small_patch16_224"),
        ("torchvision:resnet19", "no classifier 'resnet19'; did you mean resnet"),
        ("torchvision:fcn_resnet50", "no classifier 'fcn_resnet50'"),
        ("", "expected a checkpoint file"),
    ],
)
def test_an_unknown_model_is_one_line_with_the_nearest_names(spec: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_model(spec, pretrained=False)
    assert "\n" not in str(caught.value)


def test_a_folder_says_which_checkpoints_it_holds(tmp_path: Path) -> None:
    path = save(tmp_path / "best.ckpt", vit())
    with pytest.raises(ModelError, match=f"a folder; .* it holds {path}"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "made by vision-attn 0.1.0, in the format of another version"),
        ({"classes": ["cat"]}, "expected 3 class names, one for each output, got 1"),
        ({"preprocess": {"input_size": (8, 8)}}, "cannot be rebuilt: .*missing"),
        ({"network": {"class_path": "os.system", "init_args": {}}}, "refused to build 'os.system'"),
        ({"network": None}, "its class is not one of vision_attn, so only your code can build it"),
        ({"network": "vision_attn.models.ViT"}, "expected a description"),
    ],
)
def test_a_checkpoint_that_cannot_be_rebuilt_is_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = save(tmp_path / "a.ckpt", vit(), **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_checkpoints_of_another_kind_are_one_line(tmp_path: Path) -> None:
    network = vit()
    lightning = tmp_path / "lightning.ckpt"
    torch.save({"state_dict": network.state_dict(), "pytorch-lightning_version": "2.6"}, lightning)
    save_file(network.state_dict(), tmp_path / "best.safetensors")
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    whole = save(tmp_path / "cut.ckpt", network)
    whole.write_bytes(whole.read_bytes()[:5000])
    for name, message in [
        ("lightning.ckpt", "not a checkpoint of vision-attn"),
        ("best.safetensors", "take only the weights from the file"),
        ("text.ckpt", "not a checkpoint or weights file"),
        ("cut.ckpt", "cut short or damaged"),
    ]:
        with pytest.raises(ModelError, match=message) as caught:
            load_model(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(ModelError, match="a checkpoint takes no model arguments, got depth"):
        load_model(save(tmp_path / "a.ckpt", network), depth=3)


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("timm:test_vit", "give its weights with --weights FILE"),
        ("torchvision:resnet18", "give its weights with --weights FILE"),
        ("hf:google/vit", "name a folder that holds it"),
    ],
)
def test_offline_a_download_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spec: str, advice: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network here")

    monkeypatch.setattr(download_module, "_reachable", lambda url: False)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=f"{spec}: could not be downloaded .* {advice}"):
        load_model(spec)


def named(*classes: str) -> Model:
    return Model(torch.nn.Identity(), PREPROCESS, list(classes), None)


def test_a_class_is_found_by_index_name_or_synonym() -> None:
    model = named("tabby, tabby cat", "golden retriever", "crane", "crane, hoist", "7")
    assert model.class_index(1) == model.class_index("1") == 1
    assert model.class_index("Golden Retriever") == 1
    assert model.class_index("tabby cat") == model.class_index("tabby, tabby cat") == 0
    assert model.class_index("7") == 4


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("golden retreiver", "no class named 'golden retreiver'; did you mean golden retriever?"),
        ("xyz", "no class named 'xyz': there are golden retriever; crane; crane, hoist$"),
        ("triever", "no class named 'triever'; did you mean golden retriever"),
        (
            "crane",
            r"2 classes are named 'crane': give the index of 1 \(crane\), 2 \(crane, hoist\)",
        ),
        (3, "no class 3: expected 0 to 2, or a name"),
        ("-1", "no class -1: expected 0 to 2"),
    ],
)
def test_an_unknown_class_is_one_line_with_the_nearest_names(
    wanted: str | int, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        named("golden retriever", "crane", "crane, hoist").class_index(wanted)


@pytest.mark.parametrize("size", [100_000, (16, 8193), (8193, 16)])
def test_an_input_that_no_memory_holds_is_refused_before_anything_is_built(
    size: int | tuple[int, int], tmp_path: Path
) -> None:
    message = r"image_size: expected a side of at most 8192 pixels, got \d+x\d+"
    for spec in ("timm:test_vit", str(save(tmp_path / "a.ckpt", vit()))):
        with pytest.raises(ModelError, match=message):
            load_model(spec, pretrained=False, image_size=size)


def test_explain_opens_a_checkpoint_once(
    models: Callable[[str], str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    read = checkpoint.read_file
    monkeypatch.setattr(
        checkpoint, "read_file", lambda path: opened.append(str(path)) or read(path)
    )
    words = [models("vit"), photos, "--method", "EdgeMap", "--limit", 1, "-o", tmp_path / "out"]
    assert main(["explain", *map(str, words)]) == 0
    assert opened == [str(models("vit"))]
