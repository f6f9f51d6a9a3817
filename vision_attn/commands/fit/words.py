"""fit, validate, test, predict: help and errors that need neither torch nor Lightning.

Help, and a config or a checkpoint that is missing; then `run` runs.
"""

from pathlib import Path

from vision_attn.fitting.configs import (
    NEWEST,
    find_config,
    local_configs,
    shipped_configs,
    values_of,
    without,
)
from vision_attn.models.shelf import is_shelved, shelved
from vision_attn.terminal import printable

ABOUT = {
    "fit": (
        "Trains a network, and tests its best weights once at the end.\n"
        "The run is written to outputs/NAME/version_N; NAME is the config's.",
        "vision-attn fit --config vit_planted --trainer.max_epochs 3",
    ),
    "validate": (
        "Measures a checkpoint on the validation images.",
        "vision-attn validate --config vit_planted --ckpt_path best",
    ),
    "test": (
        "Measures a checkpoint on the test images; the confusion matrix is written beside it.",
        "vision-attn test --config vit_planted --ckpt_path best",
    ),
    "predict": (
        "Predicts the class of each image, and writes file, class and probability to a CSV file\n"
        "beside the checkpoint.",
        "vision-attn predict --ckpt_path outputs/vit_planted/version_0/best.ckpt --images photos",
    ),
}

HELP = """\
usage: vision-attn {command} --config FILE_OR_NAME [--ckpt_path FILE] [--SECTION.OPTION VALUE ...]

{about}

  -c, --config FILE_OR_NAME     the whole run in one YAML file, or the name of a config of the
                                package (vision-attn configs lists them)
  --ckpt_path FILE              {ckpt_path};
                                last or best: the file of the config's newest run
{more}  --allow PACKAGE               allow classes of this package in the config (runs its code)
  --name NAME                   name of the run's folder (default: the config's)
  --seed_everything N           the seed of weights, order and augmentation
  --trainer.OPTION VALUE        max_epochs, accelerator (cpu, gpu, mps), devices, precision,
                                limit_train_batches ...
  --data.OPTION VALUE           root, batch_size ...
  --model.network.OPTION VALUE  options of the network's class
  --model.optimizer.OPTION VALUE, --model.schedule.OPTION VALUE
  --model.optimizer CLASS       another class; it keeps the options that it knows
  --print_config                print the config with all defaults and changes, and stop
  --help-all                    show every option (loads torch and Lightning first)

example: {example}
{configs}"""

MISPLACED = {  # what people type, and the option's whole name
    "accelerator": "trainer.accelerator",
    "batch_size": "data.batch_size",
    "data_root": "data.root",
    "devices": "trainer.devices",
    "epochs": "trainer.max_epochs",
    "lr": "model.optimizer.lr",
    "max_epochs": "trainer.max_epochs",
    "precision": "trainer.precision",
    "seed": "seed_everything",
    "value-range": "data.value_range",
    "value_range": "data.value_range",
    "weights": "model.weights",
}

FITTING = """\
  -o, --output FOLDER           where runs are written (default: outputs)
  --model.weights FILE          start from these weights: a checkpoint, or vision_attn:NAME; if
                                the config names no network, the network of the weights is built
  --minutes N                   train for about N minutes: the first steps are timed, and as many
                                epochs are planned as fit into the time
  --probe false                 compute in the usual way: do not measure first which is fastest
  --threads N                   compute with N threads (default: as many as other programs leave
                                cores for at the start)
"""

PREDICTING = """\
  --images FILE_OR_FOLDER ...   images to predict, and folders of them
  -o, --output FILE             the CSV file to write (default: beside the checkpoint)
"""


def main(command: str, words: list[str]) -> int:
    """Run one of Lightning's commands; ValueError for what can be seen to be wrong at once."""
    if "-h" in words or "--help" in words:
        print(printable(help_text(command)))
        return 0
    allow = values_of(words, "--allow")
    words = without(words, "--allow")
    if command == "fit" and (folders := values_of(words, "-o", "--output")):
        words = [*without(words, "-o", "--output"), f"--trainer.default_root_dir={folders[-1]}"]
    if "--help-all" in words:
        configs = values_of(words, "-c", "--config") or ["vit_planted"]
        words = [*(f"--config={name}" for name in configs), "--help"]
    else:
        check(command, words)
    from vision_attn.commands.fit import run

    return run.main(command, words, allow)


def help_text(command: str) -> str:
    """The usual options, an example, and the configs of this folder."""
    about, example = ABOUT[command]
    if command == "fit":
        ckpt_path = "continue from this checkpoint (last.ckpt), in a new version folder"
        more = FITTING
    else:
        ckpt_path = "the checkpoint (best.ckpt), or vision_attn:NAME"
        more = PREDICTING if command == "predict" else ""
    found = local_configs()
    configs = f"configs here: {', '.join(found)}\n" if found else ""
    return HELP.format(
        command=command,
        about=about,
        ckpt_path=ckpt_path,
        more=more,
        example=example,
        configs=configs,
    )


def check(command: str, words: list[str]) -> None:
    """ValueError for an option without its section, a config or a checkpoint that is not there."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and name[2:] in MISPLACED:
            raise ValueError(f"unknown option {name}: did you mean --{MISPLACED[name[2:]]}?")
    configs = values_of(words, "-c", "--config")
    for config in configs:
        find_config(config)
    checkpoints = values_of(words, "--ckpt_path")
    for checkpoint in checkpoints:
        if is_shelved(checkpoint):
            shelved(checkpoint)
        elif checkpoint not in NEWEST and not Path(checkpoint).is_file():
            raise ValueError(f"no such checkpoint file: {checkpoint}")
    for weights in values_of(words, "--model.weights"):
        if is_shelved(weights):
            shelved(weights)
        elif not Path(weights).is_file():
            raise ValueError(
                f"--model.weights {weights}: no such file; expected a checkpoint, a file of "
                "weights or vision_attn:NAME"
            )
    if command != "fit" and not checkpoints:
        raise ValueError(f"{command} needs a checkpoint: --ckpt_path outputs/.../best.ckpt")
    if command == "fit" and not configs:
        own = [Path(path).with_name("config.yaml") for path in checkpoints]
        hint = f" (that of the checkpoint's run is {own[-1]})" if own and own[-1].is_file() else ""
        named = next((word for word in words if word in shipped_configs()), "")
        if named:
            raise ValueError(f"fit needs a config: did you mean --config {named}?")
        known = f" (here: {', '.join(local_configs())})" if local_configs() else ""
        raise ValueError(
            f"fit needs a config: --config FILE_OR_NAME{hint or known}; "
            "vision-attn configs lists those of the package"
        )
