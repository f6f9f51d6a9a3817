"""The pages of the reference: tables of names, and a page for each name.

<!-- names: PATHS -->      a table of the public names there, each with a page of its own
<!-- group: PATHS -->      the same, with one page for all of them
<!-- internals: PATHS -->  a table of modules, with a page for what each has beside its public names
<!-- explainers: PATHS --> names of heatmap methods: what each shows, for what, at which cost

PATHS are modules of vision_attn (`attention.scores`) or names in them (`types.Model`), with spaces
between. A name that stands on two pages of docs/reference has its page under the first of them,
where functions.md comes before the others. Nothing is left out: `placed` raises for a public name
without a page. The pages are in English alone.
"""

import inspect
import re
import warnings
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import vision_attn
from vision_attn.data.planted import paint
from vision_attn.methods import Explainer
from vision_attn.models import SEResNet, SpatialCNN, ViT

DOCS = Path(__file__).parent
PLACEHOLDER = re.compile(r"<!-- (names|explainers|group|internals): (.+?) -->")
FIRST = "functions"  # the page whose names are those of vision_attn itself
OPTIONS = {
    "show_root_heading": "true",
    "show_root_full_path": "false",
    "show_root_toc_entry": "true",
}


class Name(NamedTuple):
    """A public name: where it is defined, where people import it from, and what it is."""

    path: str
    """With its module, without vision_attn: attention.scores.Dot."""
    part: str
    """The module to import it from: vision_attn.attention."""
    value: Any

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def line(self) -> str:
        """The first line of its docstring; the value of a constant or a type."""
        if (getattr(self.value, "__module__", None) or "").startswith("vision_attn."):
            return first_line(self.value)
        value = getattr(self.value, "__name__", None) if inspect.isclass(self.value) else self.value
        return f"`{str(value).replace('typing.', '')}`".replace("|", r"\|")


class Page(NamedTuple):
    """A page to be made: its address in docs, its title, the page above it, and its Markdown."""

    uri: str
    title: str
    parent: str
    body: str
    imported: str = ""
    """The line that imports what it shows."""

    @property
    def markdown(self) -> str:
        up = f'<a href="../{self.parent}.html">{self.parent}</a>'
        imported = f" \u00b7 <code>{self.imported}</code>" if self.imported else ""
        return f'---\ntitle: {self.title}\n---\n\n<p class="path">{up}{imported}</p>\n\n{self.body}'


# ---------------------------------------------------------------- names


@cache
def public() -> dict[str, Name]:
    """Return every public name by its path; one with several gets the first: vision_attn's own."""
    own = [getattr(vision_attn, name) for name in vision_attn.__all__]
    names: dict[str, Name] = {}
    for part in (vision_attn, *(each for each in own if isinstance(each, ModuleType))):
        part = import_module(part.__name__)
        for name in getattr(part, "__all__", ()):
            value = getattr(part, name)
            if not isinstance(value, ModuleType) and name != "__version__":
                home = getattr(value, "__module__", None) or ""
                home = home if home.startswith("vision_attn.") else part.__name__
                path = f"{home}.{name}".removeprefix("vision_attn.")
                names.setdefault(path, Name(path, part.__name__, value))
    return names


def named(paths: str) -> list[Name]:
    """Return the public names at these paths, those of a module in their order there.

    Raises ValueError for a path without one.
    """
    found: list[Name] = []
    for path in paths.split():
        names = [name for name in public().values() if path in (name.path, name.module)]
        if not names:
            raise ValueError(f"docs/reference: no public name at {path!r}")
        order = list(vars(import_module(f"vision_attn.{names[0].module}")))
        found += sorted(names, key=lambda name: order.index(name.name))
    return found


def first_line(value: Any) -> str:
    """Return the first line of a docstring, for a cell."""
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("|", r"\|")


def beside_public(module: str) -> list[str]:
    """Return what a module lists in `__all__` that is no public name."""
    listed = getattr(import_module(f"vision_attn.{module}"), "__all__", ())
    values = [(name, getattr(import_module(f"vision_attn.{module}"), name)) for name in listed]
    public_ids = {id(name.value) for name in public().values()}
    return [
        name
        for name, value in values
        if not isinstance(value, ModuleType) and id(value) not in public_ids
    ]


# ---------------------------------------------------------------- pages


class Placeholder(NamedTuple):
    """A placeholder of a page of docs/reference, with the names that it is the first to ask for."""

    kind: str
    paths: str
    names: list[Name]

    @property
    def title(self) -> str:
        """What a page of several names is called: the last word of the first path."""
        return self.paths.split()[0].rpartition(".")[2]


@cache
def placeholders_of(stem: str) -> list[Placeholder]:
    """Return the placeholders of docs/reference/STEM.md in their order."""
    text = (DOCS / f"reference/{stem}.md").read_text(encoding="utf-8")
    seen: set[str] = set()
    placeholders = []
    for kind, paths in PLACEHOLDER.findall(text):
        names = [] if kind == "internals" else named(paths)
        names = [name for name in names if name.path not in seen]
        if kind != "internals" and not names:
            raise ValueError(f"docs/reference/{stem}.md: all of {paths} stands above already")
        seen |= {name.path for name in names}
        placeholders.append(Placeholder(kind, paths, names))
    return placeholders


