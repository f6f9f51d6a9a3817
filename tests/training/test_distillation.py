"""Distillation against the formulas of its papers, through whole runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.data import Preprocess
from vision_attn.distillation import Distillation, hard_distillation, soft_distillation
from vision_attn.errors import ModelError
from vision_attn.tokens import layout_of
from vision_attn.training import ImageClassifier, Summary, ThreadParallel
from vision_attn.training.flops import training_flops
from vision_attn.types import Model, TokenLayout

CLASSES = ["row 0", "row 1", "row 2"]


class Counted(nn.Module):
    """A linear network of the 2x2 means, which notes what it was given."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.fc = nn.Linear(3 * 4 * 4, classes)
        self.given: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> Any:
        self.given.append(images)
        return self.fc(F.adaptive_avg_pool2d(images, 4).flatten(1))


def as_model(
    network: Any,
    classes: list[str] = CLASSES,
    mean: tuple[float, float, float] = (0.5,) * 3,
    std: tuple[float, float, float] = (0.25,) * 3,
    layout: TokenLayout | None = None,
) -> Model:
    return Model(network, Preprocess((8, 8), mean, std), classes, layout, "the teacher")


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_is_the_divergence_of_the_softened_probabilities(
    temperature: float,
) -> None:
    logits, answers = torch.randn(7, 5).double(), torch.randn(7, 5).double()
    theirs, ours = ((z / temperature).softmax(1) for z in (answers, logits))
    expected = temperature**2 * (theirs * (theirs.log() - ours.log())).sum(1).mean()
    torch.testing.assert_close(
        soft_distillation(logits, answers, temperature).double(), expected, rtol=1e-5, atol=0
    )


def test_hard_distillation_is_the_cross_entropy_with_the_teachers_class() -> None:
    logits, answers = torch.randn(7, 5), torch.randn(7, 5)
    probabilities = logits.softmax(1)
    chosen = [probabilities[i, int(answers[i].argmax())] for i in range(7)]
    expected = -torch.stack(chosen).log().mean()
    torch.testing.assert_close(hard_distillation(logits, answers), expected)


