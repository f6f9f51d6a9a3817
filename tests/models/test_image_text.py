"""Classes in words: logits against the libraries' own, and every explainer on a tiny CLIP."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch.nn import functional as F

import vision_attn
from vision_attn.cli import main
from vision_attn.errors import ModelError
from vision_attn.hub import load_model
from vision_attn.methods import LibraGradient, Rollout, fitting_methods
from vision_attn.models.image_text import prompts_of
from vision_attn.runs.texts import token_attribution

sys.path.insert(0, str(Path(__file__).parent))
import texts

IMAGES = torch.randn(5, 3, 48, 48)
CLASSES = ["a photo of a dog", "the cat", "small tree ."]
PHOTO = np.random.default_rng(0).integers(0, 255, (60, 50, 3), dtype=np.uint8)


@pytest.fixture(scope="module", params=["clip", "siglip"])
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, Any, bool | str]:
    """A folder, the library's own network, its tokenizer and the tokenizer's padding."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = getattr(texts, request.param)(folder)
    clip = request.param == "clip"
    return folder, network, texts.tokenizer(clip), True if clip else "max_length"


def own_inputs(saved: tuple[Any, Any, Any, bool | str], words: list[str]) -> Any:
    _, _, tokenizer, padding = saved
    return tokenizer(words, padding=padding, truncation=True, max_length=11, return_tensors="pt")


def test_logits_are_those_of_transformers(saved: tuple[Any, Any, Any, bool | str]) -> None:
    folder, network, _, padding = saved
    model = load_model(f"hf:{folder}", classes=CLASSES)
    with torch.no_grad():
        expected = network(pixel_values=IMAGES, **own_inputs(saved, CLASSES)).logits_per_image
    assert expected.std() > 0.05
    torch.testing.assert_close(model.network(IMAGES), expected, atol=1e-5, rtol=1e-5)
    assert (model.classes, model.weights) == (CLASSES, "trained")
    assert model.calibration.activation == ("softmax" if padding is True else "sigmoid")
    assert model.preprocess.input_size == (48, 48)
    assert model.preprocess.mean == (0.5, 0.4, 0.3)
    assert "class_embeddings" in model.network.state_dict()  # other classes, another network


def test_several_texts_are_averaged_as_embeddings_of_length_one(
    saved: tuple[Any, Any, Any, bool | str],
) -> None:
    folder, network, *_ = saved
    templates = ["a photo of the {}", "{} ."]
    model = load_model(
        f"hf:{folder}", classes={"dog": ["small dog", "dog"], "cat": "cat"}, templates=templates
    )
    words = [
        *("a photo of the small dog", "small dog .", "a photo of the dog", "dog ."),
        *("a photo of the cat", "cat ."),
    ]
    assert [text for each in model.network.prompts.values() for text in each] == words
    with torch.no_grad():
        found = network(pixel_values=IMAGES, **own_inputs(saved, words))
        each = found.text_embeds
        means = F.normalize(torch.stack([each[:4].mean(0), each[4:].mean(0)]), dim=-1)
        bias = getattr(network, "logit_bias", torch.zeros(1))
        expected = network.logit_scale.exp() * found.image_embeds @ means.T + bias
    torch.testing.assert_close(model.network(IMAGES), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["metaclip_2", "altclip", "chinese_clip"])
