"""vision_attn: attention in images, from the formula to the heatmap.

>>> import vision_attn
>>> model = vision_attn.load_model("timm:vit_small_patch16_224")
>>> found = model.explain("dog_cat.png", "Rollout", target="tabby")
>>> found.overlay().save("where_it_looks.png")

Names load on first use, so `import vision_attn` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import attention, data, evaluate, explain, models, render, reports, shelf, training
    from .distillation import Distillation
    from .fitting import FittedRun, fit
    from .hub import LoadedModel, load_model
    from .reports.drawing import draw_pictures
    from .reports.explanation import Explanation, Explanations
    from .reports.export import export
    from .reports.gallery import film, gallery
    from .reports.inspection import inspect
    from .reports.live import live
    from .reports.opened import SavedResults, open_results
    from .reports.scoring import removal, score
    from .shelf import list_models
    from .types import Heatmaps, TokenLayout

__version__ = "0.1.0"

_PARTS = [
    "attention",
    "data",
    "evaluate",
    "explain",
    "hub",
    "models",
    "render",
    "reports",
    "shelf",
    "training",
    "types",
]
_NAMES = {
    "Distillation": "distillation",
    "Explanation": "reports.explanation",
    "Explanations": "reports.explanation",
    "FittedRun": "fitting",
    "Heatmaps": "types",
    "LoadedModel": "hub",
    "SavedResults": "reports.opened",
    "TokenLayout": "types",
    "draw_pictures": "reports.drawing",
    "export": "reports.export",
    "film": "reports.gallery",
    "fit": "fitting",
    "gallery": "reports.gallery",
    "inspect": "reports.inspection",
    "list_models": "shelf",
    "live": "reports.live",
    "load_model": "hub",
    "open_results": "reports.opened",
    "removal": "reports.scoring",
    "score": "reports.scoring",
}

__all__ = ["__version__", *_NAMES, *_PARTS]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f".{name}", __name__)
    if name in _NAMES:
        return getattr(import_module(f".{_NAMES[name]}", __name__), name)
    raise AttributeError(f"module 'vision_attn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
