"""Twelve photos that chose nothing, a row a method, for docs/libra_gradient.md.

python docs/pictures/twelve.py [FOLDER]
"""

import sys
from pathlib import Path

from PIL import Image, ImageDraw

import vision_attn
from vision_attn.data.draws import permutation
from vision_attn.data.images import find_images

FILE = Path(__file__).parent / "twelve.jpg"
NETWORK = "vision_attn:compact_vit_imagenette"
PLACES = slice(348, 360)  # of the permutation that `score` draws with seed 0
SIDE, LEFT = 96, 210  # pixels of a photo, and of the methods' names
METHODS = (
    "LibraGradient",
    "LibraGradient(smooth=0)",
    "Relevance(smooth=1.0)",
    "LeGrad(smooth=1.0)",
    "HiResCAM(layer=norm,smooth=1.0)",
    "MaskedRegression",
    "Rollout",
)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".data/imagenette160/val")
    model = vision_attn.load_model(NETWORK)
    files = find_images([folder])
    chosen = [files[place] for place in permutation((0,), len(files))[PLACES].tolist()]
    step = SIDE + 4
    sheet = Image.new("RGB", (LEFT + step * len(chosen), step * (1 + len(METHODS))), "white")
    draw = ImageDraw.Draw(sheet)
    for column, file in enumerate(chosen):
        left = LEFT + column * step
        explanation = model.explain(file, METHODS, target="label")
        sheet.paste(explanation.photo.resize((SIDE, SIDE)), (left, 0))
        for row in range(len(METHODS)):
            sheet.paste(explanation.overlay(row).resize((SIDE, SIDE)), (left, (row + 1) * step))
    for row, name in enumerate(("photo", *METHODS)):
        draw.text((4, row * step + SIDE / 2), name, fill="black", font_size=12, anchor="lm")
    sheet.save(FILE, quality=88)
    print(FILE)


if __name__ == "__main__":
    main()