def stems() -> list[str]:
    """Return the pages of docs/reference that are written by hand, functions.md first."""
    return sorted(
        (path.stem for path in (DOCS / "reference").glob("*.md")),
        key=lambda stem: (stem != FIRST, stem),
    )


@cache
def placed() -> dict[str, str]:
    """Return the address of each public name's page. Raises ValueError for a name without one."""
    places: dict[str, str] = {}
    for stem in stems():
        for placeholder in placeholders_of(stem):
            for name in placeholder.names:
                file = placeholder.title if placeholder.kind == "group" else name.name
                places.setdefault(name.path, f"reference/{stem}/{file}.md")
    missing = sorted(set(public()) - set(places))
    if missing:
        raise ValueError(f"docs/reference: no page has a placeholder for {', '.join(missing)}")
    return places


@cache
def pages() -> list[Page]:
    """Return every page that the placeholders ask for."""
    generated: list[Page] = []
    for stem in stems():
        for placeholder in placeholders_of(stem):
            own = [
                n for n in placeholder.names if placed()[n.path].startswith(f"reference/{stem}/")
            ]
            if placeholder.kind == "internals":
                generated += [inside(module, stem) for module in placeholder.paths.split()]
            elif placeholder.kind != "group":
                generated += [of_name(name, stem) for name in own]
            elif own:
                body = "\n\n".join(
                    [f"# {placeholder.title}", *(directive(name, 2) for name in own)]
                )
                uri, imported = f"reference/{stem}/{placeholder.title}.md", f"import {own[0].part}"
                generated.append(Page(uri, placeholder.title, stem, body, imported))
    return generated


def of_name(name: Name, stem: str) -> Page:
    """Return the page of one name, with the pictures of a method that has some."""
    body = directive(name, 1)
    if name.name in cards():
        body += f"\n\n## On two photos\n\n{cards()[name.name]}\n"
    imported = f"from {name.part} import {name.name}"
    return Page(f"reference/{stem}/{name.name}.md", name.name, stem, body, imported)


def directive(name: Name, level: int) -> str:
    """Return what mkdocstrings is to show of a name."""
    options = {**OPTIONS, "heading_level": str(level)}
    lines = "\n".join(f"      {option}: {value}" for option, value in options.items())
    return f"::: vision_attn.{name.path}\n    options:\n{lines}"


def inside(module: str, stem: str) -> Page:
    """Return the page of what a module has beside its public names."""
    members = ", ".join(beside_public(module))
    if not members:
        raise ValueError(f"docs/reference: vision_attn.{module} has public names alone")
    body = (
        f"# vision_attn.{module}\n\n"
        "These names may change with any version ([what is public](../public.md)).\n\n"
        f"::: vision_attn.{module}\n    options:\n      members: [{members}]"
    )
    return Page(inside_uri(module, stem), module, stem, body)


def inside_uri(module: str, stem: str) -> str:
    return f"reference/{stem}/in_{module.replace('.', '_')}.md"


# ---------------------------------------------------------------- tables


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def filled(markdown: str, stem: str, root: str = "", language: str = "en") -> str:
    """Put the tables into docs/reference/STEM.md, where it asks for them.

    root: leads from the page to the folder of the site. Another language than English links there,
    since the pages of names are not in its folder.
    """

    def link(uri: str, text: str) -> str:
        if language == "en":
            return f"[`{text}`]({uri.removeprefix('reference/')})"
        return f'<a href="{root}{uri.removesuffix(".md")}.html"><code>{text}</code></a>'

    def tabled(placeholder: Placeholder) -> str:
        if placeholder.kind == "explainers":
            return explainers(
                [(link(placed()[name.path], name.name), name) for name in placeholder.names]
            )
        if placeholder.kind != "internals":
            rows = [(link(placed()[name.path], name.name), name.line) for name in placeholder.names]
            return table(("name", "what it is"), rows)
        rows = []
        for module in placeholder.paths.split():
            about = first_line(import_module(f"vision_attn.{module}"))
            rows.append((link(inside_uri(module, stem), module), about))
        return table(("module", "what it is for"), rows)

    tables = map(tabled, placeholders_of(stem)) if PLACEHOLDER.search(markdown) else iter(())
    return PLACEHOLDER.sub(lambda _: next(tables), markdown)


# ---------------------------------------------------------------- explainers


class Shown(NamedTuple):
    """What docs/howto/methods.md says of a method."""

    shows: str
    not_shown: str
    verdict: str
    picture: str = ""


SMOOTHED = "; here smoothed by one cell"


