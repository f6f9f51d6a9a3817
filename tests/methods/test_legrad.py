"""LeGrad where a network gives its blocks more than tokens, or runs them again to save memory."""

from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vision_attn.methods import Channel, Explainer, GradCAM, LeGrad
from vision_attn.models import ViT

SIZE = (32, 48)


def test_rotary_positions_of_more_heads_than_images() -> None:
    torch.manual_seed(0)
    network = timm.create_model(
        "vit_small_patch16_rope_mixed_224", img_size=64, embed_dim=48, num_heads=6, depth=2,
        num_classes=5,
    ).double().eval()  # fmt: skip
    images = torch.randn(5, 3, 64, 64, dtype=torch.float64)
    together = LeGrad()(network, images, 1).values
    for image, found in zip(images, together, strict=True):
        torch.testing.assert_close(found, LeGrad()(network, image[None], 1).values[0])


def test_rotary_positions_of_each_image() -> None:
    torch.manual_seed(0)
    network = timm.create_model("gemma4_vit_167m_enc", embed_dim=24, depth=3, num_heads=2)
    network = network.double().eval()
    images = torch.randn(2, 3, 48, 96, dtype=torch.float64)
    together = LeGrad()(network, images, Channel(3)).values
    assert together.shape == (2, 3, 6)
    assert together.flatten(1).any(dim=1).all()
    for image, found in zip(images, together, strict=True):
        torch.testing.assert_close(found, LeGrad()(network, image[None], Channel(3)).values[0])


@pytest.mark.parametrize(
    "name", ["vit_small_patch16_rope_mixed_224", "vit_base_patch16_siglip_224"]
)
def test_as_many_heads_as_images_times_blocks(name: str) -> None:
    torch.manual_seed(0)
    network = timm.create_model(
        name, img_size=64, embed_dim=48, num_heads=6, depth=3, num_classes=5
    ).double().eval()  # fmt: skip
    images = torch.randn(7, 3, 64, 64, dtype=torch.float64)
    true = LeGrad()(network, images, 1).values
    for count in (2, 6):  # 6 images: the last block's batch has as many, too
        found = LeGrad()(network, images[:count], 1).values
        torch.testing.assert_close(found, true[:count])


@pytest.mark.parametrize("method", [LeGrad(), GradCAM()], ids=str)
def test_networks_that_compute_twice_to_save_memory(method: Explainer) -> None:
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=5)
    network = network.double().eval()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    true = method(network, images, 1).values
    network.set_grad_checkpointing(True)
    assert torch.equal(method(network, images, 1).values, true)
    assert network.grad_checkpointing


def test_a_module_that_runs_its_blocks_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = ViT(SIZE, 8, 5, 24, 2, 3)

        def forward(self, images: torch.Tensor) -> Any:
            return self.network(images) + self.network(images.flip(-1))

    with pytest.raises(ValueError, match="its 2 blocks make 4 attention calls"):
        LeGrad()(Twice().eval(), torch.randn(2, 3, *SIZE), 1)


class PooledForNothing(nn.Module):
    """A network that also pools its tokens by attention, and reads them without."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network, self.pool = network, nn.MultiheadAttention(12, 2, batch_first=True)

    def forward(self, images: torch.Tensor) -> Any:
        tokens = self.network.norm(self.network.forward_features(images))
        self.pool(tokens[:, :1], tokens, tokens)
        return self.network.head(tokens.mean(1))


class NotPooled(PooledForNothing):
    def forward(self, images: torch.Tensor) -> Any:
        return self.network.head(self.network.norm(self.network.forward_features(images)).mean(1))


def test_a_pool_that_nothing_reads_changes_no_map() -> None:
    """As the head of SigLIP's vision tower, where a classifier reads the mean of its tokens."""
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=(12, 20), patch_size=4, embed_dim=12, depth=2, num_heads=3, num_classes=5,
        class_token=False, global_pool="avg", fc_norm=False,
    ).eval()  # fmt: skip
    images = torch.randn(2, 3, 12, 20)
    found = LeGrad()(PooledForNothing(network).eval(), images, [1, 3])
    expected = LeGrad()(NotPooled(network).eval(), images, [1, 3])
    torch.testing.assert_close(found.values, expected.values)
    assert found.values.sum() > 0


