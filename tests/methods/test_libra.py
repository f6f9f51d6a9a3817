"""LibraGradient against networks written out by hand, in float64, with what it holds detached."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import Explainer, GradCAM, LibraGradient
from vision_attn.methods.targets import Class, Difference, Odds
from vision_attn.models import SEResNet, ViT
from vision_attn.models.timm_model import TimmModel

CLASS = 3


def held_norm(norm: Any, x: torch.Tensor) -> Any:
    """A layer norm whose divisor is a constant."""
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return centred / deviation.detach() * norm.weight + norm.bias


def held_gelu(x: Any) -> Any:
    """x times a gate that is a constant."""
    return x * (0.5 * (1 + torch.erf(x / 2**0.5))).detach()


def timm_vit(**more: Any) -> VisionTransformer:
    torch.manual_seed(2)
    options = {"img_size": 28, "patch_size": 7, "embed_dim": 24, "depth": 3, "num_heads": 3}
    network = timm.models.VisionTransformer(**options | {"num_classes": 5} | more).eval()
    for block in network.blocks:  # attention and gates far from their middle
        block.attn.qkv.weight.data *= 20
        block.mlp.fc1.weight.data *= 20
    nn.init.normal_(network.head.weight)
    nn.init.normal_(network.head.bias)
    return network.double()


def by_hand(
    network: VisionTransformer, image: torch.Tensor, score: Callable[..., Any]
) -> tuple[torch.Tensor, Any]:
    """The levels of a timm ViT and their gradients: sum_d h g of every token, a row a level."""
    x = network.patch_embed(image)
    x = network._pos_embed(x).detach().requires_grad_()
    levels = [x]
    for block in network.blocks:
        b, n, d = x.shape
        y = held_norm(block.norm1, x)
        q, k, v = block.attn.qkv(y).view(b, n, 3, 3, d // 3).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / (d // 3) ** 0.5).softmax(-1).detach()
        x = x + block.attn.proj((weights @ v).transpose(1, 2).reshape(b, n, d))
        hidden = held_gelu(block.mlp.fc1(held_norm(block.norm2, x)))
        x = x + block.mlp.fc2(hidden)
        levels.append(x)
    x = held_norm(network.norm, x)
    logits = network.head(x[:, 0] if network.global_pool == "token" else x[:, -16:].mean(1))
    gradients = torch.autograd.grad(score(logits).sum(), levels)
    return torch.stack([(h * g).sum(-1) for h, g in zip(levels, gradients, strict=True)]), logits


@pytest.mark.parametrize("more", [{}, {"reg_tokens": 2}, {"global_pool": "avg", "fc_norm": False}])
def test_it_is_the_mean_over_levels_of_tokens_times_held_gradients(more: dict[str, int]) -> None:
    network, image = timm_vit(**more), torch.randn(2, 3, 28, 28).double()
    rows, logits = by_hand(network, image, lambda logits: logits[:, CLASS])
    torch.testing.assert_close(network(image), logits)
    maps = LibraGradient(smooth=0)(network, image, CLASS)
    expected = rows.mean(0)
    torch.testing.assert_close(
        maps.values, expected[:, -16:].unflatten(1, (4, 4)).float(), atol=1e-5, rtol=1e-4
    )
    sizes = rows.abs().sum(0)
    mass = sizes[:, :-16].sum(1) / sizes.sum(1)
    torch.testing.assert_close(maps.prefix_mass, mass.float(), atol=1e-5, rtol=1e-4)


def test_another_number_of_the_output_is_explained_as_it_is_written() -> None:
    network, image = timm_vit(), torch.randn(1, 3, 28, 28).double()

    def map_of(target: Any) -> torch.Tensor:
        return LibraGradient(smooth=0)(network, image, target).values

    def expected(score: Callable[..., Any]) -> Any:
        return by_hand(network, image, score)[0].mean(0)[:, -16:].unflatten(1, (4, 4)).float()

    def odds(z: Any) -> Any:
        others = [i for i in range(5) if i != CLASS]
        return z[:, CLASS] - z[:, others].logsumexp(1)

    pairs = [
        (Difference(Class(CLASS), Class(1)), lambda z: z[:, CLASS] - z[:, 1]),
        (Odds(CLASS), odds),
        (lambda z: z[:, 2] * 3, lambda z: z[:, 2] * 3),
    ]
    for target, score in pairs:
        torch.testing.assert_close(map_of(target), expected(score), atol=1e-5, rtol=1e-4)


def test_shares_and_constants_are_the_logit_at_the_first_level() -> None:
    network, image = timm_vit(), torch.randn(2, 3, 28, 28).double()
    maps = LibraGradient(check=True)(network, image, CLASS)
    assert maps.completeness_gap is not None
    assert maps.completeness_gap.max() < 1e-12
    network.blocks[1].mlp.act = LogSum()
    with pytest.warns(UserWarning, match=r"no rule for logcumsumexp: up to \d+\.\d%"):
        maps = LibraGradient()(network, image, CLASS)
    assert maps.completeness_gap is not None
    assert maps.completeness_gap.min() > 1e-3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: F.pad(x, (0, 3), value=0.7)[..., 3:],
        lambda x: nn.ConstantPad1d((3, 0), 0.7)(x)[..., :-3],
        lambda x: x + torch.arange(x.shape[1])[:, None],
        lambda x: torch.full_like(x, 0.7).add_(x),
        lambda x: x.clamp(min=torch.full_like(x[0, 0], 0.7)),
    ],
)
def test_constants_that_the_network_makes_as_it_runs_are_counted(spoil: Callable[..., Any]) -> None:
    network, image = timm_vit(), torch.randn(2, 3, 28, 28).double()
    network.blocks[1].mlp.drop1 = Spoiling(spoil)
    assert not torch.allclose(network(image), timm_vit()(image))
    maps = LibraGradient(check=True)(network, image, CLASS)
    assert maps.completeness_gap is not None
    assert maps.completeness_gap.max() < 1e-12


class Scaled(nn.Module):
    """A ViT with a scale and a shift that are no parameters, and require a gradient."""

    def __init__(self, made: bool = False) -> None:
        super().__init__()
        self.inner, self.made = timm_vit(), made
        self.scale = torch.full((24,), 1.5, dtype=torch.float64, requires_grad=True)
        self.shift = [torch.full((5,), 0.7, dtype=torch.float64, requires_grad=True)]

    def forward(self, images: torch.Tensor) -> Any:
        network = self.inner
        x = network._pos_embed(network.patch_embed(images))
        scale = self.scale.detach().clone().requires_grad_() if self.made else self.scale
        for block in network.blocks:
            x = block(x) * scale
        return network.forward_head(network.norm(x)) + self.shift[0]


def test_tensors_that_require_a_gradient_are_constants() -> None:
    image = torch.randn(2, 3, 28, 28).double()
    network, plain = Scaled(), Scaled()
    plain.scale.requires_grad_(False)
    plain.shift[0].requires_grad_(False)
    expected = LibraGradient(check=True)(plain, image, CLASS)
    maps = LibraGradient(check=True)(network, image, CLASS)
    torch.testing.assert_close(maps.values, expected.values)
    assert maps.completeness_gap is not None
    assert maps.completeness_gap.max() < 1e-12
    assert network.scale.requires_grad
    assert network.shift[0].requires_grad
    with pytest.raises(ValueError, match="it makes tensors that require a gradient as it runs"):
        LibraGradient()(Scaled(made=True), image, CLASS)


def test_a_tensor_that_takes_anothers_place_is_a_constant_too() -> None:
    image = torch.randn(2, 3, 28, 28).double()
    network = Scaled()
    expected = LibraGradient()(network, image, CLASS).values
    network.scale = network.scale.detach().clone().requires_grad_()
    network.shift[0] = network.shift[0].detach().clone().requires_grad_()
    torch.testing.assert_close(LibraGradient()(network, image, CLASS).values, expected)


class TokensFirst(nn.Module):
    """A transformer of (tokens, images, width), as torch's own is unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.cut, self.head = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 5)
        layer = nn.TransformerEncoderLayer(6, 2, 11, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).transpose(1, 2)
        return self.head(self.encoder((x * 1).transpose(0, 1)).mean(0))


