"""`vision-attn export MODEL`: a network as one file that runs without this package.

Light to import, so that its help comes at once: torch comes in with `run`.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands import options

if TYPE_CHECKING:
    from torch import Tensor, nn

TOLERANCE = 1e-4  # of the largest logit
MISSING = "pip install onnx onnxscript onnxruntime: writing and checking ONNX needs them ({})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's words and options."""
    options.add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="outputs/model.onnx",
        metavar="FILE",
        help="a name in .onnx, or in .pt2 for torch.export (default: outputs/model.onnx)",
    )


def run(args: argparse.Namespace) -> int:
    """Raises ValueError where the file is of another kind, or its logits are not the network's."""
    path = Path(args.output)
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"--output {path}: expected a name that ends in .onnx or .pt2")
    import torch

    model = options.load(args)
    network = model.network.eval().requires_grad_(False)
    device = next(network.parameters()).device
    images = torch.randn(2, 3, *model.preprocess.input_size, device=device)
    path.parent.mkdir(parents=True, exist_ok=True)
    write = write_onnx if path.suffix == ".onnx" else write_pt2
    difference = write(network, images, path)
    if difference > TOLERANCE:
        raise ValueError(f"{path}: its logits are off by {difference:.1e} of the largest: no use")
    height, width = model.preprocess.input_size
    print(
        f"{path}: any number of images of {height} x {width}, mean {model.preprocess.mean} and std "
        f"{model.preprocess.std} taken off; logits checked, within {difference:.0e}"
    )
    return 0


def write_onnx(network: "nn.Module", images: "Tensor", path: Path) -> float:
    """The network for any batch size; how far onnxruntime's logits are from the network's."""
    import torch

    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch writes ONNX by it
    except ImportError as error:
        raise ValueError(MISSING.format(error)) from error
    expected = network(images)
    torch.onnx.export(
        network,
        (images,),
        path,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    more = torch.cat([images, images[:1]])
    found = torch.from_numpy(session.run(None, {"images": more.cpu().numpy()})[0])
    return relative_difference(found[:2], expected)


def write_pt2(network: "nn.Module", images: "Tensor", path: Path) -> float:
    """The same by torch.export, for torch.export.load."""
    import torch

    expected = network(images)
    program = torch.export.export(
        network, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, path)
    return relative_difference(torch.export.load(path).module()(images), expected)


def relative_difference(found: "Tensor", expected: "Tensor") -> float:
    """max |found - expected| / max |expected|."""
    return float((found.cpu() - expected.cpu()).abs().max() / expected.abs().max().cpu())