class OnTheGrid(nn.Module):
    """A block between blocks whose tokens keep their rows and columns (b h w d)."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x: Any) -> Any:
        return self.block(x.flatten(1, 2)).view_as(x)


class Grid(nn.Module):
    """A Vision Transformer without a class token, whose blocks get tokens in one of two shapes."""

    def __init__(self, vit: nn.Module, on_the_grid: bool):
        super().__init__()
        self.vit = deepcopy(vit)
        blocks = [OnTheGrid(block) if on_the_grid else block for block in self.vit.blocks]
        self.blocks, self.vit.blocks = nn.ModuleList(blocks), nn.Identity()
        self.on_the_grid = on_the_grid

    def forward(self, images: torch.Tensor) -> Any:
        x = self.vit.pos_drop(self.vit.patch_embed(images) + self.vit.pos_embed)
        x = x.unflatten(1, (2, 3)) if self.on_the_grid else x
        for block in self.blocks:
            x = block(x)
        x = x.flatten(1, 2) if self.on_the_grid else x
        return self.vit.head(self.vit.fc_norm(x.mean(1)))


def test_tokens_in_rows_and_columns_are_cut_off_the_graph_between_blocks_too() -> None:
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=(32, 48), class_token=False, global_pool="avg",
        embed_dim=12, depth=3, num_heads=3, num_classes=5,
    ).double()  # fmt: skip
    for parameter in vit.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    flat, on_the_grid = (Grid(vit.eval(), shape).eval() for shape in (False, True))
    expected = LeGrad()(flat, images, target=3).values
    torch.testing.assert_close(LeGrad()(on_the_grid, images, target=3).values, expected)
    assert expected.std() > 0


class Stem(nn.Module):
    """The patch embedding of a network, which may give more than tokens, or tokens first."""

    def __init__(self, embed: nn.Module, gives: str):
        super().__init__()
        self.embed, self.gives = embed, gives
        self.batches: list[int] = []

    def forward(self, images: torch.Tensor, *, scale: torch.Tensor) -> Any:
        self.batches.append(len(images))
        tokens = self.embed(images) * scale
        if self.gives == "tokens first":
            return tokens.transpose(0, 1)
        return (tokens, (2, 3)) if self.gives == "tokens and grid" else tokens


class Stemmed(nn.Module):
    """A Vision Transformer without a class token, behind a stem or with its code in place of it."""

    def __init__(self, vit: nn.Module, gives: str):
        super().__init__()
        self.vit, self.gives = deepcopy(vit), gives
        self.stem = None if gives == "no module" else Stem(self.vit.patch_embed, gives)
        self.vit.patch_embed = nn.Identity()
        self.projection = vit.patch_embed.proj

    def forward(self, images: torch.Tensor) -> Any:
        scale = 1 + images.mean((1, 2, 3))[:, None, None]
        if self.stem is None:
            weight, bias = self.projection.weight, self.projection.bias
            x = nn.functional.conv2d(images, weight, bias, 16).flatten(2).mT * scale
        else:
            x = self.stem(images, scale=scale)
        x = x[0] if self.gives == "tokens and grid" else x
        x = x.transpose(0, 1) if self.gives == "tokens first" else x
        x = self.vit.pos_drop(x + self.vit.pos_embed)
        for block in self.vit.blocks:
            x = block(x)
        return self.vit.head(self.vit.fc_norm(x.mean(1)))


@pytest.mark.parametrize(
    ("gives", "batches"),
    [("tokens", [2]), ("tokens first", [2, 8]), ("tokens and grid", [2, 8])],  # not 6, the tokens
)
def test_a_stem_runs_on_the_images_and_not_on_their_copies(gives: str, batches: list[int]) -> None:
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=(32, 48), class_token=False, global_pool="avg",
        embed_dim=12, depth=3, num_heads=3, num_classes=5,
    ).double()  # fmt: skip
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    network = Stemmed(vit, gives).eval()
    maps = LeGrad()(network, images, [1, 3]).values
    assert network.stem is not None
    assert network.stem.batches[-len(batches) :] == batches
    inline = LeGrad()(Stemmed(vit, "no module").eval(), images, [1, 3]).values
    torch.testing.assert_close(maps, inline)
    for image, target, map_of_one in zip(images, [1, 3], maps, strict=True):
        torch.testing.assert_close(LeGrad()(network, image[None], target).values[0], map_of_one)


class Layer(nn.Module):
    """A layer before the blocks that needs more of a batch than the rows of the images."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(12, 12)
        self.kept = torch.empty(0)

    def forward(self, x: torch.Tensor, *more: Any) -> Any:
        if self.kind == "writes and gives a tuple":
            x.mul_(3)
        y = self.linear(x)
        if self.kind == "writes what goes past the blocks":
            x.mul_(3)
        if self.kind == "keeps":
            self.kept = y
        match self.kind:
            case "number of each image":
                return y * more[0][:, None, None]
            case "list":
                return y + more[0][1]
            case "size of the batch":
                return y.view(more[0], -1, 12)
            case "table":
                return self.linear.weight[None, :6]
        return (y, 1) if "tuple" in self.kind else y


