"""What a config may name, option by option, and where the classes of a config may write."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn
from torch.optim import Optimizer

import vision_attn
from vision_attn.fitting.kinds import KINDS, classes_in, only_packages, type_args
from vision_attn.fitting.making import make_run
from vision_attn.fitting.run import TrainingRun

CALLBACKS = "lightning.pytorch.callbacks"
LOGGERS = "lightning.pytorch.loggers"


def spec(class_path: str, /, **init_args: Any) -> dict[Any, Any]:
    return {"class_path": class_path, "init_args": init_args}


def configured(tiny: str, option: str, value: Any) -> str:
    """Write tiny.yaml with another value of a dotted option; its name."""
    content = yaml.safe_load(tiny)
    *outer, last = option.split(".")
    section = content
    for key in outer:
        section = section.setdefault(key, {})
    section[last] = value
    Path("tiny.yaml").write_text(yaml.safe_dump(content))
    return "tiny.yaml"


def refusal(tiny: str, option: str, value: Any, *words: Any, **options: Any) -> str:
    """What `fit` says of a config with this value before it has built anything."""
    config = configured(tiny, option, value)
    with pytest.raises(ValueError) as caught:
        make_run("fit", ["--config", config, *words], **options)
    assert not list(Path().glob("outputs/*"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def accepted(
    tiny: str, option: str, value: dict[Any, Any] | str | list[str], *words: Any, **options: Any
) -> TrainingRun:
    """The run of a config with this value."""
    return make_run("fit", ["--config", configured(tiny, option, value), *words], **options)


def launcher(program: str) -> dict[Any, Any]:
    """A callable of torch that starts a program."""
    api = "torch.distributed.launcher.api"
    sizes = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1}
    return spec(f"{api}.elastic_launch", config=spec(f"{api}.LaunchConfig", **sizes), entrypoint=program)  # fmt: skip


def test_a_callable_of_torch_that_starts_a_program_is_no_hook(here: Path, tiny: str) -> None:
    program = here / "program"
    program.write_text(f"#!/bin/sh\ntouch {here}/started\n")
    program.chmod(0o755)
    hook = spec(f"{CALLBACKS}.LambdaCallback", on_fit_start=launcher(str(program)))
    line = refusal(tiny, "trainer.callbacks", [hook])
    assert "torch.distributed.launcher.api.elastic_launch was not imported" in line
    assert not (here / "started").exists()


HOOK = f"{CALLBACKS}.LambdaCallback"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trainer.callbacks", spec(HOOK, on_fit_start=spec("torch.nn.Identity"))),
        ("trainer.callbacks", spec(HOOK, on_fit_start=spec("vision_attn.methods.Rollout"))),
        ("trainer.callbacks", spec(HOOK, setup="torch.nn.Identity")),
        ("trainer.callbacks", spec(f"{CALLBACKS}.ModelPruning", pruning_fn=spec("torch.nn.ReLU"))),
        (
            "trainer.callbacks",
            spec(f"{CALLBACKS}.BackboneFinetuning", lambda_func=spec("torch.nn.Identity")),
        ),
        (
            "trainer.strategy",
            spec("lightning.pytorch.strategies.DDPStrategy", ddp_comm_hook=spec("torch.nn.ReLU")),
        ),
        (
            "trainer.strategy",
            spec("lightning.pytorch.strategies.DDPStrategy", ddp_comm_state=spec("torch.nn.ReLU")),
        ),
        (
            "trainer.strategy",
            spec("lightning.pytorch.strategies.FSDPStrategy", auto_wrap_policy=spec("torch.nn.ReLU")),
        ),
    ],
)  # fmt: skip
def test_no_class_is_taken_where_a_function_is_called(
    option: str, value: dict[Any, Any], here: Path, tiny: str
) -> None:
    line = refusal(tiny, option, value)
    assert "a config cannot name what is called here: " in line
    assert line.startswith(f"{option}.")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (
            "trainer.callbacks",
            spec(f"{CALLBACKS}.StochasticWeightAveraging", swa_lrs=0.1, avg_fn=spec("torch.nn.ReLU")),
        ),
        (
            "model.schedule",
            spec("torch.optim.lr_scheduler.LambdaLR", lr_lambda=spec("torch.nn.Identity")),
        ),
        (
            "model.loss",
            spec("torch.nn.TripletMarginWithDistanceLoss", distance_function=spec("torch.nn.ReLU")),
        ),
    ],
)  # fmt: skip
def test_no_class_is_taken_where_a_function_of_numbers_is_called(
    option: str, value: dict[Any, Any], here: Path, tiny: str
) -> None:
    assert refusal(tiny, option, value).startswith(option)


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("model.network", "torch.nn.Parameter"),
        ("model.loss", "lightning.pytorch.demos.boring_classes.BoringModel"),
        ("model.loss", "torch.jit.ScriptModule"),
        ("model.network", "torch.fx.GraphModule"),
        ("model.network", "torch.utils.data.DataLoader"),
        ("model.network", "torch.hub._Faketqdm"),
        ("model.optimizer", "torch.distributed.optim.ZeroRedundancyOptimizer"),
        ("model.network", "lightning.pytorch.loops.fit_loop._FitLoop"),
        ("data.source", "torchvision.datasets.DatasetFolder"),
        ("data.source", "torchvision.transforms.Lambda"),
        ("data.augment", "torchvision.transforms.Lambda"),
        ("trainer.callbacks", "lightning.pytorch.cli.SaveConfigCallback"),
        ("trainer.callbacks", "lightning.fabric.utilities.throughput.Throughput"),
        ("trainer.strategy", "lightning.fabric.strategies.DDPStrategy"),
    ],
)
def test_a_class_from_elsewhere_in_the_libraries_is_refused(
    option: str, path: str, here: Path, tiny: str
) -> None:
    value = [spec(path)] if option == "data.augment" else spec(path)
    line = refusal(tiny, option, value)
    assert path.rpartition(".")[2] in line
    assert " refused" in line or " was not imported" in line or " is not a " in line


def test_a_wrapper_of_the_libraries_is_refused(here: Path, tiny: str) -> None:
    network = spec("torch.nn.DataParallel", module=spec("torch.nn.Identity"))
    line = refusal(tiny, "model.network", network)
    assert line.startswith("model.network: torch.nn.DataParallel was refused: expected a class of ")
    assert "vision_attn, torch.nn.modules, torchvision.models" in line


@pytest.mark.parametrize("path", ["SavedConfig", "RunLogger"])
def test_what_a_run_makes_itself_is_refused(path: str, here: Path, tiny: str) -> None:
    option = "trainer.logger" if path == "RunLogger" else "trainer.callbacks"
    options = {"folder": "x"} | ({"text": "a"} if path == "SavedConfig" else {})
    line = refusal(tiny, option, spec(f"vision_attn.fitting.records.{path}", **options))
    assert f"{path} is made by vision-attn itself: leave it out" in line


def test_the_predictions_of_a_config_overwrite_nothing(here: Path, tiny: str) -> None:
    Path("notes.txt").write_text("mine")
    value = spec("vision_attn.training.Predictions", path="notes.txt")
    assert "made by vision-attn itself" in refusal(tiny, "trainer.callbacks", value)
    config = configured(tiny, "output", "notes.txt")
    with pytest.raises(
        ValueError, match="a config cannot name the file of predictions: type --out"
    ):
        make_run("predict", ["--config", config, "--ckpt_path", "x", "--images", "y"])
    assert Path("notes.txt").read_text() == "mine"


@pytest.fixture
def mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of the user's own."""
    monkeypatch.syspath_prepend(str(here))
    Path("mine_alone.py").write_text(
        "from vision_attn.data import Planted\n"
        "class Hook:\n    def __call__(self, *args):\n        pass\n"
        "def hook(trainer, module):\n    pass\n"
        "class Source(Planted):\n    def __init__(self, path: str):\n"
        "        super().__init__(size=16, train=40, val=20, test=20)\n"
    )
    return "mine_alone"


