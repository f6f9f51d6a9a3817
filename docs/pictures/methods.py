"""Each method on the same two photos, for docs/howto/methods.md.

python docs/pictures/methods.py
"""

from pathlib import Path

from PIL import Image

import vision_attn

HERE = Path(__file__).parent / "methods"
PHOTOS = ("church", "springer_and_milk")
SIDE = 240  # pixels of a photo
METHODS = {
    "compact_vit_imagenette": (
        "LibraGradient",
        "Relevance(smooth=1.0)",
        "LeGrad(smooth=1.0)",
        "MaskedRegression",
        "Rollout",
        "RawAttention",
        "QueryKey",
        "IntegratedGradients",
    ),
    "senet_imagenette": ("GradCAM", "LayerCAM", "ChannelGates"),
    "spatial_cnn_imagenette": ("SpatialGates",),
}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for network, methods in METHODS.items():
        model = vision_attn.load_model(f"vision_attn:{network}")
        for method in methods:
            pair = Image.new("RGB", (2 * SIDE + 6, SIDE), "white")
            for at, name in enumerate(PHOTOS):
                found = model.explain(vision_attn.sample(name), method)
                pair.paste(found.overlay().resize((SIDE, SIDE)), (at * (SIDE + 6), 0))
            file = HERE / f"{method.partition('(')[0]}.jpg"
            pair.save(file, quality=85)
            print(file)


if __name__ == "__main__":
    main()