@pytest.mark.parametrize("method", [LibraGradient(), GradCAM()])
def test_as_many_images_as_tokens_are_told_from_tokens(method: Explainer) -> None:
    network, images = TokensFirst().double().eval(), torch.randn(7, 3, 12, 8).double()
    each = torch.cat([method(network, image[None], CLASS).values for image in images])
    for count in (5, 6, 7):  # six tokens
        maps = method(network, images[:count], CLASS)
        torch.testing.assert_close(maps.values, each[:count], rtol=1e-5, atol=1e-7)


def test_a_norm_over_the_images_of_a_batch_is_refused_for_several() -> None:
    network = TokensFirst().eval()
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    network.encoder.layers[0].linear1 = nn.Sequential(
        Spoiling(lambda x: x.permute(1, 2, 0)), norm, Spoiling(lambda x: x.permute(2, 0, 1)),
        network.encoder.layers[0].linear1,
    )  # fmt: skip
    images = torch.randn(3, 3, 12, 8)
    maps = LibraGradient(check=True)(network, images[:1], CLASS)
    assert maps.completeness_gap is not None
    assert maps.completeness_gap.max() < 1e-5
    message = r"normalises over the images of a batch .*: give one image a call"
    with pytest.raises(ValueError, match=message):
        LibraGradient()(network, images, CLASS)


