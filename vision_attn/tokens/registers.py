"""Registers at test time: what outlying patches hold goes to a token of its own, without training.

Jiang et al. 2025 (Vision Transformers Don't Need Trained Registers, arXiv:2506.08010): few neurons
of the MLPs write the large norms. They are those with the largest mean activation where outliers
are (algorithm 1), up to the block that makes the outliers:

    score(block, neuron) = mean over photos of the mean over the photo's outliers of |activation|

At test time a token of zeros joins the sequence, and in each of these neurons, after its
activation,

    register <- max over patches of the activation,   patches <- 0

so that the norms come about at the register. The class token and others stay as they are.

Axes: b images, n tokens, p patches, d width of a token, a neurons.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.hooks import Hooks, apart
from vision_attn.inference import infer, modules_of
from vision_attn.tokens.blocks import TokenBlock, first_tensor
from vision_attn.types import Images, TokenLayout

__all__ = ["Neuron", "TestTimeRegisters", "neuron_scores", "watch_neurons"]

Neuron = tuple[str, int]  # the name of a layer whose input are neurons, and which of these


class TestTimeRegisters(nn.Module):
    """A network with one more token that takes over chosen neurons of its patches.

    Args:
        network: The network itself, not a copy.
        first: The name of the block before which the token joins.
        last: The name of the block after which it leaves.
        neurons: (name of the MLP's last linear layer, neuron) each.
        layout: Of the network's own tokens.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.registers import TestTimeRegisters
        >>> vit = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3).eval()
        >>> neurons = [("blocks.0.mlp.fc2", 7)]
        >>> moved = TestTimeRegisters(vit, "blocks.0", "blocks.1", neurons, vit.layout((16, 16)))
        >>> moved(torch.rand(2, 3, 16, 16)).shape, moved.layout((16, 16)).beside
        (torch.Size([2, 5]), [0, 5])
    """

    __test__ = False  # to pytest

    def __init__(
        self,
        network: nn.Module,
        first: str,
        last: str,
        neurons: Sequence[Neuron],
        layout: TokenLayout,
    ):
        super().__init__()
        self.network = network
        self.first, self.last = first, last
        self.neurons: dict[str, list[int]] = defaultdict(list)
        for name, neuron in neurons:
            self.neurons[name].append(neuron)
        self.own_layout = layout
        names = set(modules_of(network).values())
        if missing := [name for name in (first, last, *self.neurons) if name not in names]:
            raise ValueError(f"{type(network).__name__} has no module {', '.join(missing)}")

    def layout(self, image_size: tuple[int, int]) -> TokenLayout | None:
        """The layout of the tokens, the register last; the image size is that of construction."""
        own = self.own_layout
        return TokenLayout(
            own.prefix, own.grid, own.pool, own.class_token, (*own.registers, own.tokens)
        )

    def forward(self, images: Images) -> Any:
        modules = {name: module for module, name in modules_of(self.network).items()}
        with Hooks() as hooks:
            hooks.before(modules[self.first], _join, with_kwargs=True)
            for name, neurons in self.neurons.items():
                hooks.before(modules[name], self._move(neurons))
            hooks.after(modules[self.last], _leave)
            return self.network(images)

    def _move(self, neurons: Sequence[int]) -> Callable[..., Any]:
        patches = self.own_layout.patches

        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x = args[0]
            channels = torch.tensor(neurons, dtype=torch.long, device=x.device)
            largest = x[:, patches].index_select(2, channels).amax(1, keepdim=True)
            if not largest.requires_grad:  # the tracer of paths counts it as the register's own
                largest = torch.from_numpy(largest.cpu().double().numpy()).to(x)
            mask = torch.ones(x.shape[1:], dtype=x.dtype, device=x.device)
            own = torch.zeros(x.shape[1], 1, dtype=x.dtype, device=x.device)
            mask[
                torch.tensor([*patches, -1], dtype=torch.long, device=x.device)[:, None], channels
            ] = 0.0
            own[-1] = 1.0
            moved = largest.new_zeros(len(x), 1, x.shape[2]).index_copy(2, channels, largest)
            return (x * mask + own * moved, *args[1:])

        return hook


def _join(
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put a token of zeros after the others."""

    def longer(x: Tensor) -> Tensor:
        return torch.cat([x, torch.zeros_like(x[:, :1])], dim=1)

    if args:
        return (longer(args[0]), *args[1:]), kwargs
    name = next(key for key, value in kwargs.items() if isinstance(value, Tensor))
    return args, {**kwargs, name: longer(kwargs[name])}


def _leave(_module: nn.Module, _args: tuple[Any, ...], out: Any) -> Any:
    """Take the last token off."""
    if isinstance(out, tuple):
        return (out[0][:, :-1], *out[1:])
    return out[:, :-1]


@contextmanager
def watch_neurons(blocks: Sequence[TokenBlock]) -> Iterator[dict[str, Tensor]]:
    """Keep the neurons (b n a) of each block's MLP while this is open, by the block's name."""
    neurons: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., Any]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_tensor(args, kwargs)
            if x is not None:
                neurons[name] = x.detach()

        return hook

    with Hooks() as hooks:
        for block in blocks:
            if block.mlp_out is not None:
                hooks.before(block.mlp_out, keep(block.name), with_kwargs=True)
        yield neurons


def neuron_scores(
    run: Callable[[Images], Any],
    batches: Iterable[Images],
    blocks: Sequence[TokenBlock],
    outliers: Callable[[], Bool[Tensor, "b n"]],
) -> dict[str, Float[Tensor, " a"]]:
    """Score the neurons of each block by how active they are where outliers are (algorithm 1).

    A photo without outliers does not count.

    Args:
        run: Runs the network.
        batches: What to run it on.
        blocks: Those whose MLPs are searched.
        outliers: After each run, which tokens of it are outliers.

    Returns:
        By the block's name the score of each neuron; empty where no photo has outliers.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    for images in batches:
        with apart(), watch_neurons(blocks) as neurons:
            infer(run, images)
        where = outliers()
        numbers = where.sum(1)
        has = numbers > 0
        count += int(has.sum())
        for name, active in neurons.items():
            inside = (active.abs() * where[..., None].to(active)).sum(1)[has]
            mean = inside / numbers[has, None].to(inside)
            total = mean.double().sum(0).cpu()
            sums[name] = sums[name] + total if name in sums else total
    return {name: total / count for name, total in sums.items()} if count else {}
