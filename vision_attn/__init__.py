"""vision_attn: attention in images, from the formula to the heatmap.

>>> import vision_attn
>>> model = vision_attn.load_model("timm:vit_small_patch16_224")
>>> found = model.explain("dog_cat.png", "Rollout", target="tabby")
>>> found.overlay().save("where_it_looks.png")

Names load on first use, so `import vision_attn` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # "as" says to type checkers that a name is public
    from . import attention as attention
    from . import data as data
    from . import evaluate as evaluate
    from . import fitting as fitting
    from . import methods as methods
    from . import models as models
    from . import pages as pages
    from . import render as render
    from . import runs as runs
    from . import sequences as sequences
    from . import tokens as tokens
    from . import training as training
    from .data.example_photos import sample as sample
    from .distillation import Distillation as Distillation
    from .fitting.fit import FittedRun as FittedRun
    from .fitting.fit import fit as fit
    from .hub import load_model as load_model
    from .hub import wrap as wrap
    from .models.export import export as export
    from .models.shelf import list_models as list_models
    from .pages.ablation.run import ablate as ablate
    from .pages.comparison.run import compare as compare
    from .pages.diagnosis.run import diagnose as diagnose
    from .pages.gallery.drawing import draw_pictures as draw_pictures
    from .pages.gallery.run import film as film
    from .pages.gallery.run import gallery as gallery
    from .pages.inspect.inspection import inspect as inspect
    from .pages.live.report import live as live
    from .pages.patching.run import patch_states as patch_states
    from .runs.diagnosis.remedy import add_registers as add_registers
    from .runs.explain import explain as explain
    from .runs.explanation import Explanation as Explanation
    from .runs.explanation import Explanations as Explanations
    from .runs.interventions import intervene as intervene
    from .runs.patches import patch_components as patch_components
    from .runs.patches import patch_similarity as patch_similarity
    from .runs.results import SavedResults as SavedResults
    from .runs.results import open_results as open_results
    from .runs.scoring import removal as removal
    from .runs.scoring import score as score
    from .runs.similarity import nearest_photos as nearest_photos
    from .runs.similarity import photo_similarity as photo_similarity
    from .runs.texts import token_attribution as token_attribution
    from .tokens.path.support import probe as probe
    from .tokens.record.weights import attention_weights as attention_weights
    from .types import Heatmaps as Heatmaps
    from .types import Model as Model
    from .types import TokenLayout as TokenLayout

__version__ = "0.1.0"

_PARTS = [
    "attention",
    "data",
    "evaluate",
    "fitting",
    "hub",
    "methods",
    "models",
    "pages",
    "render",
    "runs",
    "sequences",
    "tokens",
    "training",
    "types",
]
_NAMES = {
    "Distillation": "distillation",
    "Explanation": "runs.explanation",
    "Explanations": "runs.explanation",
    "FittedRun": "fitting.fit",
    "Heatmaps": "types",
    "Model": "types",
    "SavedResults": "runs.results",
    "TokenLayout": "types",
    "ablate": "pages.ablation.run",
    "add_registers": "runs.diagnosis.remedy",
    "attention_weights": "tokens.record.weights",
    "compare": "pages.comparison.run",
    "diagnose": "pages.diagnosis.run",
    "draw_pictures": "pages.gallery.drawing",
    "explain": "runs.explain",
    "export": "models.export",
    "film": "pages.gallery.run",
    "fit": "fitting.fit",
    "gallery": "pages.gallery.run",
    "intervene": "runs.interventions",
    "inspect": "pages.inspect.inspection",
    "list_models": "models.shelf",
    "live": "pages.live.report",
    "load_model": "hub",
    "nearest_photos": "runs.similarity",
    "open_results": "runs.results",
    "patch_components": "runs.patches",
    "patch_similarity": "runs.patches",
    "photo_similarity": "runs.similarity",
    "patch_states": "pages.patching.run",
    "probe": "tokens.path.support",
    "removal": "runs.scoring",
    "sample": "data.example_photos",
    "score": "runs.scoring",
    "token_attribution": "runs.texts",
    "wrap": "hub",
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
