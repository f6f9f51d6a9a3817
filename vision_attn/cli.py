"""The command line, `vision-attn COMMAND ...`: the first word chooses a module, which loads then.

A command that trains parses its own words (Lightning's command line does it). Every other command
is a module of `vision_attn.commands` with `add_arguments(parser)` and `run(args) -> exit status`.
Errors meant for the user are ValueErrors and OSErrors: one line on stderr, exit status 2.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from vision_attn import __version__, cores, terminal
from vision_attn.arguments import launched
from vision_attn.compat.argparse_private import options_of
from vision_attn.errors import quoted

TRAINING = {
    "fit": "train a network, then test its best weights",
    "validate": "measure a checkpoint on the validation images",
    "test": "measure a checkpoint on the test images",
    "predict": "predict the class of each image, into a CSV file",
}
COMMANDS = {
    "explain": "draw where a network looks in your images",
    "pictures": "draw the heatmaps of a class from maps that explain saved",
    "score": "measure which heatmaps of a network to trust",
    "ablate": "measure what each head, MLP and block of a network is worth",
    "compare": "compare two checkpoints: where they agree, where their maps differ",
    "diagnose": "find what is wrong with a network that attends: heads, tokens, calibration",
    "inspect": "explore a network's attention on one interactive page",
    "features": "draw what an encoder's features say: components, similar places and photos",
    "live": "run a network in one offline page: drop photos, cover parts of them",
    "models": "list the pretrained networks of the package, with their accuracy",
    "configs": "list the configs of the package, and the result of each",
    "probe": "show how tokens go through a network, or why there is no map of its attention",
    "export": "export a network to ONNX or torch.export, and check its logits",
    "demo": "train three small networks and open a gallery of their heatmaps",
}

LIBRARIES = ("torch", "torchvision", "timm", "lightning", "transformers")  # of --version
HELP = """\
usage: vision-attn COMMAND ...

Attention in images: train networks, and see where they look.

{commands}

vision-attn COMMAND --help   the command's options
vision-attn --version        versions of this package, its libraries and the machine
--traceback                  with any command: show where in the code an error occurred
"""


def script() -> NoReturn:
    """The console entry point."""
    terminal.open_streams()
    cores.keep_to_quota()
    cores.wait_briefly()
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status.

    0 done, 1 some inputs failed, 2 wrong usage, 130 stopped by the keyboard, 141 output closed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in words
    terminal.take_any_text()
    try:
        status = _status([word for word in words if word != "--traceback"])
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as stop:
        print(file=sys.stderr)
        terminal.complain(f"stopped{''.join(map(str, stop.args))}")
        return 130
    except Exception as error:
        broken = terminal.drop_broken()
        if broken and isinstance(error, BrokenPipeError):
            return 141
        if show_traceback:
            raise
        expected = isinstance(error, (ValueError, OSError))
        text = " ".join(str(error).split())
        if not expected:
            text = f"{type(error).__name__}: {text} (--traceback shows where)"
        terminal.complain(f"error: {text}")
        return 2 if expected else 1


def _status(words: list[str]) -> int:
    """Run one command; a parser that printed its help has done what was asked for."""
    try:
        return _run(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def versions() -> str:
    """List the versions of this package, of what it stands on, and of the machine, a line each.

    Nothing of these is imported.
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    lines = [f"vision-attn {__version__}", f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} is not installed")
    lines.append(f"{platform.system()} {platform.machine()}, {cores.usable_cores()} cores")
    return "\n".join(lines)


def _run(words: list[str]) -> int:
    command, *rest = words or ["--help"]
    for library in (r"PIL\.", r"torch\.serialization"):  # on files of which there is a line of ours
        warnings.filterwarnings("ignore", category=UserWarning, module=library)
    if command in ("-h", "--help", "help"):
        listed = {**TRAINING, **COMMANDS}
        print(HELP.format(commands="\n".join(f"  {n:<10} {text}" for n, text in listed.items())))
        return 0
    if command in ("-V", "--version"):
        print(versions())
        return 0
    if not {"-h", "--help"} & set(rest):  # which need not wait for this
        terminal.log_lines()
        if command in TRAINING | COMMANDS:
            launched()  # libraries read the same variables as they are imported
    if command in TRAINING:
        status: int = import_module(".commands.fit.words", __package__).main(command, rest)
        return status
    if command in COMMANDS:
        module = import_module(f".commands.{command}", __package__)
        parser = Parser(prog=f"vision-attn {command}", description=COMMANDS[command])
        module.add_arguments(parser)
        from vision_attn.commands.options import bounded

        args = parser.parse_intermixed_args(rest)
        with bounded(args):
            failures: int | None = module.run(args)
        return failures or 0
    raise ValueError(f"unknown command {quoted(command)}{nearest(command, [*TRAINING, *COMMANDS])}")


class Parser(argparse.ArgumentParser):
    """argparse that raises, and offers the nearest option for a misspelt one."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            word = unknown.split()[0].split("=")[0]
            message = f"unknown option {word}{nearest(word, options_of(self))}"
            if not word.startswith("-"):
                message = f"unexpected argument {word!r}: leave it out, or name an option before it"
        raise ValueError(f"{message} (see {self.prog} --help)")


def nearest(word: str, known: Sequence[str]) -> str:
    """Return the hint after an unknown word: the nearest known ones."""
    close = get_close_matches(word, known, n=3, cutoff=0.6)
    if close:
        return f": did you mean {' or '.join(close)}?"
    return f": expected one of {', '.join(known)}" if len(known) <= 20 else ""
