"""The running example of Learn: one photo, one sentence, and every number that its pages play with.

The words and the patches are described by hand, with numbers of one digit. The attention of the
network and what it answers when parts of the photo are covered are the network's own.
"""

import base64
import json
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vision_attn
from vision_attn.data import example_photos
from vision_attn.tokens import record_attention

PHOTO = "church"
NETWORK = "vision_attn:compact_vit_imagenette"
SIDE = 8  # patches across the photo, where they are described by hand
HEADS_OF = 2  # layer, counted from 0, whose heads are kept one by one
COVERED = 11  # cells that are covered in one step of deletion

# What a word is about, and whether it tells how something looks.
FEATURES = ("stone", "grass", "sky", "look")
WORDS = {
    "old": (1, 0, 0, 2),
    "church": (3, 0, 0, 0),
    "green": (0, 1, 0, 2),
    "grass": (0, 3, 0, 0),
    "dark": (0, 0, 1, 2),
    "clouds": (0, 0, 3, 0),
}
# The translation, in its own order: each word is written from one of the words above.
FRENCH = {
    "vieille": "old",
    "église": "church",
    "herbe": "grass",
    "verte": "green",
    "nuages": "clouds",
    "sombres": "dark",
}
EYE = np.eye(4, dtype=int)
# The additive score: v . tanh(W1 k + W2 q + b), largest where k = q.
ADDITIVE = {
    "key": np.vstack([EYE, -EYE]).tolist(),
    "query": np.vstack([-EYE, EYE]).tolist(),
    "bias": [1] * 8,
    "energy": [1] * 8,
}
# The general score: q' W k. A thing asks for the words that tell how something looks.
GENERAL = [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
LOCATION = [[2, 1, 0, 0], [0, 0, 2, 1], [0, 0, 1, 2], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
KEY_ONLY = {"key": EYE.tolist(), "bias": [0] * 4}
# Facts to hop along: each key leads to its value.
FACTS = {
    "The church stands on the grass.": ("church", "grass"),
    "The grass lies under the clouds.": ("grass", "clouds"),
    "The clouds are dark.": ("clouds", "dark"),
}
# Squeeze and excite: from three channels to hidden ones and back, by reduction.
SQUEEZE = {
    "1": {"fc1": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "fc2": [[2, -1, -1], [-1, 2, -1], [-1, -1, 2]]},
    "3": {"fc1": [[1, -1, 0]], "fc2": [[2], [-2], [1]]},
}
SPATIAL = np.array([np.full((3, 3), -1), np.full((3, 3), 1)]).tolist()


def story() -> dict[str, Any]:
    """Return all that the pages need, as numbers, text and base64."""
    return {
        "features": FEATURES,
        "words": list(WORDS),
        "vectors": list(WORDS.values()),
        "french": list(FRENCH),
        "meanings": [list(WORDS).index(word) for word in FRENCH.values()],
        "additive": ADDITIVE,
        "general": GENERAL,
        "location": LOCATION,
        "keyOnly": KEY_ONLY,
        "facts": list(FACTS),
        "factKeys": [WORDS[key] for key, _ in FACTS.values()],
        "factValues": [WORDS[value] for _, value in FACTS.values()],
        "squeeze": SQUEEZE,
        "spatial": SPATIAL,
        "photo": "data:image/jpeg;base64," + text(example_photos()[PHOTO].read_bytes()),
        "side": SIDE,
        "patches": described().tolist(),
        **seen(),
        "maps": covered(),
    }


def script() -> str:
    """Return the story as the script that the pages load."""
    return f"globalThis.story = {json.dumps(story(), ensure_ascii=False)};\n"


@cache
def photo() -> Image.Image:
    return Image.open(example_photos()[PHOTO]).convert("RGB")


def described() -> np.ndarray:
    """Return how much stone, grass and sky a patch shows, and 0 for its look: (64, 4), 0 to 3.

    By colour alone: grass is green, sky is light without being green, and the rest is stone.
    """
    small = photo().resize((SIDE, SIDE), Image.Resampling.BOX)
    red, green, blue = np.asarray(small, float).transpose(2, 0, 1) / 255
    grass = np.clip((green - (red + blue) / 2 - 0.02) / 0.12, 0, 1)
    sky = (
        np.clip(((red + green + blue) / 3 - 0.33) / 0.15, 0, 1) * (blue > red - 0.01) * (1 - grass)
    )
    stone = 1 - np.maximum(grass, sky)
    digits = np.stack([stone, grass, sky], -1).reshape(-1, 3) * 3
    return np.pad(digits.round().astype(int), ((0, 0), (0, 1)))


@cache
def model() -> vision_attn.Model:
    return vision_attn.load_model(NETWORK)


@cache
def attention() -> list[Tensor]:
    """Return the weights of each layer (head i j) on the photo, and last those of the readout."""
    with torch.no_grad(), record_attention(model()) as record:
        model().network(model().preprocess(photo())[None])
    return [call.weights()[0].double() for call in record.calls]


def seen() -> dict[str, Any]:
    """Return the network's attention, a byte a weight; its rows are yet to be normalised."""
    *layers, readout = attention()
    layout = model().layout
    assert layout is not None
    rows, columns = layout.grid
    return {
        "grid": [rows, columns],
        "layers": [text(as_bytes(layer.mean(0))) for layer in layers],
        "heads": [text(as_bytes(head)) for head in layers[HEADS_OF]],
        "readout": text(as_bytes(readout.mean(0))),
    }


def as_bytes(weights: Tensor) -> bytes:
    """Return rows of weights (i j) as bytes: each row's largest is 255."""
    return (
        (255 * weights / weights.amax(-1, keepdim=True)).round().to(torch.uint8).numpy().tobytes()
    )


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


# All four are maps of this network on this photo.
MAPS = ("LeGrad(smooth=1.0)", "LibraGradient(smooth=1.0)", "Rollout", "Relevance(smooth=1.0)")


def covered() -> list[dict[str, Any]]:
    """Return maps of the photo, the order in which each covers its cells, and the class's share."""
    found = model().explain(photo(), MAPS)
    pixels = model().preprocess(photo())
    target = int(found.probabilities.argmax())
    return [
        one_covered(name, np.asarray(found[name].values, float), pixels, target) for name in MAPS
    ]


def one_covered(name: str, values: np.ndarray, pixels: Tensor, target: int) -> dict[str, Any]:
    """Cover the photo's cells in the order of one map, the brightest first."""
    rows, columns = values.shape
    order = np.argsort(-values, axis=None, kind="stable")
    steps = []
    for count in range(0, rows * columns + 1, COVERED):
        hidden = np.zeros(rows * columns, bool)
        hidden[order[:count]] = True
        mask = torch.from_numpy(hidden.reshape(1, rows, columns)).float()
        cells = torch.nn.functional.interpolate(mask[None], pixels.shape[-2:])[0] > 0.5
        steps.append(torch.where(cells, torch.zeros(()), pixels))
    with torch.inference_mode():
        logits = model().network(torch.stack(steps))
        shares = model().calibration.probabilities(logits)[:, target]
    shown = np.clip(values, 0, None)
    return {
        "name": name.partition("(")[0],
        "values": (9 * shown / shown.max()).round().astype(int).flatten().tolist(),
        "order": order.tolist(),
        "shares": shares.double().numpy().round(3).tolist(),
    }