class InPairs(nn.Module):
    """A network that runs two images at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm_vit()

    def forward(self, images: torch.Tensor) -> Any:
        assert len(images) == 2, "two views, please"
        return self.inner(images)


def test_a_network_that_cannot_run_one_image_is_refused_in_a_line() -> None:
    message = "a run of one image, which finds its tokens, fails: AssertionError: two views"
    with pytest.raises(ValueError, match=message):
        LibraGradient()(InPairs(), torch.randn(2, 3, 28, 28).double(), CLASS)


class Mapped(nn.Module):
    """A network that is run image by image by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm_vit()

    def forward(self, images: torch.Tensor) -> Any:
        return torch.func.vmap(lambda image: self.inner(image[None])[0])(images)


def test_a_network_under_vmap_is_refused_in_a_line() -> None:
    with pytest.raises(ValueError, match=r"does not fit Mapped: torch\.func\.vmap hides"):
        LibraGradient()(Mapped(), torch.randn(2, 3, 28, 28).double(), CLASS)


class Unseen(torch.autograd.Function):
    """What torch's functions do not see."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x + 0.7

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_a_constant_of_code_that_torch_runs_unseen_is_named() -> None:
    image = torch.randn(2, 3, 28, 28).double()
    added = torch.jit.trace(lambda x: x * 1.0 + 0.7, torch.ones(2, dtype=torch.float64))
    for function, name in ((added, "Add in compiled code"), (Unseen.apply, "Unseen")):
        network = timm_vit()
        network.blocks[1].mlp.drop1 = Spoiling(function)
        with pytest.warns(UserWarning, match=f"no rule for {name}: up to"):
            maps = LibraGradient()(network, image, CLASS)
        assert maps.completeness_gap is not None
        assert maps.completeness_gap.min() > 1e-3


class Doubling(torch.autograd.Function):
    """A linear function whose code torch does not know."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def test_the_rounding_of_half_precision_is_no_gap_to_warn_of() -> None:
    torch.manual_seed(0)
    images = torch.randn(7, 3, 28, 28).bfloat16()
    network = timm_vit()
    network.blocks[1].mlp.drop1 = Spoiling(Doubling.apply)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = LibraGradient()(network.bfloat16(), images, CLASS)
    assert maps.completeness_gap is not None
    assert 1e-3 < maps.completeness_gap.max() < 4 * torch.finfo(torch.bfloat16).eps