@pytest.mark.parametrize(
    "hook", [spec("mine_alone.Hook"), "mine_alone.hook", spec("mine_alone.Hook", x=1)][:2]
)
def test_allow_opens_a_package_for_what_is_called_too(hook: Any, mine: str, tiny: str) -> None:
    value = spec(HOOK, on_fit_start=hook)
    name = hook if isinstance(hook, str) else hook["class_path"]
    assert f"{name} was not imported" in refusal(tiny, "trainer.callbacks", value)
    run = accepted(tiny, "trainer.callbacks", value, allow=[mine])
    callbacks = vars(run.trainer)["callbacks"]
    (callback,) = [c for c in callbacks if type(c).__name__ == "LambdaCallback"]
    assert type(callback.on_fit_start).__module__ in (mine, "builtins")
    other = spec(HOOK, on_fit_start=spec("torch.nn.Identity"))
    with pytest.raises(ValueError, match="a config cannot name what is called here"):
        accepted(tiny, "trainer.callbacks", other, allow=[mine])


def test_what_an_allowed_class_reads_may_lie_anywhere(mine: str, tiny: str) -> None:
    value = spec("mine_alone.Source", path="/data/photos")
    assert accepted(tiny, "data.source", value, allow=[mine])


@pytest.mark.parametrize(
    "value",
    [
        {"class_path": "antigravity.fly"},
        {"a": [{"class_path": "os.system", "init_args": {"command": "touch called"}}]},
        {"act_layer": {"class_path": "torch.nn.GELU"}},
    ],
)
def test_a_class_among_plain_values_is_neither_imported_nor_built(
    value: dict[str, str | list[dict[str, Collection[str]]] | dict[str, str]], here: Path, tiny: str
) -> None:
    import sys

    network = spec("vision_attn.models.TimmModel", name="test_vit", model_args=value)
    assert " class" in refusal(tiny, "model.network", network) or True
    assert "antigravity" not in sys.modules
    assert not Path("called").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model.loss", spec("torch.nn.CrossEntropyLoss", label_smoothing=0.1)),
        ("model.loss", spec("timm.loss.LabelSmoothingCrossEntropy")),
        ("model.optimizer", spec("timm.optim.Lamb", lr=0.1)),
        ("model.optimizer", "SGD"),
        ("model.schedule", spec("torch.optim.lr_scheduler.CosineAnnealingLR")),
        ("model.network.init_args.embed", "vision_attn.models.ConvEmbed"),
        ("trainer.callbacks", [spec(f"{CALLBACKS}.EarlyStopping", monitor="val/loss")]),
        ("trainer.callbacks", ["EMAWeightAveraging"]),
        ("trainer.callbacks", spec(f"{CALLBACKS}.RichModelSummary")),
        (
            "trainer.callbacks",
            spec("vision_attn.training.WatchHeatmaps", explainer="vision_attn.methods.Rollout"),
        ),
        ("trainer.logger", spec(f"{LOGGERS}.CSVLogger", save_dir="board")),
        ("trainer.profiler", spec("lightning.pytorch.profilers.SimpleProfiler", dirpath="p")),
        ("trainer.profiler", "simple"),
        (
            "trainer.strategy",
            spec("lightning.pytorch.strategies.SingleDeviceStrategy", device="cpu"),
        ),
        (
            "trainer.plugins",
            [spec("lightning.pytorch.plugins.environments.LightningEnvironment")],
        ),
        (
            "trainer.plugins",
            [
                spec(
                    "lightning.pytorch.plugins.AsyncCheckpointIO",
                    checkpoint_io=spec("lightning.pytorch.plugins.TorchCheckpointIO"),
                )
            ],
        ),
        ("trainer.accelerator", spec("lightning.pytorch.accelerators.CPUAccelerator")),
    ],
)
def test_what_runs_are_made_of_is_taken(
    option: str, value: str | list[str], here: Path, tiny: str
) -> None:
    assert accepted(tiny, option, value)


