"""Explainers by name: as written on the command line, all there are, those that fit a network."""

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from vision_attn.explain.base import Explainer
from vision_attn.explain.options import hint

CALL = re.compile(r"\s*(?P<name>\w+)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL)
# A value is a quoted text, a flat tuple or list, or anything without commas and brackets.
OPTION = re.compile(
    r"\s*(?P<name>\w+)\s*=\s*"
    r"(?P<value>'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|[^,()\[\]'\"]+?)\s*(?:,|$)"
)
CONSTANTS = {"true": True, "false": False, "none": None}


def methods() -> dict[str, type[Explainer]]:
    """Every explainer that `vision_attn.explain` exports, by name."""
    from vision_attn import explain

    return {
        name: value
        for name, value in sorted(vars(explain).items())
        if isinstance(value, type)
        and issubclass(value, Explainer)
        and not inspect.isabstract(value)
    }


def fitting(network: nn.Module) -> list[Explainer]:
    """Every method, with its default options, that can explain this network."""
    candidates = [method() for method in methods().values()]
    return [explainer for explainer in candidates if explainer.refusal(network) is None]


def choose_methods(
    methods: Sequence[str | Explainer] | None, network: nn.Module
) -> list[Explainer]:
    """The methods, by name or as explainers, each once.

    None takes Rollout, or GradCAM for a network without attention; the word "all" every method
    that fits. Raises ValueError for a method that is unknown or does not fit the network.
    """
    fit = fitting(network)
    if not fit:
        raise ValueError(f"no method fits {type(network).__name__}")
    if not methods:
        usual = [one for name in ("Rollout", "GradCAM") for one in fit if str(one) == name]
        return (usual or fit)[:1]
    chosen: list[Explainer] = []
    for method in methods:
        if isinstance(method, Explainer):
            chosen.append(method)
        elif method.strip().lower() == "all":
            chosen += fit
        else:
            chosen.append(parse_method(method))
    for explainer in chosen:
        if reason := explainer.refusal(network):
            raise ValueError(
                f"{explainer} does not fit this model: {reason}; "
                f"these methods do: {', '.join(map(str, fit))}"
            )
    return list(dict.fromkeys(chosen))


def parse_method(text: str) -> Explainer:
    """`Rollout`, `Rollout(fusion=max, discard=0.9)` or `QueryKey(query=(3, 5))` as an explainer.

    Values are Python literals, true / false / none, or bare words (`layer=layer4.2`); nothing is
    evaluated. Raises ValueError for an unknown name or option, with the nearest, and for a value
    that the option does not take.
    """
    call = CALL.fullmatch(text)
    if call is None:
        raise ValueError(f"expected a method as Name or Name(option=value, ...), got {text!r}")
    known = methods()
    name = call["name"]
    if name not in known:
        raise ValueError(f"unknown method {name!r}{hint(name, known)}; known: {', '.join(known)}")
    method = known[name]
    options = _options(call["options"] or "", text)
    for option in options:
        if option not in method.options():
            listed = ", ".join(method.options()) or "none"
            near = hint(option, method.options())
            raise ValueError(f"{name} has no option {option!r}{near}; its options: {listed}")
    return method(**{option: _value(method, option, given) for option, given in options.items()})


def _options(text: str, whole: str) -> dict[str, str]:
    """Each option with its value as it is typed."""
    options: dict[str, str] = {}
    rest = text.strip()
    while rest:
        option = OPTION.match(rest)
        if option is None:
            raise ValueError(f"expected option=value in {whole!r}, got {rest!r}")
        if option["name"] in options:
            raise ValueError(f"option {option['name']!r} is given twice in {whole!r}")
        options[option["name"]] = option["value"]
        rest = rest[option.end() :].strip()
    return options


def _value(method: type[Explainer], option: str, text: str) -> Any:
    """A Python literal where the option takes that, else the word itself."""
    try:
        literal = CONSTANTS[text] if text in CONSTANTS else ast.literal_eval(text)
        return method.checked(option, literal)
    except (ValueError, SyntaxError, TypeError):
        return method.checked(option, text.strip("'\""))
