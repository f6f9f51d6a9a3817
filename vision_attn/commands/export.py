"""`vision-attn export MODEL`: a network as one file that runs without this package.

Light to import, so that its help comes at once: torch comes in with `run`.
"""

import argparse
from pathlib import Path

from vision_attn.commands import options
from vision_attn.terminal import say

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    options.add_output(
        parser, "outputs/model.onnx", "a name that ends in .onnx, or in .pt2 for torch.export"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print what it takes; ValueError where it would be of another kind."""
    if Path(args.output).suffix not in (".onnx", ".pt2"):
        raise ValueError(f"--output {args.output}: expected a name that ends in .onnx or .pt2")
    from vision_attn.models.export import export

    model = options.load(args)
    exported = export(model, args.output)
    height, width = model.preprocess.input_size
    say(
        f"{exported.path}: takes any number of images of {height} x {width}, normalised by "
        f"mean {model.preprocess.mean} and std {model.preprocess.std}; its logits are those of the "
        f"model within {exported.difference:.0e}"
    )
    return 0
