"""Distillation: a network learns from the answers of a trained one as well as from the labels.

Axes: b batch, c channels, h height, w width, k classes.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Int, Integer
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.data import Batches, ImageData, InOrder, Preprocess
from vision_attn.data.draws import Draws
from vision_attn.errors import quoted
from vision_attn.hub import load_model
from vision_attn.inference import eval_mode
from vision_attn.training import ImageClassifier
from vision_attn.training.cpu.threads import InParts
from vision_attn.training.flops import forward_flops
from vision_attn.types import Images, Logits, Model

__all__ = ["Distillation", "hard_distillation", "soft_distillation"]

MOST_KEPT = 2**24  # numbers in a checkpoint
LOOKED_AT = 16  # images, to know a data set again


class Distillation(Callback):
    """A teacher's answers beside the labels: (1 - share) * loss + share * distillation.

    Of logits z of the network and t of the teacher, for the same images as augmented: soft: T^2
    KL(softmax(t / T) || softmax(z / T)), T the temperature (Hinton 2015, arXiv:1503.02531); hard:
    the cross-entropy with the teacher's class, argmax t (DeiT, Touvron 2021, arXiv:2012.12877,
    equation 3, without its distillation token).

    Validation and test have the plain loss. The teacher's operations count as work of the run. The
    start of a fit raises ValueError for a module that is not an ImageClassifier, and a teacher that
    lacks one of the data's classes; with `fixed` also for a loss that takes no shares of classes,
    and data whose images have several labels or are cropped at random as they are read; and
    ModelError for a teacher that cannot be loaded.

    Args:
        teacher: Whatever `load_model` takes (a checkpoint, vision_attn:NAME, timm:NAME ...), or a
            loaded model. It sees the images in its own normalisation; one of tokens sees them at
            its own input size, one of convolutions at the size at which the network learns. Its
            classes may be in another order, and more.
        share: Of the distillation in the loss, 0 to 1.
        temperature: T, of soft distillation.
        hard: Whether to use the teacher's class instead of its probabilities.
        cache: Whether to keep the teacher's logits of each image that comes again to the bit, as
            without augmentation, or with flips alone. If none has come again after two epochs,
            nothing is kept.
        fixed: Whether the teacher answers before the first epoch and never again, for each training
            image as it is and mirrored; the mean of both logits is the answer for every augmented
            view (the fixed teacher of Beyer et al. 2022, arXiv:2106.05237). The label becomes (1 -
            share) * label + share * softmax(answer), which `mix` mixes and the loss smooths as any
            label; train/top1 is then the share of images whose largest logit is that of the largest
            number in this mixture. Far less work, for images that augmentation changes little. Of
            several processes each has all answers from its own teacher. A run that goes on takes
            them from its checkpoint, if there are no more than 2^24 numbers, and teacher and data
            are still the same.

    Raises:
        ValueError: `share` is not from 0 to 1, `temperature` not above 0, or with `fixed` other
            than 1.

    Examples:
        >>> from vision_attn.distillation import Distillation
        >>> Distillation("timm:resnet18", share=0.5, hard=True).teacher
        'timm:resnet18'
    """

    def __init__(
        self,
        teacher: str | Path | Model,
        share: float = 0.5,
        temperature: float = 1.0,
        hard: bool = False,
        cache: bool = True,
        fixed: bool = False,
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in 0..1, got {share}")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if fixed and temperature != 1:
            raise ValueError(f"fixed answers need a temperature of 1, got {temperature}")
        self.teacher = teacher
        self.share, self.temperature, self.hard, self.cache = share, temperature, hard, cache
        self.fixed = fixed
        self._answers: _Answers | None = None
        self._kept = _FixedAnswers()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, ImageClassifier):
            raise ValueError(
                "distillation needs an ImageClassifier, whose loss it adds to, "
                f"got {type(pl_module).__name__}"
            )
        whole = isinstance(self.teacher, Model)
        model: Any = self.teacher if whole else load_model(self.teacher)  # type: ignore[arg-type]
        self._answers = _Answers(
            model,
            Preprocess(**pl_module.preprocess),
            pl_module.classes,
            pl_module.run if isinstance(pl_module.run, InParts) else None,
            self.cache and not self.fixed,
        ).to(pl_module.device)
        pl_module.teaching = None if self.fixed else self._loss
        pl_module.teacher_flops = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not (self.fixed and self._answers and isinstance(pl_module, ImageClassifier)):
            return
        data: Any = getattr(trainer, "datamodule", None)
        if not isinstance(data, ImageData):
            raise ValueError(
                "fixed answers need the images of a vision_attn.data.ImageData, "
                f"got {type(data).__name__}"
            )
        labels = data.splits.train.labels
        if labels.ndim != 1:
            raise ValueError(
                "fixed answers need one class per image, these have several: fixed=False"
            )
        _check_loss(pl_module.loss, len(pl_module.classes))
        of = _digest(self._answers, data)
        if self._kept.of != of:
            self._kept.of = ""
            context = trainer.precision_plugin.forward_context
            self._kept.logits = fixed_answers(self._answers, data, context, trainer.is_global_zero)
            self._kept.of, self._kept.flops = of, self._answers.flops
        pl_module.teacher_flops = self._kept.flops
        self._answers.close()  # it has answered
        self._answers = None
        data.targets = self._targets(labels)

    def _targets(self, labels: Int[Tensor, " n"]) -> Float[Tensor, "n k"]:
        """(1 - share) * label + share * answer."""
        assert self._kept.logits is not None
        targets = self._kept.logits.float()
        if self.hard:
            best = targets.argmax(1, keepdim=True)
            targets.zero_().scatter_(1, best, 1.0)
        else:
            targets = targets.softmax(1)
        targets *= self.share
        targets[torch.arange(len(labels)), labels] += 1 - self.share
        return targets

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._answers and trainer.current_epoch >= 2:
            self._answers.forget_unless_used()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, ImageClassifier):
            pl_module.teaching = None
        if self.fixed and isinstance(data := getattr(trainer, "datamodule", None), ImageData):
            data.targets = None
        if self._answers:
            self._answers.close()
            self._answers = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_fit_end(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        if self._answers and isinstance(pl_module, ImageClassifier):
            pl_module.teacher_flops = self._answers.flops

    def state_dict(self) -> dict[str, Any]:
        """The fixed answers and what they are of, if they are no more than 2^24 numbers."""
        logits = self._kept.logits
        if not self.fixed or logits is None or logits.numel() > MOST_KEPT:
            return {}
        return {"answers": logits, "of": self._kept.of}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._kept = _FixedAnswers(state_dict.get("answers"), state_dict.get("of", ""))

    def _loss(self, loss: Tensor, logits: Logits, images: Images) -> Tensor:
        assert self._answers is not None
        answers = self._answers(images)
        if self.hard:
            distilled = hard_distillation(logits, answers)
        else:
            distilled = soft_distillation(logits, answers, self.temperature)
        return (1 - self.share) * loss + self.share * distilled


@dataclass
class _FixedAnswers:
    """A teacher's answers for all training images, what they are of, and the operations spent."""

    logits: Float16[Tensor, "n k"] | None = None
    of: str = ""
    flops: int = 0  # in this process

    def __deepcopy__(self, memo: dict[int, object]) -> "_FixedAnswers":
        """Itself: what a rehearsal's copy of the callback has answered, the run need not."""
        return self


