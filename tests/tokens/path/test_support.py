"""What cannot be explained: each its own clear error, in one line on the command line too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.layers.lambda_layer import LambdaLayer
from torch import nn
from torch.nn import functional as F

from vision_attn.cli import main
from vision_attn.methods import AttentionGradCAM, GradCAM, QueryKey, Relevance, Rollout
from vision_attn.methods.attention_explainer import AttentionExplainer
from vision_attn.tokens import record_attention
from vision_attn.types import TokenLayout

IMAGES = torch.randn(2, 3, 32, 48)
GRID = TokenLayout(0, (4, 6), "mean")


class Patches(nn.Module):
    """A user's network around one attention over 24 patches of width 16."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 16, 8, 8)
        self.mix = nn.Linear(16, 48)
        self.attend = attend
        self.head = nn.Linear(16, 5)

    def layout(self, image_size: Any) -> TokenLayout:
        return GRID

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).mT
        x = x + self.attend(*self.mix(x).unsqueeze(1).chunk(3, -1)).squeeze(1)
        return self.head(x.mean(1))


def plain(q: Any, k: Any, v: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def over_channels(q: Any, k: Any, v: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q.mT, k.mT, v.mT).mT


def every_second(q: Any, k: Any, v: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k[:, :, ::2], v[:, :, ::2])


def averaged(q: Any, k: Any, v: Any) -> torch.Tensor:
    k, v = (x.unflatten(2, (12, 2)).mean(3) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def windowed(q: Any, k: Any, v: Any) -> torch.Tensor:
    cut = (x.unflatten(2, (3, 8)).flatten(0, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*cut).view_as(v)


def linear(q: Any, k: Any, v: Any) -> Any:
    return q.relu() @ (k.relu().mT @ v)


@pytest.mark.parametrize("attend", [every_second, averaged, windowed])
def test_keys_and_windows_of_any_kind_are_found(attend: Callable[..., Any]) -> None:
    network = Patches(attend).double()
    network.mix.weight.data *= 9
    images = IMAGES.double()
    q, k, _ = network.mix(network.cut(images).flatten(2).mT).unsqueeze(1).chunk(3, -1)
    A = attend(q, k, torch.eye(24).double().expand(2, 1, 24, 24))[:, 0]  # context is A of one-hot v
    true = torch.full((2, 1, 24), 1 / 24).double() @ (torch.eye(24).double() + A) / 2
    found = Rollout()(network, images).values
    torch.testing.assert_close(found, true[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (over_channels, r"are not one token each|are mixtures of the tokens"),
        (
            linear,
            r"no attention was found: no matrix product of values with weights that sum to 1",
        ),
    ],
)
def test_attention_that_is_not_from_token_to_token(
    attend: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Rollout()(Patches(attend), IMAGES)


class Lambdas(nn.Module):
    """A softmax over places weighs values, and the sums are multiplied by each place's query."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, 24, 8, 8), nn.Linear(24, 5)
        self.mix = LambdaLayer(24, num_heads=4, dim_head=16, r=3)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.embed(images)
        return self.head((x + self.mix(x)).mean((2, 3)))


def test_contexts_of_no_token_that_each_token_multiplies() -> None:
    with pytest.raises(ValueError, match=r"queries of .*\(mix\) are no tokens, .*linear attention"):
        Rollout()(Lambdas().eval(), IMAGES)


class StateSpace(nn.Module):
    """States are weighted means of places, and each place multiplies all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, 24, 8, 8), nn.Linear(24, 5)
        self.project, self.mix = nn.Conv2d(24, 27, 3, padding=1), nn.Linear(24, 24)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.embed(images)
        scale, read, score = self.project(x).flatten(2).chunk(3, 1)
        states = x.flatten(2) @ (score.softmax(-1) * scale).mT
        mixed = self.mix(states.mT).mT @ read
        return self.head((x + mixed.view_as(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("side", "message"),
    [
        (16, r"outputs of .* are 9 contexts, .* linear attention, or a state space"),
        (32, r"queries of .* are no tokens, .* linear attention, or attention over channels"),
    ],
)
def test_states_that_each_token_multiplies(side: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rollout()(StateSpace().eval(), torch.randn(1, 3, side, side))


class Narrowed(nn.Module):
    """A convolution leaves a quarter of the tokens, to which others of the image are added."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 24, 8, 8), nn.Conv2d(3, 24, 16, 16)
        self.narrow, self.head = nn.Conv2d(24, 24, 2, 2), nn.Linear(24, 5)
        self.first, self.last = (nn.MultiheadAttention(24, 2, batch_first=True) for _ in range(2))

    def forward(self, images: torch.Tensor) -> Any:
        x = self.fine(images)
        x = self.narrow(attended(self.first, x)) + self.coarse(images)
        return self.head(attended(self.last, x).mean((2, 3)))


def attended(attention: nn.MultiheadAttention, x: Any, added: bool = True) -> Any:
    tokens = x.flatten(2).mT
    out = attention(tokens, tokens, tokens)[0]
    return (tokens + out if added else out).mT.unflatten(2, x.shape[2:])


def test_the_last_calls_alone_make_no_map_of_one_token() -> None:
    with pytest.warns(UserWarning, match="the last 1 of 2 attention calls alone"):
        found = Rollout()(Narrowed().eval(), torch.randn(1, 3, 16, 32))
    assert found.values.shape == (1, 1, 2)
    with pytest.raises(ValueError, match="mixed with something that went through no attention"):
        Rollout()(Narrowed().eval(), torch.randn(1, 3, 16, 16))


class Mixed(nn.Module):
    """A convolution between two attention calls; what is added to the first one's outputs."""

    def __init__(self, added: str) -> None:
        super().__init__()
        self.added, self.cut = added, nn.Conv2d(3, 24, 8, 8)
        self.between, self.head = nn.Conv2d(24, 24, 3, padding=1), nn.Linear(24, 5)
        self.first, self.last = (nn.MultiheadAttention(24, 2, batch_first=True) for _ in range(2))
        self.shortcut = nn.Conv2d(24, 24, 3, padding=1)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images)
        out = attended(self.first, x, self.added == "its tokens")
        x = out + self.shortcut(x) if self.added == "a shortcut computed later" else out
        return self.head(attended(self.last, self.between(x)).mean((2, 3)))


def test_tokens_that_come_through_earlier_attention_alone_begin_no_map() -> None:
    for added in ("its tokens", "a shortcut computed later"):
        with pytest.warns(UserWarning, match="the last 1 of 2 attention calls alone"):
            Rollout()(Mixed(added).eval(), IMAGES)
    with pytest.raises(
        ValueError, match=r"attention call 1 \(last\) are mixtures .* a convolution"
    ):
        Rollout()(Mixed("nothing").eval(), IMAGES)


def test_a_layout_that_does_not_fit_the_calls() -> None:
    Rollout()(Patches(plain), IMAGES)
    with pytest.raises(
        ValueError, match=r"is 24 x 24, but the layout has 48 tokens .* grid of 6x8.*give a layout="
    ):
        Rollout()(Patches(plain), IMAGES, layout=TokenLayout(0, (6, 8), "mean"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet18", "no attention was found"),
        ("xcit_nano_12_p16_224", "attention over channels"),
        ("efficientvit_b0", "does not weigh values by a softmax"),
    ],
)
def test_networks_that_no_rollout_follows(name: str, reason: str) -> None:
    network = timm.create_model(name)
    assert reason in str(Rollout().refusal(network))
    with pytest.raises(
        ValueError, match=f"Rollout does not fit {type(network).__name__}: .*{reason}"
    ):
        Rollout()(network, torch.randn(1, *network.pretrained_cfg["input_size"]))


@pytest.mark.parametrize(
    ("name", "size", "last"),
    [("test_maxvit", (160, 160), "the last 2 of 8"), ("pvt_v2_b0", (96, 128), "the last 1 of 8")],
)
def test_networks_with_convolutions_among_their_tokens_say_what_a_map_shows(
    name: str, size: tuple[int, int], last: str
) -> None:
    network = timm.create_model(name)
    with pytest.warns(UserWarning, match=f"{last} attention calls alone: .* a convolution"):
        found = Rollout()(network.eval(), torch.randn(1, 3, *size))
    assert found.values.shape == (1, size[0] // 32, size[1] // 32)
    torch.testing.assert_close(found.values.sum(), torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("seal", "reason"),
    [
        (lambda network: torch.jit.trace(network, IMAGES), "TorchScript hides its modules"),
        (
            lambda network: torch.export.export(network, (IMAGES,)).module(),
            "torch.export keeps no modules",
        ),
    ],
    ids=["TorchScript", "torch.export"],
)
def test_networks_that_hide_their_modules(seal: Callable[..., Any], reason: str) -> None:
    network = seal(nn.Sequential(Patches(plain)).eval())
    for method in (Rollout(), QueryKey(), GradCAM()):
        with pytest.raises(ValueError, match=f"does not fit .*: {reason}: explain the network"):
            method(network, IMAGES)
    with (
        pytest.raises(ValueError, match=f"cannot be recorded: {reason}"),
        record_attention(network),
    ):
        network(IMAGES)


@pytest.mark.parametrize("method", [Relevance(), AttentionGradCAM()], ids=str)
def test_gradients_within_inference_mode(method: AttentionExplainer) -> None:
    network = Patches(plain)
    true = method(network, IMAGES, 1).values
    with torch.inference_mode():
        assert torch.equal(method(network, IMAGES.clone(), 1).values, true)
        made_there = Patches(plain)
    with pytest.raises(ValueError, match=r"gradients cannot pass 'cut.weight': .*inference_mode"):
        method(made_there, IMAGES, 1)


@pytest.mark.parametrize("query", [(-1, 0), (48, 0), (0, 32), (0.5, 1.01)])
def test_a_seed_outside_the_image(query: tuple[float, float]) -> None:
    for method in (Rollout(query=query), QueryKey(query=query)):
        with pytest.raises(ValueError, match="is outside the image"):
            method(Patches(plain), IMAGES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["timm:resnet18", "--method", "Rollout"], "no attention was found"),
        (["timm:xcit_nano_12_p16_224", "--method", "Rollout"], "attention over channels"),
        (["timm:test_vit", "--method", "Rollout(query=(999, 0))"], "is outside the image"),
        (["timm:test_vit", "--method", "Rollout(start_layer=99)"], "start_layer must be below"),
        (["timm:test_vit", "--method", "RawAttention(head=7)"], "head must be from 0 to"),
        (["timm:test_vit", "--method", "Relevance", "--target", "1000"], "1000"),
        (["timm:test_vit", "--method", "Rollout", "--weights", "nan.pt"], "NaN"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_line_on_the_command_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save("photo.png")
    broken = timm.create_model("test_vit").state_dict()
    broken["blocks.0.attn.qkv.weight"].fill_(torch.nan)
    torch.save(broken, "nan.pt")
    status = main(["explain", *words, "photo.png", "--pretrained", "false", "--device", "cpu"])
    errors = capsys.readouterr().err.strip().splitlines()
    assert status in (1, 2)
    assert len(errors) == 1, errors
    assert errors[0].startswith("vision-attn: error: ")
    assert message in errors[0]


def test_the_record_tells_what_fell_beside_the_image_and_on_outliers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "photo.png")
    words = ["explain", "timm:test_vit", str(tmp_path / "photo.png"), "--pretrained", "false"]
    assert main([*words, "--method", "Rollout", "--device", "cpu", "-o", str(tmp_path)]) == 0
    (record,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert 0 < record["prefix_mass"] < 1
    assert 0 <= record["outlier_mass"] < 1