@cache
def shown() -> dict[str, Shown]:
    """Return what the page of all methods says of each, by its name."""
    text = (DOCS / "howto/methods.md").read_text(encoding="utf-8")
    card = re.compile(
        r"^- (!\[\w+ on two photos\]\(\S+\))\n  \*\*`(\w+)`\*\* \u2014 \*shows\* (.+?); "
        r"\*not\* (.+?)\. \*\*(.+?)\*\*\.$",
        re.MULTILINE,
    )
    found = {}
    for network, part in zip(("ViT", "SENet"), text.split("\n## ")[1:3], strict=True):
        for picture, name, shows, not_shown, verdict in card.findall(part):
            on = "spatial CNN" if name == "SpatialGates" else network
            on += ", smoothed" if SMOOTHED in shows else ""
            shows = shows.replace(SMOOTHED, "").removesuffix(", here the middle")
            found[name] = Shown(shows, not_shown, f"{verdict} ({on})", picture)
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    return found | {name: Shown(*said) for name, *said in rows}


def cards() -> dict[str, str]:
    """Return the pictures of each method that has some, with what they show."""
    return {
        name: f"{said.picture.replace('(../', '(../../')}\n\nThe map shows {said.shows}. "
        f"It does not show {said.not_shown}. {said.verdict}: "
        "[every method on these photos](../../howto/methods.md)."
        for name, said in shown().items()
        if said.picture
    }


class Measured(NamedTuple):
    """How a method did on small networks: forward and backward passes an image, and its sign."""

    networks: frozenset[str]
    forward: int
    backward: int
    signed: bool
    grows: bool
    """Whether its passes grow with the number of layers."""

    @property
    def passes(self) -> str:
        if self.grows:
            return "(1 + 1) a layer"
        return f"{self.forward} + {self.backward}" if self.backward else str(self.forward)


# What a method is for, by the small networks of `tried` that it does not refuse.
FOR = {
    frozenset({"vit"}): "with attention",
    frozenset({"senet"}): "with channel gates",
    frozenset({"spatial"}): "with spatial gates",
    frozenset({"vit", "senet", "spatial"}): "with tokens or features on a grid",
    frozenset({"vit", "senet", "spatial", "opaque"}): "any",
}


@cache
def tried() -> dict[str, nn.Module]:
    """Return small networks of each kind, of random weights."""
    torch.manual_seed(0)
    vit = partial(ViT, image_size=32, patch_size=8, num_classes=5, dim=12, heads=3)
    networks: dict[str, nn.Module] = {
        "vit": vit(depth=2),
        "senet": SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)),
        "spatial": SpatialCNN(num_classes=5),
        "deeper": vit(depth=3),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and still met
        linear = nn.Linear(3 * 32 * 32, 5)
        linear.weight.data *= 100
        plain = nn.Sequential(nn.Flatten(), linear)
        networks["opaque"] = torch.jit.trace(plain, torch.rand(1, 3, 32, 32))
    return {name: network.eval() for name, network in networks.items()}


@cache
def measured(method: type[Explainer]) -> Measured:
    """Run a method on one image of the planted set by the networks that it fits."""
    image = paint(3, 4, split="test").images[:1, :, :32, :32] / 255
    fits = {
        name
        for name, network in tried().items()
        if name != "deeper" and method().misfit(network, image) is None
    }
    first = next(name for name in tried() if name in fits)
    forward, backward, signed = counted(method(), tried()[first], image)
    grows = False
    if "opaque" in fits:  # whose numbers are large enough for a lasso
        signed |= counted(method(), tried()["opaque"], image)[2]
    elif first == "vit":
        grows = counted(method(), tried()["deeper"], image)[:2] != (forward, backward)
    return Measured(frozenset(fits), forward, backward, signed, grows)


def counted(explainer: Explainer, network: nn.Module, image: Tensor) -> tuple[int, int, bool]:
    """Count the forward and backward passes of one map, and say whether it goes below 0."""
    counts = [0, 0]

    def count(_: nn.Module, __: Any, output: Tensor) -> None:
        counts[0] += len(output)
        if output.requires_grad:
            output.register_hook(lambda gradient: counts.__setitem__(1, counts[1] + len(gradient)))

    with network.register_forward_hook(count):
        maps = [explainer(network, image, target=target).values for target in range(4)]
        counts[:] = [0, 0]  # what the first call finds out of a network takes passes of its own
        maps.append(explainer(network, image, target=4).values)
    return counts[0], counts[1], any(bool((values < 0).any()) for values in maps)


def explainers(linked: list[tuple[str, Name]]) -> str:
    """Return the table of methods, each with the link to its page."""
    rows = []
    for link, (_, _, method) in linked:
        if method.__name__ not in shown():
            raise ValueError(f"docs/howto/methods.md has no row for {method.__name__}")
        of, said = measured(method), shown()[method.__name__]
        rows.append(
            (
                link,
                f"{said.shows[0].upper()}{said.shows[1:]}.",
                FOR[of.networks],
                of.passes,
                "yes" if of.signed else "no",
                "yes" if method.class_specific else "no",
                said.verdict,
            )
        )
    header = ("method", "the map shows", "networks", "passes", "signed", "of a class", "on photos")
    return table(header, rows)
