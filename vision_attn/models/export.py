"""A network as one file that runs without this package: ONNX, or for torch.export.load.

Axes: b batch, h height, w width, k classes.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.arguments import checked
from vision_attn.files import replacing
from vision_attn.inference import eval_mode, frozen_parameters, infer
from vision_attn.types import Model

__all__ = ["Exported", "export"]

TOLERANCE = 1e-4  # of the largest logit
MISSING = "pip install onnx onnxscript onnxruntime: writing and checking ONNX needs them ({})"


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far its logits are from the network's.

    Attributes:
        path: The file.
        difference: Max |found - expected| / max |expected|, on random images.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.models.export import Exported
        >>> f"{Exported(Path('m.onnx'), 2e-7).difference:.0e}"
        '2e-07'
    """

    path: Path
    difference: float


@checked()
def export(model: Model, path: str | Path) -> Exported:
    """Write a model as ONNX (a name in .onnx) or by torch.export (.pt2), and check its logits.

    The file takes any number of images (b 3 h w) of the model's input size, normalised as its
    `preprocess` does, and gives logits (b k). It appears under its name when it is whole and right.

        exported = vision_attn.export(vision_attn.load_model("timm:resnet18"), "resnet18.onnx")
        exported.path, exported.difference

    Args:
        model: A model of `load_model` or `wrap`.
        path: The file, in .onnx or .pt2.

    Returns:
        The file, and how far its logits are from the network's.

    Raises:
        ValueError: The name is of another kind, onnxruntime is missing, or the logits differ from
            the network's by more than 1e-4 of the largest.
        OSError: It cannot be written.
    """
    path = Path(path)
    if path.suffix not in WRITERS:
        raise ValueError(f"{path}: expected a name that ends in .onnx or .pt2")
    path.parent.mkdir(parents=True, exist_ok=True)
    network = model.network
    size = 2, 3, *model.preprocess.input_size
    images = torch.randn(size, dtype=torch.float32, device=model.device)
    with eval_mode(network), frozen_parameters(network), replacing(path) as file:
        difference = WRITERS[path.suffix](network, images, file)
        if not difference <= TOLERANCE:
            raise ValueError(
                f"{path}: its logits differ by {difference:.1e} of the largest: "
                "the file was not kept"
            )
    return Exported(path, difference)


def _write_onnx(network: nn.Module, images: Tensor, path: Path) -> float:
    """Write ONNX for any batch size; return how far onnxruntime's logits are from the network's."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch writes ONNX by it
    except ImportError as error:
        raise ValueError(MISSING.format(error)) from error
    expected = infer(network, images)
    program: Any = torch.onnx.export(
        network,
        (images,),
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    _write(program.model_proto.SerializeToString(), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    more = torch.cat([images, images[:1]])
    outputs = torch.from_numpy(session.run(None, {"images": more.cpu().numpy()})[0])
    return relative_difference(outputs[:2], expected)


def _write_pt2(network: nn.Module, images: Tensor, path: Path) -> float:
    """The same by torch.export, for torch.export.load."""
    import io

    expected = infer(network, images)
    program = torch.export.export(
        network, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    buffer = io.BytesIO()  # torch's own writer aborts the process on a full disk
    torch.export.save(program, buffer)
    _write(buffer.getbuffer(), path)
    return relative_difference(torch.export.load(path).module()(images), expected)


def _write(content: bytes | memoryview, path: Path) -> None:
    """Write all of it to the disk; OSError where there is no room (torch's writers abort)."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """Compute max |found - expected| / max |expected|."""
    return float((actual.cpu() - expected.cpu()).abs().max() / expected.abs().max().cpu())


WRITERS = {".onnx": _write_onnx, ".pt2": _write_pt2}