def _check_loss(loss: nn.Module, k: int) -> None:
    """Raise ValueError for a loss that takes no shares of classes, before the teacher answers."""
    device = next((buffer.device for buffer in loss.buffers()), None)
    try:
        loss(torch.zeros(2, k, device=device), torch.full((2, k), 1 / k, device=device))
    except Exception as error:
        raise ValueError(
            "fixed answers need a loss that takes shares of the classes (b k) as labels, such as "
            f"torch.nn.CrossEntropyLoss, got {type(loss).__name__}: fixed=False takes any loss"
        ) from error


def _digest(answers: "_Answers", data: ImageData) -> str:
    """Of the teacher's weights, the labels and some of the images: it changes with any of them."""
    train = data.splits.train
    some = _spread(len(train))
    pixels = train.fetch(some, Draws(data.seed, 0, some))
    found = blake2b(repr((len(train), answers.size, answers.places)).encode(), digest_size=16)
    for numbers in (*answers.state_dict().values(), train.labels, pixels):
        found.update(numbers.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def _spread(count: int) -> Integer[np.ndarray, " some"]:
    return np.unique(np.linspace(0, count - 1, min(LOOKED_AT, count)).round().astype(int))


@torch.no_grad()
def fixed_answers(
    answers: "_Answers",
    data: ImageData,
    context: Callable[[], AbstractContextManager[object]],
    shown: bool = True,
) -> Float16[Tensor, "n k"]:
    """The answers for all training images, each the mean of the image's and its mirror image's.

    Each less its largest logit, which leaves its softmax as it is and keeps its digits. context: in
    which the teacher computes. shown: with a progress bar, where there is a terminal.
    """
    train = data.splits.train
    some = _spread(len(train))
    first, second = (train.fetch(some, Draws(data.seed, epoch, some)) for epoch in (0, 1))
    if not torch.equal(first, second):
        raise ValueError(
            "fixed answers need images that come the same in every epoch: these are cropped at "
            "random as they are read; fixed=False lets the teacher answer for each crop"
        )
    found = []
    batches = Batches(train, InOrder(len(train), data.batch_size), data.seed)
    for batch in track(
        batches,
        "the teacher answers",
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    ):
        images = data.for_evaluation(batch.to(answers.gain.device))[0]
        with context():
            logits = (answers(images) + answers(images.flip(3))) / 2
        found.append((logits - logits.amax(1, keepdim=True)).half().cpu())
    return torch.cat(found)


def soft_distillation(logits: Logits, answers: Logits, temperature: float = 1.0) -> Tensor:
    """T^2 KL(softmax(answers / T) || softmax(logits / T)), the mean over the batch."""
    ours, theirs = (F.log_softmax(z.float() / temperature, 1) for z in (logits, answers))
    return temperature**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def hard_distillation(logits: Logits, answers: Logits) -> Tensor:
    """Cross-entropy of the logits with the classes of the answers, argmax; the batch's mean."""
    return F.cross_entropy(logits.float(), answers.argmax(1))


class _Answers(nn.Module):
    """A teacher's logits, in the order of the data's classes, of images normalised for the data."""

    gain: Tensor
    offset: Tensor

    def __init__(
        self,
        model: Model,
        given: Preprocess,
        classes: Any,
        parts: InParts | None,
        cache: bool,
    ) -> None:
        super().__init__()
        self.network = model.network
        self.size = model.preprocess.input_size if model.layout else None
        self.places = _places(model, list(classes))
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (given.mean, given.std))
        wanted = model.preprocess
        own_mean, own_std = (torch.tensor(n)[:, None, None] for n in (wanted.mean, wanted.std))
        self.register_buffer("gain", std / own_std)
        self.register_buffer("offset", (mean - own_mean) / own_std)
        self.parts = InParts(parts.threads, least=parts.least) if parts else None
        self.kept: dict[bytes, Tensor] | None = {} if cache else None
        self.used = False
        self.flops = 0  # of all answers so far
        self._flops: dict[torch.Size, int] = {}  # of an image of each shape

    @torch.no_grad()
    def forward(self, images: Images) -> Float[Tensor, "b k"]:
        with eval_mode(self.network):
            return self._answer(images)

    def _answer(self, images: Images) -> Float[Tensor, "b k"]:
        images = images.float()  # whatever its student computes with
        if self.kept is None:
            return self._of(images)
        keys = [blake2b(i.contiguous().numpy(), digest_size=16).digest() for i in images.cpu()]
        new = [i for i, key in enumerate(keys) if key not in self.kept]
        self.used |= len(new) < len(keys)
        if new:
            self.kept |= zip((keys[i] for i in new), self._of(images[new]).cpu(), strict=True)
        return torch.stack([self.kept[key] for key in keys]).to(images.device)

    def forget_unless_used(self) -> None:
        """Stop keeping answers where no image has come twice."""
        if not self.used:
            self.kept = None

    def close(self) -> None:
        """End the threads."""
        if self.parts:
            self.parts.close()

    def _of(self, images: Images) -> Float[Tensor, "b k"]:
        images = torch.addcmul(self.offset, images, self.gain)
        if self.size and tuple(images.shape[2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True)
        shape = images.shape[1:]
        if shape not in self._flops:
            self._flops[shape] = forward_flops(self.network, images[:1])
        self.flops += self._flops[shape] * len(images)
        run = self.parts or nn.Module.__call__
        return run(self.network, images)[:, self.places].float()


def _places(model: Model, classes: list[str]) -> list[int]:
    """Where the teacher has each of the classes; ValueError, with its names, where it lacks one."""
    if model.classes == classes:
        return list(range(len(classes)))
    if lost := [name for name in classes if name not in model.classes]:
        have = ", ".join(model.classes[:5]) + (", ..." if len(model.classes) > 5 else "")
        raise ValueError(
            f"the teacher {model.name} has no class {quoted(lost[0])}: expected a teacher that "
            "knows the "
            f"data's classes, its own are {have}"
        )
    return [model.classes.index(name) for name in classes]
