"""fit, validate, test, predict: what is said without loading torch and Lightning.

Help, a missing config, and the config that belongs to a checkpoint; then `lightning.py` runs.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

ABOUT = {
    "fit": (
        "Trains a network, and tests its best weights once at the end.\n"
        "Everything the run makes goes to outputs/NAME/version_N, NAME being the config's.",
        "vision-attn fit --config configs/vit_planted.yaml --trainer.max_epochs 3",
    ),
    "validate": (
        "Measures a checkpoint on the validation images.",
        "vision-attn validate --ckpt_path outputs/vit_planted/version_0/best.ckpt",
    ),
    "test": (
        "Measures a checkpoint on the test images; the confusion matrix lands beside it.",
        "vision-attn test --ckpt_path outputs/vit_planted/version_0/best.ckpt",
    ),
    "predict": (
        "Names the class of each image: a CSV of file, class, probability beside the checkpoint.",
        "vision-attn predict --ckpt_path outputs/vit_planted/version_0/best.ckpt --images photos",
    ),
}

HELP = """\
usage: vision-attn {command} --config FILE [--ckpt_path FILE] [--SECTION.OPTION VALUE ...]

{about}

  -c, --config FILE             the whole run in one YAML file; a checkpoint knows its own
  --ckpt_path FILE              {ckpt_path}
  --name NAME                   name of the run's folder (default: the config's)
  --seed_everything N           the seed of weights, order and augmentation
  --trainer.OPTION VALUE        max_epochs, accelerator (cpu, gpu, mps), devices, precision,
                                default_root_dir (where runs land), limit_train_batches ...
  --data.OPTION VALUE           root, batch_size ...
  --model.network.OPTION VALUE  options of the network's class
  --model.optimizer.OPTION VALUE, --model.schedule.OPTION VALUE
  --model.optimizer CLASS       another class; options that it knows too are kept
  --print_config                the config with all defaults and overrides, and stop
  --help-all                    every option there is (loads torch and Lightning first)

example: {example}
{configs}"""


def main(command: str, words: list[str]) -> int:
    """Run one of Lightning's commands; ValueError for what can be seen to be wrong at once."""
    if "-h" in words or "--help" in words:
        print(help_text(command))
        return 0
    words = ["--help"] if "--help-all" in words else with_config(command, words)
    from vision_attn.commands.fit import sequences

    return sequences.main(command, words)


def help_text(command: str) -> str:
    about, example = ABOUT[command]
    ckpt_path = (
        "go on from this checkpoint (last.ckpt), in a fresh version folder"
        if command == "fit"
        else "the checkpoint (best.ckpt)"
    )
    found = known_configs()
    configs = f"configs: {', '.join(found)}\n" if found else ""
    return HELP.format(
        command=command, about=about, ckpt_path=ckpt_path, example=example, configs=configs
    )


def with_config(command: str, words: list[str]) -> list[str]:
    """The same words, sure to name a config: where none is given, the one beside the checkpoint."""
    given = values_of(words, "-c", "--config")
    for config in given:
        if not Path(config).is_file():
            close = get_close_matches(config, known_configs(), n=3, cutoff=0.5)
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"no such config file: {config}{hint}")
    checkpoints = values_of(words, "--ckpt_path")
    for checkpoint in checkpoints:
        if not Path(checkpoint).is_file():
            raise ValueError(f"no such checkpoint file: {checkpoint}")
    if command != "fit" and not checkpoints:
        raise ValueError(f"{command} needs a checkpoint: --ckpt_path outputs/.../best.ckpt")
    if given:
        return words
    beside = [p for p in (Path(c).with_name("config.yaml") for c in checkpoints) if p.is_file()]
    if not beside:
        known = f" (here: {', '.join(known_configs())})" if known_configs() else ""
        raise ValueError(f"{command} needs a config: --config FILE{known}")
    return ["--config", str(beside[-1]), *words]


def values_of(words: Sequence[str], *options: str) -> list[str]:
    """The values given to an option, as `--option value` or `--option=value`."""
    spaced = [value for option, value in pairwise(words) if option in options]
    joined = [w.partition("=")[2] for w in words if w.partition("=")[0] in options and "=" in w]
    return spaced + joined


def known_configs() -> list[str]:
    return sorted(str(path) for path in Path("configs").glob("*.yaml"))


def shipped_config(name: str) -> Path:
    """The config of that name that comes with vision_attn: inside a wheel, beside the sources."""
    package = Path(__file__).parent.parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    raise ValueError(f"no config named {name!r} came with this installation of vision_attn")
