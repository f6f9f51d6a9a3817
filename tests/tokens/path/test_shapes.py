"""Paths of runs that compute no values, beside those of runs that do."""

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import SwinTransformer

sys.path.append(str(Path(__file__).parent))
from own_networks import Block, Own, Parallel, fused, softmaxed

from vision_attn.hooks import apart
from vision_attn.inference import eval_mode
from vision_attn.models import ViT
from vision_attn.tokens.path import traced
from vision_attn.tokens.path.path import run_path
from vision_attn.tokens.record.sdpa import SDPAInputs
from vision_attn.tokens.trace.geometry import RULES, ViewGeometry, geometry_of
from vision_attn.tokens.trace.shapes import NeedsValuesError, Shapes

SIZE = (32, 48)
IMAGE = torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def plain(x: Any) -> list[Any] | tuple[str, tuple[int, ...], list[Any]]:
    """All that a path holds, as values that compare."""
    if isinstance(x, torch.Tensor):
        return str(x.dtype), tuple(x.shape), x.flatten().tolist()
    if is_dataclass(x):
        return [type(x).__name__, *(plain(getattr(x, field.name)) for field in fields(x))]
    return [plain(each) for each in x] if isinstance(x, list | tuple) else x


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A network's path by shapes and by values, and whether the shapes were enough."""

    def paths(network: Any, image: torch.Tensor = IMAGE) -> tuple[Any, Any, bool]:
        enough, by_shapes = [], traced.by_shapes
        monkeypatch.setattr(
            traced, "by_shapes", lambda *args: enough.append(by_shapes(*args)) or enough[-1]
        )
        found = run_path(network.eval(), image)
        monkeypatch.setattr(traced, "by_shapes", lambda *_: None)
        expected = run_path(network, image)
        monkeypatch.setattr(traced, "by_shapes", by_shapes)
        return plain(found), plain(expected), enough[0] is not None

    return paths


def written(q: Any, k: Any, v: Any) -> Any:
    return softmaxed(q, k) @ v


def biased(q: Any, k: Any, v: Any) -> Any:
    bias = torch.linspace(-1, 1, q.shape[1] * q.shape[2] * k.shape[2])
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.view(q.shape[1], q.shape[2], k.shape[2])
    )