class Spoiling(nn.Module):
    """A function of values as a layer."""

    def __init__(self, spoil: Callable[..., Any]) -> None:
        super().__init__()
        self.spoil = spoil

    def forward(self, x: Any) -> Any:
        return self.spoil(x)


class LogSum(nn.Module):
    """Of channels beside each other; it is no gate times its input."""

    def forward(self, x: Any) -> Any:
        return x.logcumsumexp(-1)


class WrittenOver(nn.Module):
    """A ViT whose residual stream is one tensor that every block adds to."""

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        self.inner = network

    def forward(self, images: torch.Tensor) -> Any:
        network = self.inner
        x = network._pos_embed(network.patch_embed(images))
        for block in network.blocks:
            x += block.attn(block.norm1(x))
            x.add_(block.mlp(block.norm2(x)))
        return network.forward_head(network.norm(x))


class ReadThenWritten(nn.Module):
    """Attention reads the tokens, and then an activation writes over them, by a flat view."""

    def __init__(self, by_view: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.cut, self.mix, self.head = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 6), nn.Linear(6, 5)
        self.by_view = by_view

    def attend(self, x: torch.Tensor) -> Any:
        return (self.mix(x) @ x.mT).softmax(-1) @ x

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).mT.contiguous()
        x = x + self.attend(x)
        y = self.attend(x)
        if self.by_view:
            F.silu(x.flatten(0, 1), inplace=True)
            x[:, 2] *= 0.5
        else:
            x = F.silu(x)
            x = x * torch.ones(x.shape[1], 1, dtype=x.dtype).index_fill(0, torch.tensor(2), 0.5)
        return self.head((x + y).mean(1))


def test_a_level_that_is_written_over_through_a_view_is_kept_as_it_was() -> None:
    images = torch.randn(2, 3, 12, 20).double()
    apart, in_place = (ReadThenWritten(by_view).double().eval() for by_view in (False, True))
    torch.testing.assert_close(in_place(images), apart(images))
    maps = LibraGradient(smooth=0)(in_place, images, CLASS)
    expected = LibraGradient(smooth=0)(apart, images, CLASS)
    torch.testing.assert_close(maps.values, expected.values)


class TokenByToken(WrittenOver):
    """The same, which adds what attention gives token by token."""

    def forward(self, images: torch.Tensor) -> Any:
        network = self.inner
        x = network._pos_embed(network.patch_embed(images))
        for block in network.blocks:
            more = block.attn(block.norm1(x))
            for token in range(x.shape[1]):
                x[:, token] += more[:, token]
            x = x + block.mlp(block.norm2(x))
        return network.forward_head(network.norm(x))


class Shifting(nn.Module):
    """A network that writes into the images that it is given."""

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        self.inner = network

    def forward(self, images: torch.Tensor) -> Any:
        logits = self.inner(images.mul_(-1).neg())
        images.zero_()
        return logits


