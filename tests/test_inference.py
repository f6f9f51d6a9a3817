"""Whatever runs a network predicts with it, in eval mode, and leaves it as it was."""

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import vision_attn
from vision_attn import evaluate
from vision_attn.attention import CBAM, add_gates
from vision_attn.data import Preprocess
from vision_attn.devices import forward_format
from vision_attn.evaluate import Removal
from vision_attn.inference import eval_mode
from vision_attn.methods import (
    Explainer,
    GradCAM,
    HiResCAM,
    IntegratedGradients,
    LeGrad,
    LibraGradient,
    Relevance,
    choose_methods,
    fitting_methods,
    gate_values,
)
from vision_attn.models import SEResNet, ViT
from vision_attn.runs.explain import predict, prepare
from vision_attn.sequences import Seq2Seq, beam, greedy
from vision_attn.tokens import probe
from vision_attn.tokens.outputs import class_logits
from vision_attn.types import Model

PREPROCESS = Preprocess((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
CLASSES = ["cat", "dog", "hen"]
PHOTO = np.random.default_rng(0).integers(0, 256, (41, 53, 3), dtype=np.uint8)
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([2, 0])


def cnn() -> Model:
    """Fine-tuned and left in train mode: its statistics are not those of the photo."""
    torch.manual_seed(0)
    network = SEResNet(3, layers=(1, 1, 1, 1), widths=(4, 6, 8, 10))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            nn.init.normal_(module.running_mean, std=0.5)
            assert module.running_var is not None
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    nn.init.normal_(network.fc.weight, std=1.0)
    network.train()
    network.layer2.eval()  # frozen for the fine-tuning
    network.bn1.requires_grad_(False)
    return Model(network, PREPROCESS, CLASSES, None)


def vit() -> Model:
    torch.manual_seed(0)
    network = ViT(32, 8, 3, dim=12, depth=2, heads=2, drop_path=0.5, patch_drop=0.5)
    nn.init.normal_(network.head.weight, std=1.0)
    network.train()
    network.blocks[1].eval()
    assert network.cls_token is not None
    network.cls_token.requires_grad_(False)
    return Model(network, PREPROCESS, CLASSES, network.layout((32, 32)))


def state(network: nn.Module) -> dict[Any, Any]:
    """All that must come back, and the identity of what must stay itself."""
    return {
        "training": [module.training for module in network.modules()],
        "requires_grad": [weight.requires_grad for weight in network.parameters()],
        "grad": [weight.grad for weight in network.parameters()],
        "weights": [id(weight) for weight in network.parameters()],
        "buffers": {name: id(buffer) for name, buffer in network.named_buffers()},
        "hooks": [
            list(getattr(module, name))
            for module in network.modules()
            for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        ],
        "modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        ),
    }


def values(network: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(network.state_dict())


def deletion(removal: Removal) -> torch.Tensor:
    metric = evaluate.Deletion(removal, steps=3)
    metric.update(IMAGES, IMAGES.mean(1), TARGETS)
    return metric.per_image()


def masked(forward: Callable[..., torch.Tensor]) -> torch.Tensor:
    metric = evaluate.AverageDrop(forward)
    metric.update(IMAGES, IMAGES.mean(1).abs(), TARGETS)
    return metric.per_image()


def saliency(network: Any, images: torch.Tensor, targets: Any) -> torch.Tensor:
    """Somebody's own explanation, which asks for gradients by itself."""
    images = images.clone().requires_grad_()
    with torch.enable_grad():
        score = network(images).gather(1, targets[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, images)
    return gradient.abs().sum(1)


def sensitivity(network: Any) -> torch.Tensor:
    metric = evaluate.MaxSensitivity(partial(saliency, network), samples=2)
    metric.update(IMAGES, TARGETS)
    return metric.per_image()


def randomisation(network: Any) -> torch.Tensor:
    metric = evaluate.ModelRandomisation(network, saliency)
    metric.update(IMAGES, TARGETS)
    return metric.per_image()


class OwnRemoval(evaluate.Removal):
    """Somebody's own way to remove evidence, which runs a network that it keeps."""

    grid, least = (4, 4), 0

    def __init__(self, network: Any) -> None:
        self.network = network

    def logits(self, images: torch.Tensor, order: Any, counts: Any) -> torch.Tensor:
        return torch.stack([self.network(images * count / 16) for count in counts], dim=1)


def found(explanation: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(explanation.probabilities)] + [
        torch.from_numpy(each.values) for each in explanation.maps
    ]


def galleried(model: Any, photos: Path, folder: Path) -> list[Any]:
    summary = vision_attn.gallery(model, photos, ["GradCAM"], output=folder, page=False)
    assert not summary.problems
    return [torch.tensor([each["probability"] for each in summary.records()])]


def scored(model: Any, photos: Path) -> list[Any]:
    scores = vision_attn.score(model, photos, ["GradCAM"], steps=2, sanity=1, target="predicted")
    return [torch.tensor([row["mean"] for row in scores.table() if row["mean"] is not None])]


def filmed(model: Any, photos: Path, folder: Path) -> list[Any]:
    summary = vision_attn.film(model, photos, "GradCAM", output=folder, frames=2.0)
    assert summary.films  # whose other photos have another size
    return [path.read_bytes() for path in sorted(summary.folder.glob("*.mp4"))]


def without_outliers(model: Any, photos: Path) -> str:
    with pytest.raises(ValueError, match="no photo has a patch whose norm") as raised:
        vision_attn.add_registers(model, photos, neurons=2, block=1)
    return str(raised.value)


def intervened(model: Any) -> list[Any]:
    with vision_attn.intervene(model, heads={(0, 1): "zero"}, mlps=[1]):
        return [class_logits(model.network, IMAGES)]


RUNS = {
    "model.explain": lambda model, **_: found(model.explain(PHOTO, "GradCAM")),
    "explain of several, contrasted": lambda model, **_: found(
        model.explain([PHOTO, PHOTO[::-1]], ["GradCAM", "Occlusion"], contrast="hen")[1]
    ),
    "gallery": lambda model, photos, folder: galleried(model, photos, folder),
    "film": lambda model, photos, folder: filmed(model, photos, folder),
    "score": lambda model, photos, **_: scored(model, photos),
    "predict": lambda model, **_: [predict(model, prepare(model, [*map(_image, [PHOTO])]))],
    "class_logits": lambda model, **_: [class_logits(model.network, IMAGES)],
    "Deletion of removal": lambda model, **_: [deletion(vision_attn.removal(model, "mean"))],
    "FilledCells": lambda model, **_: [deletion(evaluate.FilledCells(model.network, (4, 4)))],
    "FilledCells of a lambda": lambda model, **_: [
        deletion(evaluate.FilledCells(lambda images: model.network(images), (4, 4)))
    ],
    "a removal of one's own": lambda model, **_: [deletion(OwnRemoval(model.network))],
    "AverageDrop": lambda model, **_: [masked(partial(class_logits, model.network))],
    "AverageDrop of a method": lambda model, **_: [masked(model.network.forward)],
    "MaxSensitivity": lambda model, **_: [sensitivity(model.network)],
    "ModelRandomisation": lambda model, **_: [randomisation(model.network)],
    "live": lambda model, **_: [vision_attn.live(model, [PHOTO]).html],
    "patch_similarity": lambda model, **_: [
        vision_attn.patch_similarity(model, PHOTO, (0.5, 0.5)),
    ],
    "patch_components": lambda model, **_: [vision_attn.patch_components(model, PHOTO).scores],
    "photo_similarity": lambda model, **_: [
        *vision_attn.photo_similarity(model, PHOTO, PHOTO[::-1]).maps
    ],
    "nearest_photos": lambda model, photos, **_: [
        found.similarity.cosine for found in vision_attn.nearest_photos(model, PHOTO, photos, 2)
    ],
    "forward_format": lambda model, **_: [forward_format(model.network, IMAGES)],
    "choose_methods": lambda model, **_: [str(choose_methods(None, model))],
    "fitting_methods": lambda model, **_: [str(fitting_methods(model))],
}
OF_CNNS = {
    "gate_values": lambda model, **_: [*gate_values(model.network, IMAGES).values()],
    "inspect": lambda model, **_: [
        vision_attn.inspect(model, PHOTO, methods=["GradCAM"], score=True).html
    ],
}
OF_VITS = {
    "ablate": lambda model, photos, **_: [
        str(row) for row in vision_attn.ablate(model, photos, ["heads"], prune=0).table()
    ],
    "intervene": lambda model, **_: intervened(model),
    "patch_states": lambda model, **_: [
        vision_attn.patch_states(model, PHOTO, PHOTO[::-1], target=1, contrast=2).recovered
    ],
    "diagnose": lambda model, photos, **_: [str(vision_attn.diagnose(model, photos).heads)],
    "add_registers": lambda model, photos, **_: [without_outliers(model, photos)],
    "Deletion of dropped tokens": lambda model, **_: [deletion(vision_attn.removal(model))],
    "probe": lambda model, **_: [str(probe(model))],
    "attention_weights": lambda model, **_: [
        *vision_attn.attention_weights(model, IMAGES).values()
    ],
    "inspect": lambda model, **_: [
        vision_attn.inspect(model, PHOTO, methods=["Rollout"], score=True).html
    ],
}


def _image(array: Any) -> Image.Image:
    from PIL import Image

    return Image.fromarray(array)


def test_every_function_that_takes_a_model_is_tried() -> None:
    functions = {
        name
        for name in vision_attn.__all__
        if inspect.isfunction(function := getattr(vision_attn, name))
        and "model" in inspect.signature(function).parameters
    }
    tried = {word for name in RUNS | OF_CNNS | OF_VITS for word in name.split()}
    tried |= {"export", "token_attribution"}  # below, and tests/models/test_image_text.py
    assert functions <= tried, functions


CASES = [
    *((cnn, name, run) for name, run in (RUNS | OF_CNNS).items()),
    *((vit, name, run) for name, run in (RUNS | OF_VITS).items()),
]


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
@pytest.mark.parametrize(
    ("make", "run"),
    [pytest.param(make, run, id=f"{make.__name__}: {name}") for make, name, run in CASES],
)
def test_a_network_in_train_mode_predicts_and_stays_as_it_was(
    make: Any, run: Any, kept_photos: Path, tmp_path: Path
) -> None:
    model, plain = make(), make()
    plain.network.eval()
    given = {"photos": str(kept_photos), "folder": tmp_path / "train"}
    expected = run(plain, **{**given, "folder": tmp_path / "eval"})
    before, numbers = state(model.network), values(model.network)
    results = run(model, **given)
    assert state(model.network) == before
    torch.testing.assert_close(values(model.network), numbers, rtol=0, atol=0)
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        else:
            assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("make", [cnn, vit])
def test_an_export_leaves_the_network_as_it_was(make: Callable[..., Model], tmp_path: Path) -> None:
    model = make()
    before, numbers = state(model.network), values(model.network)
    assert vision_attn.export(model, tmp_path / "model.pt2").difference < 1e-5
    assert state(model.network) == before
    torch.testing.assert_close(values(model.network), numbers, rtol=0, atol=0)


@pytest.mark.parametrize("write", [greedy, beam])
def test_sequences_are_written_in_eval_mode(write: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    network = Seq2Seq(symbols=11, dim=8, longest=5)
    for weight in network.parameters():
        nn.init.normal_(weight)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.7
    source = torch.tensor([[5, 6, 7, 2], [8, 9, 3, 2]])
    expected = write(network.eval(), source)
    network.train()
    before = state(network)
    for _ in range(3):
        assert torch.equal(write(network, source), expected)
    assert state(network) == before


def test_gates_are_added_in_eval_mode_to_a_network_that_trains() -> None:
    network = cnn().network
    numbers, training = values(network), [module.training for module in network.modules()]
    add_gates(network, CBAM, (32, 32))
    for name, value in numbers.items():
        torch.testing.assert_close(network.state_dict()[name], value, rtol=0, atol=0)
    assert [m.training for n, m in network.named_modules() if "attention_gate" not in n] == training


def test_a_teacher_stays_as_it_was() -> None:
    from vision_attn.distillation import _Answers

    model, plain = cnn(), cnn()
    plain.network.eval()
    before, numbers = state(model.network), values(model.network)
    teachers = [_Answers(each, PREPROCESS, CLASSES, None, False) for each in (model, plain)]
    answer, expected = (teacher(IMAGES) for teacher in teachers)
    assert state(model.network) == before
    torch.testing.assert_close(answer, expected, rtol=0, atol=0)
    torch.testing.assert_close(values(model.network), numbers, rtol=0, atol=0)


# what a network does besides, in train and in eval mode


class Merging(nn.Linear):
    """As in LoRA: `eval` merges an update into the weight, `train` takes it out again."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.update, self.merged = nn.Parameter(torch.randn_like(self.weight)), False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if mode == self.merged:
            self.weight.data += -self.update.data if mode else self.update.data
            self.merged = not mode
        return self

    def forward(self, x: Any) -> torch.Tensor:
        return F.linear(x, self.weight if self.merged else self.weight + self.update, self.bias)


class Counting(nn.Module):
    """Writes buffers in eval mode too: one in place, one anew, and one that is no state."""

    largest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("cached", torch.zeros(0), persistent=False)

    def forward(self, x: Any) -> Any:
        self.seen += len(x)
        self.largest = torch.maximum(self.largest, x.detach().amax())
        self.cached = x.detach().mean((0, 2, 3))
        return x


def small(*modules: Any) -> nn.Sequential:
    torch.manual_seed(0)
    layers = *modules, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), *layers, nn.Linear(5, 3))


def test_what_a_network_does_when_it_is_trained_again_is_done() -> None:
    network = small()
    network.append(Merging(3, 3))
    network.append(nn.Linear(3, 3).eval())
    weight = network[-2].weight.detach().clone()
    expected = copy.deepcopy(network).eval()(IMAGES).detach()
    torch.testing.assert_close(class_logits(network, IMAGES), expected, rtol=0, atol=0)
    GradCAM()(network, IMAGES)
    assert not network[-2].merged
    assert [module.training for module in network[-2:]] == [True, False]
    torch.testing.assert_close(network[-2].weight, weight)


@pytest.mark.parametrize("training", [True, False])
def test_what_a_network_writes_into_its_own_state_comes_back(training: bool) -> None:
    network = small(Counting()).train(training)
    network[2].seen += 7
    before, numbers = state(network), values(network)
    for run in (GradCAM(), IntegratedGradients(steps=2), class_logits):
        run(network, IMAGES)
        torch.testing.assert_close(values(network), numbers, rtol=0, atol=0)
    assert network[2].cached.shape == (5,)  # what is kept for speed alone may stay
    del before["buffers"]["2.cached"]
    after = state(network)
    del after["buffers"]["2.cached"]
    assert after == before


def test_an_observer_of_a_quantized_network_forgets_what_it_saw() -> None:
    from torch.ao.quantization import MinMaxObserver

    network = small(MinMaxObserver()).eval()
    numbers = values(network)
    class_logits(network, IMAGES)
    torch.testing.assert_close(values(network), numbers, rtol=0, atol=0)


def test_all_comes_back_after_an_error() -> None:
    network = small(Counting())
    before, numbers = state(network), values(network)
    del before["buffers"]["2.cached"]
    network.append(nn.Identity())
    network[-1].forward = lambda x: x / 0
    for run in (GradCAM(), class_logits):
        with pytest.raises(ValueError, match="NaN or infinity"):
            run(network, IMAGES)
    del network[-1]
    after = state(network)
    del after["buffers"]["2.cached"]
    assert after == before
    torch.testing.assert_close(values(network), numbers, rtol=0, atol=0)


def test_the_callers_modes_stay() -> None:
    network = small()
    for mode in (
        contextlib.nullcontext(),
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
    ):
        with mode:
            before = state(network)
            GradCAM()(network, IMAGES)
            class_logits(network, IMAGES)
            assert state(network) == before


# gradient checkpoints of the network's own


class Checkpointed(nn.Module):
    """Computes its first half again in a backward pass, and counts how often it runs."""

    def __init__(self, *modules: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant, self.runs = nn.Sequential(*modules), reentrant, 0

    def forward(self, x: Any) -> Any:
        return checkpoint(self.run, x, use_reentrant=self.reentrant)

    def run(self, x: Any) -> Any:
        self.runs += 1
        return self.body(x)


def checkpointed(reentrant: bool) -> tuple[nn.Sequential, nn.Sequential]:
    """A network with checkpoints, and the same without."""
    torch.manual_seed(2)
    parts = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.GELU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)]
    network = nn.Sequential(Checkpointed(*parts, reentrant=reentrant), *head)
    return network, nn.Sequential(nn.Sequential(*parts), *head)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", [LibraGradient(), HiResCAM(layer="0"), IntegratedGradients(5)])
def test_a_network_that_checkpoints_by_itself_has_the_maps_of_one_that_does_not(
    method: Explainer, reentrant: bool
) -> None:
    network, plain = checkpointed(reentrant)
    found = method(network, IMAGES, 1)
    torch.testing.assert_close(found.values, method(plain, IMAGES, 1).values)


def test_a_vit_that_checkpoints_by_itself_has_the_maps_of_one_that_does_not() -> None:
    network, plain = vit().network, vit().network
    for block in network.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for method in (LibraGradient(), LeGrad(), Relevance()):
        expected = method(plain, IMAGES, 1).values
        torch.testing.assert_close(method(network, IMAGES, 1).values, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_another_thread_checkpoints_as_it_did(reentrant: bool) -> None:
    network, _ = checkpointed(reentrant)
    first: Any = network[0]
    images = IMAGES.clone().requires_grad_()

    def trained() -> Any:
        first.runs = 0
        network(images).sum().backward()
        return first.runs

    assert trained() == 2
    with eval_mode(network):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(trained).result() == 2
        assert trained() == 1
    assert trained() == 2


# threads that share a network


class Waiting(nn.Module):
    """Lets a thread stop in the middle of a network until another is done."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: int | None = None
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == self.thread:
            self.inside.set()
            assert self.go.wait(60)
        return super().__call__(*args, **kwargs)

    def forward(self, x: Any) -> Any:
        return x


def meanwhile(waiting: Waiting, first: Callable[..., Any], second: Any) -> tuple[Any, Any]:
    """What `first` gives in a thread that stops inside the network until `second` is done."""

    def begin() -> Any:
        waiting.thread = threading.get_ident()
        return first()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(begin)
        assert waiting.inside.wait(60)
        try:
            other = second()
        finally:
            waiting.go.set()
        return future.result(), other


@pytest.mark.parametrize("second", [GradCAM(), class_logits, IntegratedGradients(steps=3)])
@pytest.mark.parametrize("first", [GradCAM(), class_logits, IntegratedGradients(steps=3)])
def test_a_thread_that_is_done_takes_nothing_from_another(
    first: Callable[..., torch.Tensor] | Explainer, second: Callable[..., torch.Tensor] | Explainer
) -> None:
    network = small(waiting := Waiting(), nn.BatchNorm2d(5), nn.Dropout(), Counting())
    nn.init.normal_(network[3].running_mean)
    plain = copy.deepcopy(nn.Sequential(*(m for m in network if m is not waiting))).eval()
    before, numbers = state(network), values(network)
    one, other = meanwhile(waiting, lambda: first(network, IMAGES), lambda: second(network, IMAGES))
    for result, run in ((one, first), (other, second)):
        expected = run(plain, IMAGES)
        if run is not class_logits:
            result, expected = result.values, expected.values
        torch.testing.assert_close(result, expected)
    after = state(network)
    for each in (before, after):
        del each["buffers"]["5.cached"]
    assert after == before
    torch.testing.assert_close(values(network), numbers, rtol=0, atol=0)


def test_two_contrasts_share_a_network() -> None:
    network = small(waiting := Waiting(), nn.BatchNorm2d(5))
    model = Model(network, PREPROCESS, CLASSES, None)
    before = state(network)
    plain = Model(
        copy.deepcopy(nn.Sequential(*(m for m in network if m is not waiting))).eval(),
        PREPROCESS,
        CLASSES,
        None,
    )
    one, other = meanwhile(
        waiting,
        lambda: model.explain(PHOTO, "GradCAM", target="cat", contrast="hen"),
        lambda: model.explain(PHOTO, "GradCAM", target="cat", contrast="dog"),
    )
    for result, contrast in ((one, "hen"), (other, "dog")):
        expected = plain.explain(PHOTO, "GradCAM", target="cat", contrast=contrast)
        np.testing.assert_allclose(result.maps[0].values, expected.maps[0].values, atol=1e-6)
    assert state(network) == before


@pytest.mark.parametrize("place", ["blocks.0", "blocks.0.attn.attend", "blocks.1.norm1"])
@pytest.mark.parametrize("second", [LeGrad(), Relevance(), GradCAM()])
def test_hooks_of_a_thread_that_is_done_stop_no_other(second: Explainer, place: str) -> None:
    """torch reads the hooks of a module before it calls them, and may call one just removed."""
    network = vit().network.eval()
    expected = class_logits(network, IMAGES), second(network, IMAGES, 1).values
    here, put_on, read, done = threading.get_ident(), *(threading.Event() for _ in range(3))

    def wait(_module: Any, _args: Any) -> None:
        """Here, after torch has read the other's hooks, until those are gone."""
        if threading.get_ident() == here:
            read.set()
            assert done.wait(60)

    def let_read(_module: Any, _args: Any) -> None:
        """There, with all hooks on, until torch has read them here."""
        if threading.get_ident() != here:
            put_on.set()
            assert read.wait(60)

    def explain() -> torch.Tensor:
        try:
            return second(network, IMAGES, 1).values
        finally:
            done.set()

    hooks = [
        network.get_submodule(place).register_forward_pre_hook(wait),
        network.patch_embed.register_forward_pre_hook(let_read),
    ]
    with ThreadPoolExecutor(1) as pool:
        maps = pool.submit(explain)
        assert put_on.wait(60)
        logits = class_logits(network, IMAGES)
        torch.testing.assert_close(maps.result(), expected[1])
    torch.testing.assert_close(logits, expected[0])
    for hook in hooks:
        hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize("make", [cnn, vit])
def test_many_maps_at_once_are_those_made_alone(make: Callable[..., Model]) -> None:
    model, plain = make(), make()
    plain.network.eval()
    methods = ["GradCAM", "IntegratedGradients(steps=2)", "Occlusion(window=16)"]
    methods += ["Rollout", "LeGrad", "Relevance"] if make is vit else ["ChannelGates"]
    photos = [np.roll(PHOTO, 5 * i, axis=1) for i in range(4)]
    jobs = [(photo, method) for photo in photos for method in methods] * 2
    before, numbers = state(model.network), values(model.network)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda job: model.explain(*job), jobs))
    for job, result in zip(jobs, results, strict=True):
        expected = plain.explain(*job)
        np.testing.assert_allclose(result.probabilities, expected.probabilities, atol=1e-6)
        np.testing.assert_allclose(result.maps[0].values, expected.maps[0].values, atol=1e-5)
    assert state(model.network) == before
    torch.testing.assert_close(values(model.network), numbers, rtol=0, atol=0)


# an explanation inside a hook of another


METHODS = [
    "Rollout",
    "Relevance",
    "LeGrad",
    "RawAttention",
    "QueryKey",
    "AttentionGradCAM",
    "GradCAM",
    "LibraGradient",
]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pytest.param(outer, inner, marks=[] if index == METHODS.index(inner) else pytest.mark.slow)
        for index, outer in enumerate(METHODS[1:] + METHODS[:1])  # quickly: each beside the next
        for inner in METHODS
    ],
)
def test_an_explanation_inside_a_hook_of_another(outer: str, inner: str) -> None:
    model = vit()
    network = model.network.eval()
    outer, inner = (choose_methods([name], network)[0] for name in (outer, inner))
    expected = [each(network, IMAGES, 1).values for each in (outer, inner)]
    busy: list[Any]
    maps, busy = [], []

    def look(_module: Any, _args: Any, _out: Any) -> None:
        if not busy:
            busy.append(1)
            maps.append(inner(network, IMAGES, 1).values)
            busy.clear()

    hook = network.blocks[0].register_forward_hook(look)
    torch.testing.assert_close(outer(network, IMAGES, 1).values, expected[0])
    hook.remove()
    assert maps
    for each in maps:
        torch.testing.assert_close(each, expected[1])
