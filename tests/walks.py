"""Count the files that a reader crosses: those of vision_attn whose functions run in a first call.

    python tests/walks.py           the files of each walk, in the order in which they are entered
    python tests/walks.py Rollout   those of one

The walks: Rollout of a network of timm's, `score` of a network of the shelf on a few photos, and `fit`
for an epoch. What runs while a module is imported is left out, and so are other processes.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import chdir
from inspect import CO_OPTIMIZED  # a flag of functions, not of the bodies of classes
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = Path(__file__).parent.parent / "vision_attn"


def rollout() -> Callable[[], object]:
    import timm
    import torch

    from vision_attn.methods import Rollout

    network = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    images = torch.rand(1, 3, 32, 32)
    return lambda: Rollout()(network, images)


def score() -> Callable[[], object]:
    import vision_attn

    model = vision_attn.load_model("vision_attn:compact_vit_imagenette")
    photos = Path("photos")
    for index, photo in enumerate(vision_attn.data.example_photos().values()):
        folder = photos / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(photo).name).write_bytes(Path(photo).read_bytes())
    return lambda: vision_attn.score(model, "photos", "Rollout", output="scores")


def fit() -> Callable[[], object]:
    import vision_attn

    sizes = {f"data.source.{split}": 40 for split in ("train", "val", "test")}
    options = {**sizes, "trainer.enable_progress_bar": False, "trainer.accelerator": "cpu"}
    return lambda: vision_attn.fit("vit_planted", options, max_epochs=1, output="run")


WALKS = {"Rollout": rollout, "score": score, "fit": fit}


def files_of(call: Callable[[], object]) -> list[str]:
    """The files of vision_attn whose functions run in a call, in the order of entry."""
    inside = f"{PACKAGE}/"
    files: dict[str, None] = {}
    importing: dict[int, int] = {}  # modules, by thread

    def seen(frame: FrameType, event: str, argument: object) -> None:
        code: CodeType = frame.f_code
        thread = threading.get_ident()
        if code.co_name == "<module>":
            importing[thread] = importing.get(thread, 0) + {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and code.co_filename.startswith(inside):
            of_function = code.co_flags & CO_OPTIMIZED and not importing.get(thread)
            files.update({code.co_filename.removeprefix(inside): None} if of_function else {})

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(files)


if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            files = files_of(WALKS[name]())
        print(json.dumps({name: files}, indent=1))