class Wrapped(nn.Module):
    """A network whose images are shifted first, and whose logits come in a dictionary."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.inner = network

    def forward(self, images: torch.Tensor) -> dict[Any, Any]:
        return {"logits": self.inner(images * 1.0), "aside": images.mean()}


def checkpointed(network: Any) -> Any:
    network.set_grad_checkpointing()
    return network


def written_out(network: Any) -> Any:
    for block in network.blocks:
        block.attn.fused_attn = False
    return network


OTHERWISE = {
    "wrapped": Wrapped,
    "written over": WrittenOver,
    "written over token by token": TokenByToken,
    "writing into its images": Shifting,
    "in a sequence": lambda network: nn.Sequential(nn.Identity(), network),
    "gradient checkpointing": checkpointed,
    "attention written out": written_out,
    "left in train mode": lambda network: network.train(),
    "compiled": lambda network: torch.compile(network, backend="eager"),
    "deep copy in one precision more": lambda network: network.float().double(),
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_the_same_network_otherwise_has_the_same_map(way: str) -> None:
    image = torch.randn(2, 3, 28, 28).double()
    given = image.clone()
    network = timm_vit(reg_tokens=1)
    expected = LibraGradient()(network, image, CLASS)
    other = OTHERWISE[way](timm_vit(reg_tokens=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = LibraGradient()(other, image, CLASS)
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-4)
    assert torch.equal(image, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    network = ViT(image_size=28, patch_size=7, num_classes=5, dim=24, depth=2, heads=3).eval()
    image = torch.randn(2, 3, 28, 28)
    expected = LibraGradient(smooth=0)(network, image, CLASS).values
    found = LibraGradient(smooth=0)(network.to(dtype), image.to(dtype), CLASS).values
    assert found.dtype == torch.float32
    difference = (found - expected).abs().mean() / expected.abs().mean()
    assert difference < (0.1 if dtype is torch.bfloat16 else 0.02)


def test_smoothing_keeps_the_total_and_stands_in_the_name() -> None:
    network, image = timm_vit(), torch.randn(2, 3, 28, 28).double()
    raw = LibraGradient(smooth=0)(network, image, CLASS)
    smooth = LibraGradient()(network, image, CLASS)
    assert (raw.method, smooth.method) == (
        "LibraGradient(smooth=0.0)",
        "LibraGradient(smooth=1.0)",
    )
    torch.testing.assert_close(smooth.values.sum((1, 2)), raw.values.sum((1, 2)))
    assert smooth.values.std() < 0.8 * raw.values.std()


def test_a_cnn_has_the_shares_of_its_last_features() -> None:
    """Behind them is a mean and a linear layer: the map is that of HiResCAM without its ReLU."""
    torch.manual_seed(5)
    network = SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 6, 8, 10)).double().eval()
    image = torch.randn(2, 3, 64, 96).double()
    kept = []
    handle = network.layer4.register_forward_hook(lambda _m, _args, out: kept.append(out))
    network(image)
    handle.remove()
    weight = next(m for m in network.modules() if isinstance(m, nn.Linear) and m.out_features == 5)
    expected = torch.einsum("bchw,c->bhw", kept[0], weight.weight[CLASS]) / kept[0][0, 0].numel()
    found = LibraGradient(smooth=0)(network, image, CLASS)
    torch.testing.assert_close(found.values, expected.float(), atol=1e-6, rtol=1e-4)


def test_it_says_why_it_cannot() -> None:
    headless = TimmModel("test_vit", pretrained=False, num_classes=0)
    with pytest.raises(ValueError, match="target"):
        LibraGradient()(headless, torch.rand(1, 3, 160, 160))

    class Cut(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return F.one_hot(images.mean((2, 3)).argmax(1), 5).float()

    with pytest.raises(ValueError, match="does not fit Cut: no gradient"):
        LibraGradient()(Cut(), torch.rand(1, 3, 16, 16), CLASS)

    class Aside(nn.Module):
        """Gives something of the images beside the logits."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = timm_vit()

        def forward(self, images: torch.Tensor) -> Any:
            return self.inner(images), images.mean()

    images = torch.rand(1, 3, 28, 28).double()
    with pytest.raises(ValueError, match=r"it gives tuple of 0 \(1, 5\), 1 \(\): give head=0"):
        LibraGradient()(Aside(), images, CLASS)
    found = LibraGradient()(Aside(), images, CLASS, head=0).values
    torch.testing.assert_close(found, LibraGradient()(timm_vit(), images, CLASS).values)

    small = SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 6, 8, 10)).eval()
    with pytest.raises(ValueError, match="or a grid of one cell"):
        LibraGradient()(small, torch.rand(1, 3, 1, 1), CLASS)

    class OneByOne(nn.Sequential):
        def forward(self, images: torch.Tensor) -> Any:
            return torch.cat([super(OneByOne, self).forward(image[None]) for image in images])

    with pytest.raises(ValueError, match="runs 1 of these 3 images at a time: give one image a"):
        LibraGradient()(OneByOne(timm_vit()), images.repeat(3, 1, 1, 1), CLASS)
    found = LibraGradient()(OneByOne(timm_vit()), images, CLASS).values
    torch.testing.assert_close(found, LibraGradient()(timm_vit(), images, CLASS).values)