def test_other_kinds_of_transformers(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = getattr(texts, kind)(tmp_path)
    model = load_model(f"hf:{tmp_path}", classes=CLASSES)
    words = texts.tokenizer()(CLASSES, padding=True, return_tensors="pt")
    inputs = {name: words[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = network(pixel_values=IMAGES, **inputs).logits_per_image
    assert expected.std() > 0.05
    torch.testing.assert_close(model.network(IMAGES), expected, atol=1e-5, rtol=1e-5)
    assert (model.classes, model.calibration.activation) == (CLASSES, "softmax")
    found = token_attribution(model, PHOTO, 1)
    assert found.tokens == ["<start>", "the", "cat", "<end>"]
    assert sum(found.values) + found.rest == pytest.approx(found.logit, abs=1e-5)
    maps = LibraGradient(check=True)(model, IMAGES, 1)
    assert maps.completeness_gap is not None
    assert maps.completeness_gap.max() < 1e-5
    long = load_model(f"hf:{tmp_path}", classes=["dog " * 40, "cat"])  # more than it has places
    assert long.network(IMAGES).isfinite().all()


def test_siglip_2_of_any_proportions(tmp_path: Path) -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import convert_image_to_patches

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = texts.naflex(tmp_path)
    model = load_model(f"hf:{tmp_path}", classes=CLASSES, image_size=(32, 64))
    images = torch.randn(3, 3, 32, 64)
    patches = np.stack([convert_image_to_patches(image.numpy(), 16) for image in images])
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        CLASSES, padding="max_length", max_length=11, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = network(
            pixel_values=torch.from_numpy(patches),
            pixel_attention_mask=torch.ones(3, 8),
            spatial_shapes=torch.tensor([[2, 4]] * 3),
            **words,
        ).logits_per_image
    torch.testing.assert_close(model.network(images), expected, atol=1e-5, rtol=1e-5)
    assert Rollout()(model, images).values.shape == (3, 2, 4)
    gap = LibraGradient(check=True)(model, images, 1).completeness_gap
    assert gap is not None
    assert gap.max() < 1e-5


def test_open_clip() -> None:
    open_clip = pytest.importorskip("open_clip")
    args: dict[str, Any] = {"embed_dim": 7, "vision_cfg": {"image_size": 32, "layers": 2, "width": 64,
            "head_width": 32, "patch_size": 16}, "text_cfg": {"context_length": 12,
            "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}}  # fmt: skip
    torch.manual_seed(0)
    model = load_model("open_clip:ViT-B-32", pretrained=False, classes=CLASSES, **args)
    own = model.network.texts.model
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        tokens = open_clip.get_tokenizer("ViT-B-32", context_length=12)(CLASSES)
        expected, _ = own.get_logits(images, tokens)
    torch.testing.assert_close(model.network(images), expected, atol=1e-5, rtol=1e-5)
    assert (model.preprocess.input_size, model.weights) == ((32, 32), "random")
    maps = Rollout()(model, images)
    assert maps.values.shape == (3, 2, 2)
    found = token_attribution(model, PHOTO, 1)
    assert found.tokens == ["<start_of_text>", "the", "cat", "<end_of_text>"]
    with pytest.raises(
        ModelError, match="open_clip has no network 'ViT-B-33'; did you mean ViT-B-32"
    ):
        load_model("open_clip:ViT-B-33", classes=CLASSES)
    with pytest.raises(
        ModelError, match="open_clip:ViT-B-32 has no weights 'laion3b'; it has openai"
    ):
        load_model("open_clip:ViT-B-32:laion3b", classes=CLASSES)
    with pytest.raises(ModelError, match="open_clip:ViT-B-32 compares images with texts: give"):
        load_model("open_clip:ViT-B-32")


PERTURBING = {"Occlusion", "IntegratedGradients", "LIME", "MaskedRegression"}


def test_every_explainer_runs_and_rollout_has_the_grid_of_the_patches(
    saved: tuple[Any, Any, Any, bool | str],
) -> None:
    model = load_model(f"hf:{saved[0]}", classes=CLASSES)
    chosen = fitting_methods(model)
    names = {type(method).__name__ for method in chosen}
    assert names >= {"Rollout", "Relevance", "LeGrad", "LibraGradient", "GradCAM", *PERTURBING}
    for method in chosen:
        maps = method(model, IMAGES[:2], 1)
        assert maps.values.isfinite().all()
        if isinstance(method, Rollout):
            assert maps.values.shape == (2, 3, 3)
            assert (maps.values > 0).all()
    gap = LibraGradient(check=True)(model, IMAGES[:2], 1).completeness_gap
    assert gap is not None
    assert gap.max() < 1e-5
    found = model.explain(PHOTO, "Rollout", target="the cat")
    assert found.maps[0].values.shape == (3, 3)


def test_the_network_is_of_images_alone(saved: tuple[Any, Any, Any, bool | str]) -> None:
    """So that layers, weights and attention are those of the image tower."""
    model = load_model(f"hf:{saved[0]}", classes=CLASSES)
    assert not [name for name, _ in model.network.named_modules() if "text" in name]
    calls = vision_attn.attention_weights(model, IMAGES)
    assert {tuple(weights.shape[2:]) for weights in calls.values()} <= {(10, 10), (9, 9), (1, 9)}


def norm_by_hand(norm: Any, x: Any) -> Any:
    spread = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt().detach()
    return (x - x.mean(-1, keepdim=True)) / spread * norm.weight.detach() + norm.bias


def held(function: Any, x: Any) -> Any:
    return x * (function(x) / x).detach()


def texts_by_hand(model: Any, inputs: Any, clip: bool) -> tuple[Any, Any, list[Any]]:
    """A text tower by its formulas: what normalises or gates is detached.

    Returns the embeddings (n d), the tokens' vectors and all constants that are added.
    """
    tower, ids = model.text_model, inputs["ids"]
    model.requires_grad_(False)
    constants = [one for name, one in tower.named_parameters() if name.endswith("bias")]
    positions = tower.embeddings.position_embedding.weight[: ids.shape[1]]
    constants = [one.requires_grad_() for one in [*constants, positions]]
    leaf = tower.embeddings.token_embedding(ids).detach().requires_grad_()
    x = leaf + positions
    for layer in tower.encoder.layers:
        h, own = norm_by_hand(layer.layer_norm1, x), layer.self_attn
        q, k, v = (
            proj(h).unflatten(-1, (2, 5)).transpose(1, 2)
            for proj in (own.q_proj, own.k_proj, own.v_proj)
        )
        scores = q @ k.mT / 5**0.5
        if clip:
            seen = torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
            seen = seen & inputs["attention_mask"].bool()[:, None, None]
            scores = scores.masked_fill(~seen, -1e30)
        context = (scores.softmax(-1).detach() @ v).transpose(1, 2).flatten(2)
        x = x + own.out_proj(context)
        h = layer.mlp.fc1(norm_by_hand(layer.layer_norm2, x))
        x = x + layer.mlp.fc2(held(layer.mlp.activation_fn, h))
    x = norm_by_hand(tower.final_layer_norm, x)
    rows = torch.arange(len(ids))
    pooled = x[rows, (ids == 3).int().argmax(1)] if clip else x[:, -1]
    return (model.text_projection if clip else tower.head)(pooled), leaf, constants


def test_shares_of_tokens_and_of_constants_are_those_of_a_tower_written_by_hand(
    saved: tuple[Any, Any, Any, bool | str],
) -> None:
    folder, _, _, padding = saved
    classes = {"dog": ["a photo of a dog", "small dog"], "cat": "cat"}
    model = load_model(f"hf:{folder}", classes=classes)
    network, tower = model.network.double(), model.network.texts
    tower.model.double()
    found = token_attribution(model, PHOTO, "dog")
    image = model.preprocess(PHOTO_IMAGE)[None].double()
    with torch.no_grad():
        assert found.logit == pytest.approx(float(network(image)[0, 0]), abs=1e-6)
        features = F.normalize(network.image(image), dim=-1)[0]
    inputs = tower.tokenize(classes["dog"])
    each, leaf, constants = texts_by_hand(tower.model, inputs, clip=padding is True)
    mean = (each / each.norm(dim=-1, keepdim=True).detach()).mean(0)
    score = network.scale * features @ (mean / mean.norm().detach()) + network.bias
    assert float(score.detach()) == pytest.approx(found.logit, abs=1e-6)
    of_tokens, *of_constants = torch.autograd.grad(score, [leaf, *constants], allow_unused=True)
    shares = (leaf.detach() * of_tokens).sum(-1)
    real = inputs["ids"] != 0
    expected = [
        [*row[kept].tolist(), *([float(row[~kept].sum())] if padding is not True else [])]
        for row, kept in zip(shares, real, strict=True)
    ]
    assert found.values == pytest.approx([value for row in expected for value in row], abs=1e-6)
    rest = sum(
        float((one.detach() * gradient).sum())
        for one, gradient in zip(constants, of_constants, strict=True)
        if gradient is not None  # the keys' biases, as weights are held
    )
    assert found.rest == pytest.approx(rest + float(network.bias), abs=1e-6)
    assert abs(rest) > 1e-3


PHOTO_IMAGE = Image.fromarray(PHOTO)


def test_a_network_in_train_mode_stays_as_it_was(saved: tuple[Any, Any, Any, bool | str]) -> None:
    model = load_model(f"hf:{saved[0]}", classes=CLASSES)
    expected = token_attribution(model, PHOTO, 1)
    network, own = model.network.train(), model.network.texts.model.train()
    assert token_attribution(model, PHOTO, 1) == expected
    assert all(module.training for each in (network, own) for module in each.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in own.parameters())
    assert not [module for module in own.modules() if module._forward_hooks]


def test_words_are_named_and_drawn(saved: tuple[Any, Any, Any, bool | str]) -> None:
    model = load_model(f"hf:{saved[0]}", classes=CLASSES)
    found = token_attribution(model, PHOTO)
    logits = model.network(model.preprocess(PHOTO_IMAGE)[None])[0]
    assert found.class_name == CLASSES[int(logits.argmax())]
    found = token_attribution(model, PHOTO, "a photo of a dog")
    words = [token for token in found.tokens if token not in ("<start>", "<end>", "padding")]
    assert words == ["a", "photo", "of", "a", "dog"]
    lines = str(found).splitlines()
    assert lines[0].startswith(f"a photo of a dog: logit {found.logit:.2f} = tokens ")
    assert len(lines) == 1 + len(found.tokens)
    other = load_model("timm:test_vit", pretrained=False)
    with pytest.raises(ValueError, match="timm:test_vit compares images with no texts: expected"):
        token_attribution(other, PHOTO)


@pytest.mark.parametrize(
    ("classes", "templates", "message"),
    [
        ("a dog", None, "classes: expected a list of texts, got 'a dog'"),
        ([], None, "classes: expected one or more, each once"),
        (["a dog", "a dog"], None, "classes: expected one or more, each once, got"),
        (["a dog", ""], None, "classes: expected texts, got ''"),
        ({"dog": []}, None, "classes: expected texts, got 'dog'"),
        (["dog"], ["a photo"], "templates: expected {} where the class goes, got 'a photo'"),
        (["dog"], "a {}", "templates: expected a list of texts with {}, got 'a {}'"),
    ],
)
def test_classes_that_are_none(
    classes: str | dict[str, list[Any]] | list[str], templates: str | None, message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        prompts_of(classes, templates)
    assert str(caught.value).startswith(message)


def test_what_is_missing_is_said_in_one_line(
    saved: tuple[Any, Any, Any, bool | str], tmp_path: Path
) -> None:
    folder, *_ = saved
    options: Any
    for spec, options, message in [
        (f"hf:{folder}", {}, "compares images with texts: give the classes in words, classes="),
        (f"hf:{folder}", {"templates": ["a {}"]}, "templates: expected classes beside them"),
        ("timm:test_vit", {"classes": CLASSES}, "does not compare images with texts, and takes no"),
        ("hf:vit", {"classes": CLASSES}, "hf:vit: a kind of network has no tokenizer for the cl"),
        ("hf:someone/clip", {"classes": CLASSES}, "name a folder that holds it"),
    ]:
        with pytest.raises(ModelError, match=message) as caught:
            load_model(spec, **options)
        assert "\n" not in str(caught.value)
    for file in folder.iterdir():
        if not file.name.startswith("token"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(
        ModelError, match=r"no tokenizer can be read there: save one to that folder"
    ):
        load_model(f"hf:{tmp_path}", classes=CLASSES)


def test_the_command_line_takes_classes_and_a_file_of_them(
    saved: tuple[Any, Any, Any, bool | str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    (tmp_path / "classes.txt").write_text("dog\n\ncat\n")
    rest = ["--device", "cpu", "--method", "GradCAM", "-o", str(tmp_path / "out")]
    words = ["explain", f"hf:{saved[0]}", str(tmp_path / "photo.png"), *rest]
    template = ["--templates", "a photo of a {}"]
    target = ["--target", "cat"]
    assert main([*words, *target, "--classes", str(tmp_path / "classes.txt"), *template]) == 0
    assert '"target":"cat"' in (tmp_path / "out" / "results.jsonl").read_text()
    assert main([*words, "--target", "the cat", "--classes", "small dog", "the cat"]) == 0
    assert '"target":"the cat"' in (tmp_path / "out" / "results.jsonl").read_text()
    assert main(words) == 2
    assert "give the classes in words" in capsys.readouterr().err
