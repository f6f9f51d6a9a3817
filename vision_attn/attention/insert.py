"""Gates for a CNN that exists already.

Axes: b batch, c channels, h height, w width.
"""

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from vision_attn.arguments import checked
from vision_attn.attention.gates import CBAM, Gate
from vision_attn.hooks import Hooks, apart
from vision_attn.inference import infer

__all__ = ["add_gates"]

NAME = "attention_gate"


@checked()
def add_gates(
    network: nn.Module,
    gate: Callable[..., nn.Module],
    image_size: tuple[int, int] = (224, 224),
) -> nn.Module:
    """Put a gate after every block of a CNN, in place, and return the network.

    A block is the smallest module that holds a spatial convolution and another layer: a residual
    block, an inception block, ... Where there are none, as in VGG, each convolution is one. A
    gate becomes the child `attention_gate` of its block, so all other parameters keep their names.
    A gate with `neutralize` starts as the identity, so the network's outputs stay as they were
    until training changes them.

    Args:
        network: A CNN without gates.
        gate: Called as `gate(channels=c)`.
        image_size: (height, width) in pixels of the images that the network takes; one pass over an
            empty image, in eval mode, counts the channels of each block.

    Returns:
        The network itself.

    Raises:
        ValueError: It has no convolution, or has gates already.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.attention import SqueezeExcite, add_gates
        >>> cnn = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3))
        >>> gated = add_gates(cnn, SqueezeExcite, image_size=(8, 8))
        >>> [name for name, module in gated.named_modules() if isinstance(module, SqueezeExcite)]
        ['0.attention_gate', '2.attention_gate']
    """
    if any(hasattr(module, NAME) for module in network.modules()):
        raise ValueError(f"{type(network).__name__} already has gates")
    blocks = find_blocks(network)
    if not blocks:
        raise ValueError(f"{type(network).__name__} has no convolution to put a gate after")
    weight = next(network.parameters())
    for block, channels in output_channels(network, blocks, image_size).items():
        new = gate(channels=channels).to(weight.device, weight.dtype)
        if isinstance(new, Gate | CBAM):
            new.neutralize()
        block.add_module(NAME, new)
        block.register_forward_hook(_pass_gate)
    return network


def _pass_gate(block: nn.Module, args: tuple[object, ...], output: Tensor) -> Tensor:
    return block.get_submodule(NAME)(output)


def find_blocks(network: nn.Module) -> list[nn.Module]:
    """List the blocks of a CNN, in the order they are registered."""
    blocks = [
        module
        for module in network.modules()
        if module is not network
        and is_block(module)
        and not any(map(is_block, descendants(module)))
    ]
    return blocks or [module for module in network.modules() if is_spatial(module)]


def is_block(module: nn.Module) -> bool:
    """Whether a module that is no mere list holds a spatial convolution and another layer."""
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return False
    layers = [layer for layer in descendants(module) if isinstance(layer, nn.Conv2d | nn.Linear)]
    return len(layers) > 1 and any(map(is_spatial, layers))


def is_spatial(module: nn.Module) -> bool:
    """Whether a module is a convolution with a kernel larger than 1 x 1."""
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1


def descendants(module: nn.Module) -> Iterable[nn.Module]:
    """Iterate over a module's descendants."""
    return (other for other in module.modules() if other is not module)


def output_channels(
    network: nn.Module, blocks: list[nn.Module], image_size: tuple[int, int]
) -> dict[nn.Module, int]:
    """Count the output channels of each block that returns one feature map."""
    channels: dict[nn.Module, int] = {}

    def record_channels(block: nn.Module, args: tuple[object, ...], output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4:
            channels[block] = output.size(1)

    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    image = first.weight.new_zeros(1, first.in_channels, *image_size)
    with apart(), Hooks() as hooks:
        for block in blocks:
            hooks.after(block, record_channels)
        infer(network, image)
    return channels