@pytest.mark.parametrize("hard", [False, True])
def test_a_step_mixes_the_loss_with_the_distillation(
    hard: bool,
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
) -> None:
    teacher, data = Counted().eval(), stripes(images=16)
    distillation = Distillation(as_model(teacher), share=0.3, temperature=2.0, hard=hard)
    model = ImageClassifier(small_vit())
    with torch.no_grad():
        logits, answers = model(data.images), teacher(data.images)
    kind = hard_distillation(logits, answers) if hard else soft_distillation(logits, answers, 2.0)
    expected = 0.7 * F.cross_entropy(logits, data.labels) + 0.3 * kind
    run = trainer(callbacks=[distillation], max_steps=1, max_epochs=-1)
    run.fit(model, datamodule=data)
    assert run.callback_metrics["train/loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    plain = F.cross_entropy(model.eval()(data.images[:16]), data.labels[:16])
    assert run.callback_metrics["val/loss"].item() == pytest.approx(plain.item(), rel=1e-5)
    assert model.teaching is None


def test_the_teacher_sees_its_own_normalisation_and_gives_the_datas_classes(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    mean, std = (0.1, 0.2, 0.7), (0.3, 0.5, 0.2)
    names = ["something else", "row 2", "row 0", "row 1"]
    teacher, data = Counted(4), stripes(images=16)
    model = ImageClassifier(small_vit())
    given = as_model(teacher, names, mean, std)
    distillation = Distillation(given, share=1.0)
    with torch.no_grad():
        photos = data.images * 0.25 + 0.5  # from 0 to 1
        own = (photos - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
        expected = soft_distillation(model(data.images), teacher(own)[:, [2, 3, 1]])
    run = trainer(callbacks=[distillation], max_steps=1, max_epochs=-1)
    run.fit(model, datamodule=data)
    assert run.callback_metrics["train/loss"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_teacher_of_tokens_sees_its_own_size_and_another_the_size_of_training(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    class Sized(Counted):
        def forward(self, images: torch.Tensor) -> Any:
            sizes.append(tuple(images.shape[2:]))
            return super().forward(images)

    sizes: list[Any]
    sizes, found = [], []
    layout = layout_of(small_vit(), (8, 8))
    for name, tokens in (("tokens", layout), ("convolutions", None)):
        teacher = as_model(Sized(), layout=tokens)
        teacher = replace(
            teacher, preprocess=replace(cast(Any, teacher.preprocess), input_size=(12, 12))
        )
        run = trainer(name, callbacks=[Distillation(teacher)], max_steps=1, max_epochs=-1)
        run.fit(ImageClassifier(small_vit()), datamodule=stripes(images=16))
        found.append(sizes.pop())
    assert found == [(12, 12), (8, 8)]


def test_images_that_come_again_are_answered_once(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    teacher = Counted()
    run = trainer(callbacks=[Distillation(as_model(teacher))], max_epochs=3)
    run.fit(ImageClassifier(small_vit()), datamodule=stripes())
    assert sum(map(len, teacher.given)) == 48


@pytest.mark.parametrize("cache", [False, True])
def test_the_teachers_work_is_work_of_the_run(
    cache: bool,
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """By hand: 2 x 48 x 3 operations an answer, and 48 or 3 x 48 answers."""
    summary, network, data = Summary(tmp_path), small_vit(), stripes()
    run = trainer(callbacks=[Distillation(as_model(Counted()), cache=cache), summary], max_epochs=3)
    run.fit(ImageClassifier(network), datamodule=data)
    teacher = 2 * 48 * 3 * (48 if cache else 3 * 48) / 1e15
    assert summary.figures["pflop teacher"] == pytest.approx(teacher, rel=1e-12)
    images = next(iter(data.train_dataloader()))[0][:2]
    own = training_flops(network, images) / 2 * 3 * 48 / 1e15
    assert summary.figures["pflop"] == pytest.approx(own + teacher, rel=1e-9)
    assert summary.rows["work"].endswith(" of it the teacher's")


def test_answers_are_not_kept_where_no_image_comes_again(
    trainer: Callable[..., Any], stripes: Any, small_vit: Callable[..., Any]
) -> None:
    class Noisy(stripes):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: Any) -> tuple[Any, Any]:
            images, labels = batch
            return images + 0.01 * torch.randn_like(images), labels

    distillation = Distillation(as_model(Counted()))
    kept = []

    class Watch(ThreadParallel):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            assert distillation._answers is not None
            kept.append(distillation._answers.kept and len(distillation._answers.kept))

    run = trainer(callbacks=[distillation, Watch()], max_epochs=3)
    run.fit(ImageClassifier(small_vit()), datamodule=Noisy())
    assert kept == [48, 96, None]


def test_parts_on_threads_give_the_same_answers(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    losses = []
    for name, parts in (("whole", []), ("parts", [ThreadParallel(threads=2, least=0.0)])):
        distillation = Distillation(as_model(Counted()))
        run = trainer(name, callbacks=[*parts, distillation], max_epochs=2)
        run.fit(ImageClassifier(small_vit()), datamodule=stripes())
        losses.append(run.callback_metrics["train/loss"].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_teacher_comes_from_a_checkpoint(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    trainer("first").fit(ImageClassifier(small_vit()), datamodule=stripes())
    distillation = Distillation(tmp_path / "first" / "best.ckpt", share=1.0)
    run = trainer("second", callbacks=[distillation], max_epochs=1)
    run.fit(ImageClassifier(small_vit(dim=24)), datamodule=stripes())
    assert 0 < run.callback_metrics["train/loss"] < 1.1


def test_what_cannot_be_distilled_is_refused_in_words(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=r"share must be in 0\.\.1, got 1\.5"):
        Distillation("timm:resnet18", share=1.5)
    with pytest.raises(ValueError, match=r"temperature must be above 0, got 0\.0"):
        Distillation("timm:resnet18", temperature=0.0)
    wrong = "the teacher the teacher has no class 'row 1'.* its own are a, row 0, row 2"
    teacher = as_model(Counted(), ["a", "row 0", "row 2"])
    with pytest.raises(ValueError, match=wrong):
        trainer(callbacks=[Distillation(teacher)]).fit(
            ImageClassifier(small_vit()), datamodule=stripes()
        )
    with pytest.raises(ModelError, match=r"nothere\.ckpt: no such file"):
        trainer("other", callbacks=[Distillation("nothere.ckpt")]).fit(
            ImageClassifier(small_vit()), datamodule=stripes()
        )