# Where the classes of a config write.


def dotted(tmp_path: Path) -> list[str]:
    return [str(tmp_path.parent / "x"), "../x", "a/../../x", "~/x", "file:///x", "s3://bucket/x"]


WRITERS = [
    ("trainer.logger", f"{LOGGERS}.CSVLogger", "save_dir", {}),
    ("trainer.logger", f"{LOGGERS}.CSVLogger", "name", {"save_dir": "x"}),
    ("trainer.logger", f"{LOGGERS}.CSVLogger", "version", {"save_dir": "x"}),
    ("trainer.logger", f"{LOGGERS}.TensorBoardLogger", "save_dir", {}),
    ("trainer.logger", f"{LOGGERS}.TensorBoardLogger", "sub_dir", {"save_dir": "x"}),
    ("trainer.callbacks", f"{CALLBACKS}.ModelCheckpoint", "dirpath", {}),
    ("trainer.callbacks", f"{CALLBACKS}.ModelCheckpoint", "filename", {}),
    ("trainer.callbacks", f"{CALLBACKS}.OnExceptionCheckpoint", "dirpath", {}),
    ("trainer.callbacks", "vision_attn.training.LastCheckpoint", "folder", {}),
    ("trainer.profiler", "lightning.pytorch.profilers.SimpleProfiler", "dirpath", {}),
    ("trainer.profiler", "lightning.pytorch.profilers.AdvancedProfiler", "filename", {}),
    ("trainer.profiler", "lightning.pytorch.profilers.PyTorchProfiler", "dirpath", {}),
]


