"""Explainers by name: as written on the command line, all there are, those that fit a network."""

import ast
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from vision_attn.arguments import checked, hint
from vision_attn.errors import LONGEST, cut, listed, quoted
from vision_attn.methods.attribution import Attribution, IntegratedGradients, Occlusion
from vision_attn.methods.base import Explainer, layout_for
from vision_attn.methods.baselines import Baseline, CentreGaussian, EdgeMap, RandomMap
from vision_attn.methods.gates import ChannelGates, SpatialGates
from vision_attn.methods.gradcam import GradCAM, GradCAMPlusPlus, HiResCAM, LayerCAM, XGradCAM
from vision_attn.methods.legrad import LeGrad
from vision_attn.methods.libra import LibraGradient
from vision_attn.methods.lime import LIME
from vision_attn.methods.masked_regression import MaskedRegression
from vision_attn.methods.options import takes
from vision_attn.methods.raw_attention import QueryKey, RawAttention
from vision_attn.methods.relevance import AttentionGradCAM, Relevance
from vision_attn.methods.rollout import GradientRollout, Rollout, WeightedRollout
from vision_attn.tokens.modules import network_of
from vision_attn.tokens.outputs import giving
from vision_attn.tokens.path.path import find_path
from vision_attn.tokens.path.support import blank_image
from vision_attn.types import Model

__all__ = [
    "MisfitError",
    "choose_methods",
    "fitting_methods",
    "is_trusted",
    "methods",
    "parse_method",
    "usual_method",
]

METHODS: tuple[type[Explainer], ...] = (
    *(RawAttention, QueryKey, Rollout, WeightedRollout),  # attention
    *(GradientRollout, Relevance, AttentionGradCAM, LeGrad),  # attention and its gradient
    LibraGradient,  # tokens and their gradient
    *(GradCAM, GradCAMPlusPlus, XGradCAM, HiResCAM, LayerCAM),  # features and their gradient
    *(ChannelGates, SpatialGates),  # gates
    IntegratedGradients,  # the input's gradient
    *(Occlusion, MaskedRegression, LIME),  # perturbation
    *(RandomMap, CentreGaussian, EdgeMap),  # baselines
)

