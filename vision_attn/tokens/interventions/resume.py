"""Run a network again from one module on, where what ran before it cannot have changed.

A network that predicts is a function of its input: of two runs on the same images, what runs before
the first change gives the same in both. It is therefore not run again: the modules there give what
they gave.

Axes: b batch, c channels, h height, w width.
"""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vision_attn.hooks import sharing_copy
from vision_attn.inference import modules_of
from vision_attn.tokens.interventions.anatomy import Anatomy
from vision_attn.tokens.interventions.editor import Changes, Editor, Kept

__all__ = ["Resumable"]

Output = TypeVar("Output")


class Resumable:
    """A network whose later modules can be run alone, on the images that it saw last.

    Args:
        network: The network; a copy that shares its weights is run.
        anatomy: Its attention calls and branches.

    Attributes:
        whole: Why all of it is run each time; None where it need not be.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.interventions.anatomy import anatomy_of
        >>> from vision_attn.tokens.interventions.editor import Changes
        >>> from vision_attn.tokens.interventions.resume import Resumable
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> images = torch.rand(2, 3, 16, 16)
        >>> resumable = Resumable(network.eval(), anatomy_of(network, images))
        >>> run = lambda: resumable.network(images)
        >>> plain = resumable.first(run)
        >>> changed = resumable.again(Changes(heads={1: {0: "zero"}}), run)
        >>> changed.shape, resumable.skipped[0]
        (torch.Size([2, 5]), 'patch_embed')
    """

    def __init__(self, network: nn.Module, anatomy: Anatomy):
        self.anatomy = anatomy
        self.whole: str | None = None
        self.skipped: list[str] = []
        self._order: list[str] = []
        self._kept: dict[str, Any] = {}
        self._start: int | None = None
        try:
            self.network = sharing_copy(network)
        except Exception as error:  # of its own code
            self.network, self.whole = network, f"it cannot be copied ({type(error).__name__})"
            return
        if any(layer.turn is not None or not layer.module for layer in anatomy.layers):
            self.whole = "its attention calls are not made by one module each"
            return
        names = {name: module for module, name in modules_of(self.network).items()}
        for name in parts_of(names, [layer.module for layer in anatomy.layers]):
            module: Any = names[name]
            module.forward = self._step(name, module.forward)

    def first(self, run: Callable[[], Output]) -> Output:
        """Run all of it, and keep what its modules give."""
        self._order, self._kept, self._start = [], {}, None
        return run()

    def again(
        self, changes: Changes, run: Callable[[], Output], source: Kept | None = None
    ) -> Output:
        """Run it on the same images, with changes, from the first module that these touch on."""
        self._start = self.start_of(changes)
        try:
            with Editor(self.network, self.anatomy, changes, source).open():
                return run()
        finally:
            self._start = None

    def prove(self, run: Callable[[], Tensor], plain: Tensor) -> None:
        """Run all from the first attention call on again; where it differs, run the whole."""
        if self.whole is None and self._order:
            called = [layer.module for layer in self.anatomy.layers]
            self._start = min(
                (position for name in called for position in self._holding(name)), default=0
            )
            try:
                same = torch.allclose(run(), plain, rtol=1e-4, atol=1e-5)
            finally:
                self._start = None
            if not same:
                self.whole = "it gives other numbers when its end is run a second time"

    def start_of(self, changes: Changes) -> int:
        """Find the index, in the order of a run, of the first module that changes touch."""
        if self.whole is not None:
            return 0
        touched = [self.anatomy.layers[position].module for position in changes.layers]
        touched += [spot.module for spot in changes.spots]
        positions = []
        for name in touched:
            holds = [
                position
                for position, part in enumerate(self._order)
                if f"{name}.".startswith(f"{part}.")
            ]
            if not holds:
                return 0
            positions += holds
        return min(positions, default=0)

    def _holding(self, name: str) -> list[int]:
        """The indices of the modules that contain a module."""
        return [
            position
            for position, part in enumerate(self._order)
            if f"{name}.".startswith(f"{part}.")
        ]

    def _step(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._start is not None:
                if name in self._kept and name in self._order[: self._start]:
                    return copied(self._kept[name])
                return forward(*args, **kwargs)
            out = forward(*args, **kwargs)
            self._keep(name, out)
            return out

        return step

    def _keep(self, name: str, out: Any) -> None:
        if name in self._order:  # it runs several times
            self._kept.pop(name, None)
            return
        self._order.append(name)
        self.skipped = self._order[:-1]
        if isinstance(out, Tensor) or (
            type(out) is tuple and all(x is None or isinstance(x, Tensor) for x in out)
        ):
            self._kept[name] = copied(out)


def copied(out: Any) -> Any:
    """Copy a module's output, as later modules may change it in place."""
    if isinstance(out, tuple):
        return tuple(map(copied, out))
    return out if out is None else out.clone()


def parts_of(names: dict[str, nn.Module], attending: list[str]) -> list[str]:
    """Cut a network into the largest modules with one attention call each, and all others.

    Examples:
        >>> from vision_attn.models import ViT
        >>> from vision_attn.inference import modules_of
        >>> from vision_attn.tokens.interventions.resume import parts_of
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> names = {name: module for module, name in modules_of(network).items()}
        >>> parts_of(names, ["blocks.0.attn.attend", "blocks.1.attn.attend"])[:3]
        ['patch_embed', 'blocks.0', 'blocks.1']
    """
    calls: Counter[str] = Counter()
    for name in attending:
        pieces = name.split(".")
        calls.update({".".join(pieces[:end]) for end in range(len(pieces))} | {name})
    shared = {name for name in names if calls[name] > 1 or not name}
    return [
        name for name in names if name and name not in shared and name.rpartition(".")[0] in shared
    ]