class Gated(nn.Module):
    """A convolution's map, gated in place, that attends to itself in windows of four."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 8, 8), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.block, self.head = Block(fused), nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.stem(images)
        x = x * x.mean((2, 3), keepdim=True).sigmoid()
        b, c, h, w = x.shape
        whole = x.new_zeros(b, c, h, w + w % 2)
        whole[..., :w] = x
        x = whole.view(b, c, h // 2, 2, -1, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
        return self.head(self.block(x).reshape(b, -1, c).mean(1))


NETWORKS = {
    "ViT": lambda: ViT(image_size=SIZE, patch_size=8, num_classes=5, dim=12, depth=2, heads=3),
    "written": lambda: Own([Block(written), Block(fused)], before=1, after=2),
    "biased": lambda: Own([Block(biased), Block(fused), Block(biased)], before=1),
    "beside": lambda: Own([Parallel(fused), Block(fused)]),
    "windows": lambda: SwinTransformer((4, 4), 12, (2, 2), (3, 3), (2, 3), num_classes=5),
    "gated": Gated,
    "timm": lambda: timm.create_model("test_vit", img_size=SIZE, patch_size=8, num_classes=5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_path_by_shapes_is_that_by_values(name: str, both: Callable[..., Any]) -> None:
    found, expected, enough = both(NETWORKS[name]())
    assert enough
    assert found == expected


class Padded(nn.Module):
    """Two blocks; the second also has a token that is written, or set beside the others."""

    def __init__(self, pad: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.cut, self.pad = nn.Conv2d(3, 24, 8, 8), pad
        self.blocks, self.head = nn.ModuleList([Block(fused), Block(fused)]), nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.blocks[0](self.cut(images).flatten(2).mT)
        return self.head(self.blocks[1](self.pad(x))[:, :24].mean(1))


def written_at_once(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_zeros(len(x), 25, 24)
    whole[:, :24] = x
    return whole


def written_in_parts(x: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros(len(x), 25, 24)
    first, rest, _ = whole.split([7, 17, 1], 1)
    rest.copy_(x[:, 7:])
    first += x[:, :7]
    return whole


@pytest.mark.parametrize("pad", [written_at_once, written_in_parts])
def test_tokens_written_into_zeros_are_those_set_beside_zeros(
    pad: Any, both: Callable[..., Any]
) -> None:
    found, by_values, _ = both(Padded(pad))
    expected, _, _ = both(Padded(lambda x: nn.functional.pad(x, (0, 0, 0, 1))))
    assert found == by_values == expected


class Choosing(nn.Module):
    """Tokens that something in their values chooses, or that are only looked at."""

    def __init__(self, way: Callable[..., Any]) -> None:
        super().__init__()
        self.way, self.seen = way, None
        self.register_buffer("kept", torch.zeros(24))

    def forward(self, x: Any) -> Any:
        self.seen, out = self.way(self, x)
        return out


def best(module: Any, x: Any) -> tuple[None, Any]:
    order = x.sum(2).argsort(1)[:, :5]
    return None, x.gather(1, order[..., None].expand(-1, -1, 24))


def large(module: Any, x: Any) -> tuple[None, Any]:
    return None, x[:, (x[0].sum(1) > 0).nonzero()[:, 0]]


def write(module: Any, x: Any) -> tuple[None, Any]:
    module.kept.copy_(x.mean((0, 1)))
    return None, x


def raised(module: Any, x: Any) -> tuple[None, Any]:
    if float(x.sum()) > 1e9:
        raise ValueError("too large")
    return None, x


WAYS = {
    "best": best,
    "large": large,
    "write": write,
    "raised": raised,
    "list": lambda _, x: (x.tolist(), x),
    "array": lambda _, x: (x.numpy(), x),
    "kept": lambda _, x: ({"tokens": [x]}, x),
    "drawn": lambda _, x: (None, x + torch.bernoulli(x.sigmoid())),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_needs_values_or_keeps_them_runs_with_values(
    name: str, both: Callable[..., Any]
) -> None:
    network = Own([Choosing(WAYS[name]), Block(fused)])
    found, expected, enough = both(network)
    assert not enough
    assert found == expected
    if name in ("list", "kept", "array"):
        with torch.no_grad():
            expected = network.cut(IMAGE).flatten(2).mT
        seen = network.blocks[0].seen
        seen = torch.as_tensor(seen["tokens"][0] if name == "kept" else seen)
        torch.testing.assert_close(seen[:1], expected)


def test_hooks_of_others_see_true_values() -> None:
    network = Own([Block(fused)]).eval()
    seen = []
    network.cut.register_forward_hook(lambda _module, _args, out: seen.append(out.detach()))
    run_path(network, IMAGE)
    seen = [out for out in seen if len(out) == 2]
    with torch.no_grad():
        torch.testing.assert_close(seen[0][1:], network.cut(IMAGE))


def test_no_product_of_the_image_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS["ViT"]().eval()
    with apart(), eval_mode(network), torch.no_grad():
        shapes, runs = Shapes(), []
        monkeypatch.setattr(traced, "Shapes", lambda: shapes)
        keep = network.head.register_forward_hook(lambda _module, _args, out: runs.append(out))
        monkeypatch.setattr(traced, "has_hooks", lambda _: False)
        assert traced.by_shapes(network, IMAGE.repeat(2, 1, 1, 1), None) is not None
        keep.remove()
    assert shapes.is_blank(runs[0])
    assert runs[0].shape == (2, 5)


def drawn(*shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def last(*shape: Any) -> torch.Tensor:
    return drawn(*shape).contiguous(memory_format=torch.channels_last)


MEANS: list[list[Any]] = [
    [[2, 3]], [[2, 3], True], [[-1, 1]], [[0], True], [None], [None, True], [[]],
]  # fmt: skip
CALLS = [
    ("mm", drawn(7, 3), drawn(3, 5)),
    ("mm", drawn(3, 7).T, drawn(5, 3).T),
    ("bmm", drawn(2, 7, 3), drawn(2, 5, 3).mT),
    ("addmm", drawn(5), drawn(7, 3), drawn(3, 5)),
    ("baddbmm", drawn(2, 7, 5), drawn(2, 7, 3), drawn(2, 3, 5)),
    ("native_layer_norm", drawn(2, 7, 5), [5], drawn(5), drawn(5), 1e-5),
    ("native_layer_norm", drawn(2, 5, 7).mT, [5], drawn(5), drawn(5), 1e-5),
    *(
        ("convolution", x, drawn(11, 3, 2, 3), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 1)
        for x in (drawn(2, 3, 13, 17), last(2, 3, 13, 17))
    ),
    ("convolution", drawn(2, 3, 13, 17), drawn(11, 3, 2, 3), None, [2], [0], [1], False, [0], 1),
    ("_softmax", drawn(2, 7, 5), -1, False),
    *(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            *(drawn(2, n, 3, 8, dtype=dtype).transpose(1, 2) for n in (7, 5, 5)),
        )
        for dtype in (torch.float32, torch.float64)
    ),
    ("_safe_softmax", drawn(2, 7, 5), -1),
    ("clone", last(2, 3, 5, 7)),
    ("roll", drawn(2, 5, 7, 3), [-2, -3], [1, 2]),
    ("roll", drawn(2, 5, 7, 3), [4], [1]),
    ("roll", drawn(5, 7), [4]),
    *(
        call
        for x in (drawn(2, 3, 13, 17), last(2, 3, 13, 17), drawn(2, 1, 13, 17), last(2, 3, 1, 1))
        for call in (
            ("constant_pad_nd", x, [1, 2], 0.0),
            ("constant_pad_nd", x, [0, 3, 1, 2, 5, 0]),
            ("constant_pad_nd", x, [0, 0, 0, 0]),
            ("native_batch_norm", x, *[drawn(x.shape[1]).abs()] * 4, False, 0.1, 1e-5),
            ("avg_pool2d", x, [1]),
        )
    ),
    ("constant_pad_nd", drawn(2, 7, 5), [0, 0, 1, 3]),
    *(
        ("avg_pool2d", x, *how)
        for x in (drawn(2, 3, 13, 17), last(2, 3, 13, 17))
        for how in ([[3]], [[3, 2], [2]], [[3, 2], [2, 1], [1, 1], False, False])
    ),
    ("gelu", drawn(2, 7, 5)),
    ("add", drawn(2, 7, 5), drawn(5)),
    ("mul", last(2, 3, 5, 7), drawn(2, 3, 1, 1)),
    *(
        ("mul", x, 0.5)
        for x in (
            drawn(3, 2, 7, 5)[1].mT,
            drawn(2, 7, 3, 11, 5).permute(2, 0, 3, 1, 4).unbind(0)[1],
            drawn(2, 3, 5, 7)[:, 1:, ::2, 3:],
            drawn(7, 1, 5, 1).permute(1, 2, 3, 0),
            drawn(2, 11)[0, ::2],
        )
    ),
    *(("mean", drawn(2, 3, 5, 7), *how) for how in MEANS),
    ("mean", drawn(2, 3, 1, 7, dtype=torch.float64), [-2, -1]),
]
OVERLOADS = {"add": "Tensor", "mul": "Tensor", "mean": "dim"}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_a_rule_gives_what_torchs_kernel_gives(
    call: Any,
) -> None:
    name, *args = call
    packet = getattr(torch.ops.aten, name)
    func = getattr(packet, OVERLOADS.get(name, "default"))
    found: Any = geometry_of(func, tuple(args), {})
    out = func(*args)
    many = out if isinstance(out, tuple) else (out,)
    found = found if isinstance(out, tuple) else (found,)
    assert len(found) == len(many)
    for one, x in zip(found, many, strict=True):
        steps = [step for step, n in zip(x.stride(), x.shape, strict=True) if n > 1]
        own = [step for step, n in zip(one.stride, one.shape, strict=True) if n > 1]
        assert (one.shape, own, one.dtype) == (tuple(x.shape), steps, x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_by_products_gets_the_shape_and_strides_of_torchs(dtype: torch.dtype) -> None:
    def drawn_heads(n: int, heads: int = 4, width: int = 8) -> torch.Tensor:
        return drawn(2, n, heads, width, dtype=dtype).transpose(1, 2)

    q, k, v = drawn_heads(7), drawn_heads(5), drawn_heads(5)
    mask = drawn(4, 7, 5, dtype=dtype)
    by_products = [
        SDPAInputs(q, k, v, mask),
        SDPAInputs(q, k, drawn_heads(5, width=3)),
        SDPAInputs(q, drawn_heads(5, 2), drawn_heads(5, 2, 3), enable_gqa=True),
    ]
    for inputs in by_products:
        assert inputs.by_products
        blank = Shapes().context(q, inputs.value)
        out = F.scaled_dot_product_attention(**inputs._asdict())
        assert (blank.shape, blank.stride(), blank.dtype) == (out.shape, out.stride(), out.dtype)
    others = [
        SDPAInputs(q, k, v),
        SDPAInputs(q, k, v, mask[None]),
        SDPAInputs(q, k, v, mask, dropout_p=0.5),
        SDPAInputs(q[0], k[0], v[0], mask),
        SDPAInputs(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask.bfloat16()),
    ]
    assert not any(inputs.by_products for inputs in others)
    with torch.autocast("cpu"):
        assert not by_products[0].by_products
    refused = [
        SDPAInputs(q, k[..., :6], v, mask),
        SDPAInputs(q, k, v[..., :3, :], mask),
        SDPAInputs(q, k[:1], v[:1], mask),
        SDPAInputs(q, k[:, :2], v[:, :2], mask),
        SDPAInputs(q, k, v, mask[:, :3]),
        SDPAInputs(q, k, v, mask.long()),
    ]
    assert not any(inputs.by_products for inputs in refused)


@pytest.mark.parametrize("name", ["gt", "isnan", "logical_not", "eq", "mul", "_to_copy"])
def test_a_comparison_gets_the_type_that_torch_gives_it(name: str) -> None:
    shapes, x = Shapes(), drawn(2, 5, 7)
    blank = shapes.blank(x)
    func = getattr(torch.ops.aten, name)
    func = func.Scalar if name in ("gt", "eq") else func.Tensor if name == "mul" else func.default
    more = {"gt": (0.5,), "eq": (0.5,), "mul": (2.0,)}.get(name, ())
    how = {"dtype": torch.float64} if name == "_to_copy" else {}
    for part in (lambda x: x, lambda x: x.mT, lambda x: x[:, ::2]):
        out, expected = shapes.run(func, (part(blank), *more), how), func(part(x), *more, **how)
        assert (out.dtype, out.shape) == (expected.dtype, expected.shape)


@pytest.mark.parametrize("memory_format", [None, torch.contiguous_format, torch.preserve_format])
def test_a_copy_is_laid_out_as_torch_does(memory_format: torch.memory_format | None) -> None:
    how = {"memory_format": memory_format}
    for x in (drawn(2, 5, 3, 7), last(2, 5, 3, 7), drawn(7, 5).T, drawn(5, 1).expand(5, 3)):
        found = geometry_of(torch.ops.aten.clone.default, (x,), how)
        assert found in (None, ViewGeometry.of(torch.ops.aten.clone.default(x, **how)))
    assert geometry_of(torch.ops.aten.clone.default, (x,), how) is None or memory_format is not None


@pytest.mark.parametrize(
    "call",
    [
        ("roll", drawn(7, 5).T, [1], [0]),
        ("_safe_softmax", drawn(7, 5).T, -1),
        ("constant_pad_nd", drawn(7, 5).T, [1, 1]),
        ("constant_pad_nd", drawn(7, 5), [-1, 1]),
        ("avg_pool2d", drawn(2, 3, 7, 7), [2], [2], [0], True),
        ("avg_pool2d", drawn(3, 7, 7), [2]),
        ("native_batch_norm", drawn(2, 3, 5), *[drawn(3).abs()] * 4, True, 0.1, 1e-5),
        ("mean", last(2, 3, 5, 7), [1]),
        ("mean", drawn(2, 3), [2]),
        ("mean", drawn(2, 3), [1, -1]),
        ("constant_pad_nd", drawn(7, 5), [0] * 6),
        ("mul", drawn(5, 1).expand(5, 3), 0.5),
        ("mul", drawn(5).as_strided((2, 2), (1, 1)), 0.5),
    ],
    ids=lambda call: call[0],
)
def test_what_no_rule_is_sure_of_has_to_run(call: Any) -> None:
    name, *args = call
    func = getattr(getattr(torch.ops.aten, name), OVERLOADS.get(name, "default"))
    assert geometry_of(func, tuple(args), {}) is None


def test_every_rule_is_compared() -> None:
    assert {name.removeprefix("aten::") for name in RULES} <= {call[0] for call in CALLS}


def test_weights_and_what_comes_of_them_have_values() -> None:
    shapes = Shapes()
    blank, table = shapes.blank(drawn(3, 5)), drawn(5, 7)
    own = shapes.run(torch.ops.aten.mul.Tensor, (table, 2.0), {})
    assert torch.equal(own, 2 * table)
    assert not shapes.is_blank(own)
    out = shapes.run(torch.ops.aten.mm.default, (blank, own), {})
    assert shapes.is_blank(out)
    assert ViewGeometry.of(out) == ViewGeometry.of(drawn(3, 7))
    with pytest.raises(NeedsValuesError, match="add_"):
        shapes.run(torch.ops.aten.add_.Tensor, (table, out[:, :1].expand(3, 7)[:1]), {})