class Layered(nn.Module):
    """A Vision Transformer with such a layer; beside: whether it is a module of the network."""

    def __init__(self, vit: nn.Module, layer: Layer, beside: bool):
        super().__init__()
        self.vit, self.kind, self.of_layer = vit, layer.kind, [layer]
        if beside:
            self.layer = layer

    def forward(self, images: torch.Tensor) -> Any:
        (layer,) = self.of_layer
        x = before = self.vit.patch_embed(images) + self.vit.pos_embed
        more: dict[str, Any] = {
            "number of each image": images.mean((1, 2, 3)),
            "list": [x, x * 2],
            "size of the batch": len(x),
        }
        out = layer(x, more.get(self.kind))
        if self.kind == "table":
            out = x + out.repeat(len(x), 1, 1)
        x = out[0] if isinstance(out, tuple) else out
        for block in self.vit.blocks:
            x = block(x)
        x = x + before if self.kind == "writes what goes past the blocks" else x
        x = x + layer.kept if self.kind == "keeps" else x
        return self.vit.head(self.vit.fc_norm(x.mean(1)))


@pytest.mark.parametrize(
    "kind",
    [
        *("number of each image", "list", "size of the batch", "table", "keeps"),
        *("tuple behind a hook", "writes and gives a tuple", "writes what goes past the blocks"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_layer_that_needs_the_whole_batch_gets_it(kind: str, count: int) -> None:
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=(32, 48), class_token=False, global_pool="avg",
        embed_dim=12, depth=3, num_heads=3, num_classes=5,
    ).double().eval()  # fmt: skip
    layer = Layer(kind).double().eval()
    if kind == "tuple behind a hook":
        layer.register_forward_pre_hook(lambda _, args: (args[0] * 3 - 1, *args[1:]))
    images = torch.randn(count, 3, 32, 48, dtype=torch.float64)
    maps = LeGrad()(Layered(vit, layer, beside=True).eval(), images, 3).values
    expected = LeGrad()(Layered(vit, layer, beside=False).eval(), images, 3).values
    torch.testing.assert_close(maps, expected)
    assert expected.std() > 0


class WithPositions(nn.Module):
    """A Vision Transformer whose positions, as many as the copies of images, go through a layer."""

    def __init__(self, vit: nn.Module, positions: int, beside: bool):
        super().__init__()
        self.vit = vit
        layer = nn.Linear(2, 12).double()
        generator = torch.Generator().manual_seed(0)
        torch.nn.init.normal_(layer.weight, generator=generator)
        torch.nn.init.zeros_(layer.bias)
        self.positions = torch.randn(positions, 2, dtype=torch.float64, generator=generator)
        self.of_layer = [layer]
        if beside:
            self.layer = layer

    def forward(self, images: torch.Tensor) -> Any:
        (layer,) = self.of_layer
        x = self.vit.patch_embed(images) + layer(self.positions)
        x = torch.cat([self.vit.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.vit.blocks:
            x = block(x)
        return self.vit.head(self.vit.norm(x)[:, 0])


def test_a_table_as_long_as_the_batch_is_not_cut() -> None:
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=(32, 48), embed_dim=12, depth=3, num_heads=3, num_classes=5
    ).double().eval()  # fmt: skip
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)  # 6 patches, as 3 blocks of 2 images
    maps, expected = (
        LeGrad()(WithPositions(vit, 6, beside).eval(), images, 3).values for beside in (True, False)
    )
    torch.testing.assert_close(maps, expected)