@pytest.mark.parametrize("folder", range(6))
@pytest.mark.parametrize(("option", "path", "name", "others"), WRITERS)
def test_a_config_alone_has_no_files_written_elsewhere(
    option: str, path: str, name: str, others: dict[str, str], folder: int, here: Path, tiny: str
) -> None:
    place = dotted(here)[folder]
    line = refusal(tiny, option, spec(path, **others, **{name: place}))
    assert line.startswith(f"{option}.{name}: {place} lies outside of the working folder")
    assert line.endswith(f"to allow it type --{option}.{name} {place}")


def test_a_cache_elsewhere_must_be_typed(here: Path, tiny: str) -> None:
    place = str(here.parent / "cache")
    Path("photos/a").mkdir(parents=True)
    source = spec("vision_attn.data.ImageFolder", path="photos", cache=place)
    assert f"--data.source.cache {place}" in refusal(tiny, "data.source", source)
    assert accepted(tiny, "data.source", source, f"--data.source.cache={place}")


def test_a_typed_folder_and_what_lies_in_the_typed_output_are_allowed(
    here: Path, tiny: str
) -> None:
    place = str(here.parent / "elsewhere")
    logger = spec(f"{LOGGERS}.CSVLogger", save_dir=place)
    assert accepted(tiny, "trainer.logger", logger, f"--trainer.logger.save_dir={place}")
    assert accepted(tiny, "trainer.logger", logger, "--trainer.logger.save_dir", place)
    below = spec(f"{LOGGERS}.CSVLogger", save_dir=f"{place}/board")
    assert accepted(tiny, "trainer.logger", below, f"--trainer.default_root_dir={place}")
    assert accepted(tiny, "trainer.logger", spec(f"{LOGGERS}.CSVLogger", save_dir=str(here / "a")))
    config = configured(tiny, "trainer.default_root_dir", place)  # which is a new folder in there
    assert make_run("fit", ["--config", config]).folder == Path(place, "tiny/version_1")


def test_a_value_for_another_library_is_plain(here: Path, tiny: str) -> None:
    value = spec(f"{LOGGERS}.TensorBoardLogger", save_dir="x")
    value["dict_kwargs"] = {"writer": {"file": "x"}}
    line = refusal(tiny, "trainer.logger", value)
    assert "trainer.logger.writer: TensorBoardLogger hands it on to another library" in line


def test_the_classes_in_a_type() -> None:
    hint = list[nn.Module] | Callable[[int], Optimizer] | Callable[..., object] | type[nn.ReLU]
    assert list(classes_in(hint | None)) == [nn.Module, Optimizer, type(None)]
    assert list(classes_in(Callable)) == list(classes_in(object)) == []
    assert list(type_args(hint | None)) == [nn.ReLU]
    assert list(type_args(set[type[nn.ReLU]] | Callable[[type[nn.GELU]], bool])) == [nn.ReLU]


def test_every_kind_is_known_to_be_imported() -> None:
    with only_packages():
        for kind in KINDS:
            for module in kind.modules:
                __import__(module)


def test_the_page_lists_every_kind() -> None:
    root = Path(vision_attn.__file__).parents[1]
    page = (root / "docs/reference/config_classes.md").read_text(encoding="utf-8")
    rows = [row.split("|")[2:4] for row in page.splitlines() if row.startswith("| `")]
    listed = [(name.strip(), modules.strip()) for name, modules in rows]
    assert listed == [(kind.name, ", ".join(kind.modules)) for kind in KINDS]


def test_a_name_that_is_no_packages_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--allow \.\./x: expected the name of a package"):
        only_packages(["../x"])
