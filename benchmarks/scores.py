"""Deletion on the same ViT, maps and steps: ours beside Quantus and grad-cam, and the same numbers.

    python benchmarks/scores.py [--model vit_small_patch16_224] [--images 16] [--steps 12]
    python benchmarks/scores.py --model outputs/demo/vit/best.ckpt --images 64 --steps 24

Needs the peers: pip install quantus grad-cam. Quantus counts colours apart and wants its steps to
divide the pixels: at 224 x 224 the number of steps is 3, 6, 12 or 24. A timm model has random
weights, a checkpoint of ours its own. Prints images a second of
each, the median of interleaved rounds, and how far the scores that are defined alike lie apart.
The mean deletion scores differ by what is removed: a token, a patch, or single colours of a pixel.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import timm
import torch
from jaxtyping import Float, Int
from machines import photos_of
from timing import Clock, KeyRatio, forward
from torch import Tensor, nn
from torch.nn import functional as F

import vision_attn
from vision_attn.devices import native_precision
from vision_attn.evaluate import (
    Deletion,
    DroppedTokens,
    EnergyPointingGame,
    FilledCells,
    PointingGame,
    Removal,
    Sparseness,
)
from vision_attn.hub import load_model
from vision_attn.models import vit_from_timm
from vision_attn.types import Images

warnings.simplefilter("ignore")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    if args.model.endswith(".ckpt"):
        network = load_model(args.model).network
    else:
        network = vit_from_timm(timm.create_model(args.model)).eval()
        torch.nn.init.normal_(network.head.weight, std=0.2)
    side = network.patch_size * network.grid[0]
    images = F.interpolate(torch.randn(args.images, 3, 8, 8), size=side, mode="bicubic")
    maps = torch.rand(args.images, *network.grid)
    with torch.no_grad():
        targets = network(images).argmax(1)

    def deletion(removal: Removal, autocast: bool) -> float:
        metric = Deletion(removal, steps=args.steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            metric.update(images, maps, targets)
        return float(metric.compute())

    dropped = DroppedTokens(network.forward_kept_tokens, network.grid)
    filled = FilledCells(network, network.grid, rows=args.images)
    native = native_precision("cpu") == "bf16-mixed"
    contenders: dict[str, Callable[[], float]] = {
        "ours: tokens dropped, fp32": lambda: deletion(dropped, False),
        "ours: patches filled, fp32": lambda: deletion(filled, False),
        "quantus PixelFlipping": lambda: quantus_deletion(network, images, maps, targets, args),
        "grad-cam ROADMostRelevantFirst": lambda: road(network, images, maps, targets, args),
    }
    if native:
        contenders["ours: tokens dropped, bf16"] = lambda: deletion(dropped, True)
        contenders["ours: patches filled, bf16"] = lambda: deletion(filled, True)
    print(
        f"{args.model}, {args.images} images, {args.steps} steps, {torch.get_num_threads()} threads"
    )
    times: dict[str, list[float]] = {name: [] for name in contenders}
    scores = {}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            scores[name] = run()
            times[name].append(time.perf_counter() - start)
    quickest = min(statistics.median(t) for name, t in times.items() if name.startswith("ours"))
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(
            f"{name:32} {args.images / median:8.2f} images/s, our quickest is "
            f"{median / quickest:5.1f}x as fast, mean score {scores[name]:.4f}"
        )
    agreement()


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """Deletion by dropped tokens, and all of `score`, beside passes over the same images."""
    network = vit_from_timm(timm.create_model("vit_small_patch16_224")).eval()
    images, maps = torch.randn(4, 3, 224, 224), torch.rand(4, *network.grid)
    dropped = DroppedTokens(network.forward_kept_tokens, network.grid)
    targets = torch.zeros(4, dtype=torch.long)
    yield clock.ratio(
        "Deletion of 12 steps / forward pass",
        lambda: Deletion(dropped, steps=12).update(images, maps, targets),
        forward(lambda: network(images)),
    )
    model = load_model("vision_attn:compact_vit_imagenette")
    pixels = torch.randn(4, 3, *model.preprocess.input_size)
    with tempfile.TemporaryDirectory() as place:
        photos = photos_of(4, Path(place))

        def score() -> None:
            with tempfile.TemporaryDirectory() as output:
                vision_attn.score(model, str(photos), "Rollout", output=f"{output}/scores")

        yield clock.ratio(
            "score of Rollout / forward pass", score, forward(lambda: model.network(pixels))
        )


def quantus_deletion(
    network: nn.Module,
    images: Images,
    maps: Float[Tensor, "b y x"],
    targets: Int[Tensor, " b"],
    args: argparse.Namespace,
) -> float:
    """As many steps, 0 for what is gone, the largest values first."""
    import quantus

    metric = quantus.PixelFlipping(
        features_in_step=images[0].numel() // args.steps,
        perturb_baseline=0.0,
        normalise=False,
        return_auc_per_sample=False,
        disable_warnings=True,
    )
    enlarged = F.interpolate(maps[:, None], size=images.shape[2:], mode="nearest")
    with contextlib.redirect_stdout(io.StringIO()):
        curves = metric(
            model=network,
            x_batch=images.numpy(),
            y_batch=targets.numpy(),
            a_batch=enlarged.numpy(),
            batch_size=len(images),
            device="cpu",
        )
    with torch.no_grad():  # Quantus leaves the whole image out of its curve
        whole = network(images).softmax(1).gather(1, targets[:, None])
    curves = np.concatenate([whole.numpy(), np.array(curves)], axis=1)
    return float(np.trapezoid(curves, dx=1 / args.steps, axis=1).mean())


def road(
    network: nn.Module,
    images: Images,
    maps: Float[Tensor, "b y x"],
    targets: Int[Tensor, " b"],
    args: argparse.Namespace,
) -> float:
    """Its imputation solves a linear system an image and step; its score is another one."""
    from pytorch_grad_cam.metrics.road import ROADMostRelevantFirst
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget

    enlarged = F.interpolate(maps[:, None], size=images.shape[2:], mode="nearest")[:, 0].numpy()
    questions = [ClassifierOutputSoftmaxTarget(int(target)) for target in targets]
    scores = [
        ROADMostRelevantFirst(percentile=100 - 100 * step / args.steps)(
            images, enlarged, questions, network
        )
        for step in range(1, args.steps)
    ]
    return float(np.mean(scores))


def agreement() -> None:
    """The same maps and masks through ours and Quantus: largest difference an image."""
    import quantus

    generator = torch.Generator().manual_seed(1)
    maps = torch.rand(32, 24, 24, generator=generator)
    masks = torch.zeros(32, 24, 24, dtype=torch.bool)
    masks[:, 5:15, 3:12] = True
    images, targets = torch.randn(32, 1, 24, 24, generator=generator), torch.zeros(32).long()
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24 * 24, 3)).eval()
    given = {
        "model": network,
        "x_batch": images.numpy(),
        "y_batch": targets.numpy(),
        "a_batch": maps[:, None].numpy(),
        "s_batch": masks[:, None].numpy(),
    }
    pairs = {
        "pointing game": (PointingGame(), quantus.PointingGame),
        "energy inside the mask": (EnergyPointingGame(), quantus.RelevanceMassAccuracy),
        "sparseness (Gini)": (Sparseness(), quantus.Sparseness),
    }
    deletion = Deletion(FilledCells(network, grid=(24, 24)), steps=16)
    deletion.update(images, maps, targets)
    peer = quantus.PixelFlipping(
        features_in_step=36, perturb_baseline=0.0, normalise=False, disable_warnings=True
    )
    difference = np.abs(deletion.curves()[:, 1:].numpy() - np.array(peer(**given))).max()
    print(f"{'deletion curve':32} differs from quantus by at most {difference:.1e}")
    for name, (ours, theirs) in pairs.items():
        ours.update(maps) if name.startswith("sparse") else ours.update(maps, masks)
        with contextlib.redirect_stdout(io.StringIO()):
            peer = theirs(normalise=False, abs=False, disable_warnings=True)
            expected = np.array(peer(**given), dtype=float)
        difference = np.abs(ours.per_image().numpy() - expected).max()
        print(f"{name:32} differs from quantus by at most {difference:.1e}")


if __name__ == "__main__":
    main()
