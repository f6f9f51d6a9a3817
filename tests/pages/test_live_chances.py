"""Probabilities as the page makes them of logits, in Node, against Python's."""

from dataclasses import asdict
from typing import Any, cast

import pytest
import torch

from vision_attn.types import Calibration

LOGITS = [[0.3, -2.0, 4.0, 1.5], [900.0, -900.0, 0.0, 3.0]]

CHANCES = "return job.logits.map((one) => probabilitiesOf(one, job.calibration));"

# The worker with a network whose logits are the numbers of its image: one cell, one number.
CURVES = """
const points = [];
globalThis.postMessage = ({ point }) => points.push(point);
globalThis.inflate = () => "";
globalThis.openKernels = () => ({});
globalThis.Network = class {
  run(image) {
    return { logits: image };
  }
};
globalThis.withCells = (image, _input, _grid, cells) =>
  image.map((one, at) => (cells.has(at) ? 0 : one));
globalThis.roundEven = Math.round;
const [image] = job.logits;
await HANDLERS.open({ kernels: "", networks: [{ how: {}, ...job.calibration }] });
photos.set(0, { inputs: [{ image }] });
await HANDLERS.curves({ id: 1, photo: 0, model: 0, order: [2, 3, 0, 1], target: 2, steps: 2 });
return points;
"""


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_probabilities_are_pythons(in_node: Any, temperature: float, activation: str) -> None:
    known = Calibration(temperature, activation=cast(Any, activation))
    found = in_node(["chances.js"], CHANCES, {}, logits=LOGITS, calibration=asdict(known))
    wanted = known.probabilities(torch.tensor(LOGITS))
    torch.testing.assert_close(torch.tensor([*map(list, found)]), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        (Calibration(2.5, activation="sigmoid"), Calibration(2.5, activation="sigmoid")),
        (Calibration(2.5), Calibration()),  # of the scores, a softmax that is not calibrated
    ],
)
def test_curves_are_of_the_probabilities(
    in_node: Any, given: Calibration, drawn: Calibration
) -> None:
    scripts = ["chances.js", "worker.js"]
    points = in_node(scripts, CURVES, {}, logits=LOGITS[:1], calibration=asdict(given))
    a, b, c, d = LOGITS[0]
    deletion = [[a, b, c, d], [a, b, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    insertion = [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, c, d], [a, b, c, d]]
    for name, logits in (("deletion", deletion), ("insertion", insertion)):
        wanted = drawn.probabilities(torch.tensor(logits))[:, 2].tolist()
        assert [point[name] for point in points] == pytest.approx(wanted, abs=1e-6)
