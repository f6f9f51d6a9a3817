"""LibraGradient beside a plain forward and backward pass, and gradient methods of other packages.

    python benchmarks/libra.py [SIDE ...]                 image sides (default: 224 512)

ViT-S/16 of timm and the same network of torchvision, one image, float32, for one class. The plain
pass goes forward, and back from the logit to the tokens before the first block. Ways take turns in
one process: least, median and most. Memory is what each way adds to a process of its own at its
peak. Peers: pip install captum lxt. A peer that is absent is named, and left out.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import timm
import torch
from alone import Ways, add_arguments, compare
from timing import Clock, KeyRatio
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from vision_attn.methods import LibraGradient
from vision_attn.tokens.gradients.levels import find_levels

CLASS = 3
PATCHED = (nn.GELU, nn.LayerNorm, nn.MultiheadAttention)  # by lxt, for good
SOURCES = ("timm", "torchvision")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sides", nargs="*", type=int, default=[224, 512], metavar="SIDE")
    add_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks must not have run threads
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads, one image")
    for peer in ("captum.attr", "lxt.efficient"):
        if reason := why_absent(peer):
            print(f"left out: {peer}: {reason}")
    for source in SOURCES:
        for side in args.sides:
            print(f"\n## {source}, {side} x {side} pixels\n", flush=True)
            compare(contenders, (side, args.device, source), args, 10 * args.rounds)


@cache
def why_absent(name: str) -> str:
    """Say why a package cannot be imported; empty where it can."""
    try:
        import_module(name)
    except ImportError as error:
        return str(error).splitlines()[0]
    return ""


def network_of(source: str, side: int) -> tuple[nn.Module, nn.Module]:
    """Build ViT-S/16 with random weights; also its first block."""
    if source == "timm":
        network = timm.create_model("vit_small_patch16_224", img_size=side).eval()
        nn.init.normal_(network.head.weight, std=0.2)
        return network, network.blocks[0]
    network = VisionTransformer(side, 16, 12, 6, 384, 1536).eval()
    nn.init.normal_(network.heads.head.weight, std=0.2)
    return network, network.encoder.layers[0]


def contenders(side: int, device: str, source: str) -> Ways:
    network, block = network_of(source, side)
    network.requires_grad_(False).to(device)
    image = torch.randn(1, 3, side, side, device=device)
    find_levels(network, image)  # once a network and size, as in any series of photos
    ways: Ways = {
        "forward and backward": lambda: plain(network, block, image),
        "LibraGradient": lambda: LibraGradient()(network, image, CLASS),
        "LibraGradient(check=True)": lambda: LibraGradient(check=True)(network, image, CLASS),
    }
    if not why_absent("captum.attr"):
        from captum.attr import InputXGradient

        products = InputXGradient(network)
        leaf = image.clone().requires_grad_()
        ways["captum InputXGradient"] = lambda: products.attribute(leaf, target=CLASS)
    if source == "torchvision" and not why_absent("lxt.efficient"):
        ways["lxt"] = lambda: by_lxt(network, image)
    return ways


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """LibraGradient of timm's ViT-S/16 at 224 pixels."""
    ways = contenders(224, "cpu", "timm")
    passes = ways["forward and backward"]
    yield clock.ratio("LibraGradient / forward and backward pass", ways["LibraGradient"], passes)


def plain(network: nn.Module, block: nn.Module, image: Tensor) -> Tensor:
    """The gradient of a logit with respect to the tokens before the first block."""
    kept: list[Tensor] = []

    def leaf(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        kept.append(args[0].detach().requires_grad_())
        return kept[0], *args[1:]

    handle = block.register_forward_pre_hook(leaf)
    try:
        logit = network(image)[0, CLASS]
    finally:
        handle.remove()
    return torch.autograd.grad(logit, kept)[0]


def by_lxt(network: nn.Module, image: Tensor) -> Tensor:
    """Image times gradient under the rules of lxt for torchvision's ViT."""
    with patched():
        leaf = image.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network(leaf)[0, CLASS], leaf)
    return (leaf.detach() * gradient).sum(1)


@contextmanager
def patched() -> Iterator[None]:
    """Let lxt change torch's classes, and take that back."""
    from lxt.efficient import monkey_patch
    from lxt.efficient.models.vit_torch import cp_LRP
    from torchvision.models import vision_transformer

    before: list[tuple[type, str, Callable[..., object]]] = [
        (kind, "forward", kind.forward) for kind in PATCHED
    ]
    monkey_patch(vision_transformer, cp_LRP)
    try:
        yield
    finally:
        for kind, name, method in before:
            setattr(kind, name, method)


if __name__ == "__main__":
    main()