CALL = re.compile(r"\s*(?P<name>\w+)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL)
# A value is a quoted text, a flat tuple or list, or anything without commas and brackets.
OPTION = re.compile(
    r"\s*(?P<name>\w+)\s*=\s*"
    r"(?P<value>'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|[^,()\[\]'\"]+?)\s*(?:,|$)"
)
LONGEST_LINE = 280  # characters of a message and of a list that follows it
CONSTANTS = {"true": True, "false": False, "none": None}


class MisfitError(ValueError):
    """A method does not fit a network.

    Examples:
        >>> from vision_attn.methods.by_name import MisfitError
        >>> issubclass(MisfitError, ValueError)
        True
    """


def methods() -> dict[str, type[Explainer]]:
    """Name every explainer that comes with `vision_attn.methods`, kind by kind, baselines last.

    Examples:
        >>> from vision_attn.methods import methods
        >>> methods()["Rollout"]().discard
        0.0
    """
    return {method.__name__: method for method in METHODS}


@checked()
def fitting_methods(network: nn.Module | Model) -> list[Explainer]:
    """List every method, with its default options, that can explain this network, kind by kind.

    Args:
        network: A network or a model; for a model this is decided at its input size, as in a call.

    Returns:
        The explainers.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.methods import fitting_methods
        >>> [str(one) for one in fitting_methods(nn.Conv2d(3, 5, 3)) if "CAM" in str(one)]
        ['GradCAM', 'GradCAMPlusPlus', 'XGradCAM', 'HiResCAM', 'LayerCAM']
    """
    candidates = [method() for method in METHODS]
    return [explainer for explainer in candidates if refusal(explainer, network) is None]


def refusal(explainer: Explainer, network: nn.Module | Model) -> str | None:
    """Say why a method does not fit a network, or a model on images of its input size."""
    if not isinstance(network, Model):
        return explainer.misfit(network)
    image = blank_image(network.network, network.preprocess.input_size)
    try:
        with giving(network.network, network.head):
            return explainer.misfit(network.network, image, layout_for(network, image))
    except Exception:  # its own code, on a blank image
        return None


def method_list(methods: Any) -> list[str | Explainer]:
    """List what was given as methods: a name or an explainer, or several of these; none for None.

    Raises ValueError for anything else.

    Examples:
        >>> from vision_attn.methods.by_name import method_list
        >>> method_list("Rollout"), method_list(None)
        (['Rollout'], [])
    """
    if methods is None:
        return []
    is_single = isinstance(methods, str | bytes | type | nn.Module) or not isinstance(
        methods, Iterable
    )
    several = [methods] if is_single else list(methods)
    for method in several:
        if not isinstance(method, str | Explainer):
            is_class = isinstance(method, type) and issubclass(method, Explainer)
            raise ValueError(
                "methods: expected names, such as 'Rollout', or explainers, such as Rollout(), got "
                f"{quoted(method)}{f': make one, {method.__name__}()' if is_class else ''}"
            )
    return several


@checked()
def choose_methods(
    methods: str | Explainer | Sequence[str | Explainer] | None, network: nn.Module | Model
) -> list[Explainer]:
    """Make explainers of methods, given by name or as explainers, each once, baselines last.

    Args:
        methods: Names, explainers, or a list of these. None: the usual one (`usual_method`); "all":
            every method that fits, first those that scores have shown to be trusted
            (`Model.trust`), with their options.
        network: The network or model that they are to explain.

    Returns:
        The explainers.

    Raises:
        ValueError: A method is unknown.
        MisfitError: One does not fit the network; it is a ValueError too.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.methods import choose_methods
        >>> chosen = choose_methods(["EdgeMap(cells=7)", "EdgeMap(cells=7)"], nn.Conv2d(3, 5, 3))
        >>> list(map(str, chosen))
        ['EdgeMap(cells=7)']
    """
    if not (words := method_list(methods)):
        return [usual_method(network)]
    chosen: list[Explainer] = []
    for method in words:
        if isinstance(method, Explainer):
            chosen.append(method.named_in(network))
        elif method.strip().lower() == "all":
            fitting = [*_trusted(network), *_some_fitting(network)]
            chosen += sorted(fitting, key=lambda method: not is_trusted(method, network))
        else:
            chosen.append(parse_method(method))
    for explainer in chosen:
        if reason := refusal(explainer, network):
            misfit = f"{cut(str(explainer))} does not fit this model: {reason}; these methods do: "
            most = max(LONGEST, LONGEST_LINE - len(misfit))
            raise MisfitError(misfit + listed(_some_fitting(network), most=most))
    return sorted(
        dict.fromkeys(chosen),
        key=lambda method: isinstance(method, Baseline),
    )


def _some_fitting(network: nn.Module | Model) -> list[Explainer]:
    """List the methods that fit, of which there must be one."""
    if not (fit := fitting_methods(network)):
        raise ValueError(f"no method fits {type(network_of(network)).__name__}")
    return fit


@checked()
def usual_method(network: nn.Module | Model, class_blind: bool = False) -> Explainer:
    """Choose the method that is taken where none is asked for.

    It is the first that scores have shown to be trusted for the model (`Model.trust`) and that
    takes one pass or two. Where there is none it is LibraGradient for a network that attends or has
    tokens, and GradCAM for others.

    Args:
        network: A network or a model.
        class_blind: Whether it should be a method whose map is of no class.

    Returns:
        The explainer; never a baseline. Where each method that fits explains a class, it is of one
            of these, class_blind or not.

    Raises:
        ValueError: No method but the baselines fits the network.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.methods import usual_method
        >>> str(usual_method(nn.Conv2d(3, 5, 3)))
        'GradCAM'
    """
    usual = [LibraGradient(), GradCAM()] if _has_tokens(network) else [GradCAM(), LibraGradient()]
    usual = [*_trusted(network), *usual, Rollout()]
    for explainer in (
        candidate for candidate in usual if not (class_blind and candidate.class_specific)
    ):
        if refusal(explainer, network) is None:
            return explainer
    fitting = [method for method in fitting_methods(network) if not isinstance(method, Baseline)]
    for explainer in fitting:
        if not (class_blind and explainer.class_specific):
            return explainer
    if class_blind and fitting:
        return usual_method(network)
    return choose_methods([GradCAM()], network)[0]  # which says why it does not fit


@checked()
def is_trusted(explainer: Explainer, network: nn.Module | Model) -> bool:
    """Whether scores have shown that this method's maps can be trusted for this model.

    Args:
        explainer: The method with its options.
        network: A model, whose `trust` tells; of a bare network nothing is known.

    Returns:
        True where it is among the trusted.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.methods import GradCAM, is_trusted
        >>> is_trusted(GradCAM(), nn.Conv2d(3, 5, 3))  # of which nothing is known
        False
    """
    trust = network.trust if isinstance(network, Model) else None
    return trust is not None and str(explainer) in trust.methods


def _trusted(network: nn.Module | Model) -> list[Explainer]:
    """List the methods that scores trust, without those that take many passes."""
    if not isinstance(network, Model) or network.trust is None:
        return []
    trusted = []
    for name in network.trust.methods:
        with suppress(ValueError):  # of another version
            trusted.append(parse_method(name))
    return [explainer for explainer in trusted if not isinstance(explainer, Attribution)]


def _has_tokens(network: nn.Module | Model) -> bool:
    """Whether a network attends anywhere, or is known to be made of tokens."""
    if isinstance(network, Model) and network.layout is not None:
        return True
    size = network.preprocess.input_size if isinstance(network, Model) else None
    module = network_of(network)
    try:
        return bool(find_path(module, blank_image(module, size)).steps)
    except Exception:  # its own code, on a blank image
        return False


@checked()
def parse_method(text: str) -> Explainer:
    """Make an explainer of a text: `Rollout`, `Rollout(fusion=max, discard=0.9)`.

    Args:
        text: A name, with options or without. Values are Python literals, true / false / none, or
            bare words (`layer=layer4.2`); nothing is evaluated.

    Returns:
        The explainer.

    Raises:
        ValueError: The name or an option is unknown, and the nearest is told; or a value is one
            that the option does not take.

    Examples:
        >>> from vision_attn.methods import parse_method
        >>> parse_method("QueryKey(query=(3, 5), kind=scores)").query
        (3, 5)
    """
    call = CALL.fullmatch(text) if isinstance(text, str) else None
    if call is None:
        raise ValueError(
            f"expected a method as Name or Name(option=value, ...), got {quoted(text)}"
        )
    classes = methods()
    name = call["name"]
    if name not in classes:
        raise ValueError(
            f"unknown method {quoted(name)}{hint(name, classes)}; known: {listed(classes)}"
        )
    method = classes[name]
    options = _options(call["options"] or "", text)
    for option in options:
        if option not in method.options():
            near, own = hint(option, method.options()), ", ".join(method.options()) or "none"
            raise ValueError(f"{name} has no option {quoted(option)}{near}; its options: {own}")
    return method(**{option: _value(method, option, value) for option, value in options.items()})


def _options(text: str, whole: str) -> dict[str, str]:
    """Split options into names and values, as they are typed."""
    options: dict[str, str] = {}
    rest = text.strip()
    while rest:
        option = OPTION.match(rest)
        if option is None:
            raise ValueError(f"expected option=value in {quoted(whole)}, got {quoted(rest)}")
        if option["name"] in options:
            raise ValueError(f"option {quoted(option['name'])} is given twice in {quoted(whole)}")
        options[option["name"]] = option["value"]
        rest = rest[option.end() :].strip()
    return options


def _value(method: type[Explainer], option: str, text: str) -> Any:
    """Read a value as a Python literal if the option takes that, else as the word itself.

    A list may be one of words, where the option takes that.
    """
    try:
        literal = CONSTANTS[text] if text in CONSTANTS else ast.literal_eval(text)
        return method.convert_option(option, literal)
    except (ValueError, SyntaxError, TypeError):
        if text[:1] in "[(" and takes(method.options()[option], ...):
            words = text[1:-1].rstrip(", ").split(",")
            value = [_value(method, option, word.strip()) for word in words]
            return method.convert_option(option, value)
        return method.convert_option(option, text.strip("'\""))
