"""The reference of the site: every public name has one page, and tables lead to it."""

import importlib
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vision_attn
from vision_attn import methods
from vision_attn.methods.attribution import START

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SIGNATURES = ROOT / "tests/public_signatures.txt"


@cache
def pages_module() -> ModuleType:
    """docs/reference_pages.py as a module."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("reference_pages")
    finally:
        sys.path.remove(str(DOCS))


def written_down() -> dict[str, object]:
    """The public names of public_signatures.txt, methods left out, and what they are."""
    names = {}
    for line in SIGNATURES.read_text(encoding="utf-8").splitlines():
        _, first, *rest = re.split(r"[^\w.]", line)[0].split(".")
        part = getattr(vision_attn, first)
        if isinstance(part, ModuleType):
            names[f"vision_attn.{first}.{rest[0]}"] = getattr(part, rest[0])
        else:
            names[f"vision_attn.{first}"] = part
    return names


def shown() -> list[tuple[str, str, object]]:
    """Each name that a page of the reference shows: the page, the name, and what it is."""
    found = []
    for page in pages_module().pages():
        for path in re.findall(r"^::: (\S+)", page.body, re.MULTILINE):
            module, _, name = path.rpartition(".")
            if "/in_" not in page.uri:  # whose one name is a module
                found.append((page.uri, name, getattr(importlib.import_module(module), name)))
    return found


def test_every_public_name_has_exactly_one_page() -> None:
    names, pages = written_down(), shown()
    assert len(names) > 350
    for path, value in names.items():
        name = path.rpartition(".")[2]
        found = [uri for uri, title, other in pages if title == name and other is value]
        assert len(found) == 1, f"{path}: {found}"
    assert len(pages) == len(
        {(path.rpartition(".")[2], id(value)) for path, value in names.items()}
    )


def test_no_two_pages_have_one_address_where_large_letters_are_small_ones() -> None:
    pages = [page.uri.lower() for page in pages_module().pages()]
    pages += [str(path.relative_to(DOCS)).lower() for path in DOCS.rglob("*.md")]
    assert [uri for uri, count in Counter(pages).items() if count > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("stem", pages_module().stems())
def test_the_links_of_the_tables_lead_to_pages_in_each_language(stem: Any) -> None:
    text = (DOCS / f"reference/{stem}.md").read_text(encoding="utf-8")
    addresses = {page.uri for page in pages_module().pages()}
    english = pages_module().filled(text, stem)
    assert "<!-- names" not in english
    assert "<!-- internals" not in english
    linked = [f"reference/{uri}" for uri in re.findall(r"^\| \[`[\w.]+`\]\((\S+)\)", english, re.M)]
    assert set(linked) <= addresses
    other = pages_module().filled(text, stem, "../../", "ja")
    found = re.findall(r'^\| <a href="\.\./\.\./(\S+)\.html"><code>', other, re.MULTILINE)
    assert [f"{uri}.md" for uri in found] == linked


@pytest.mark.parametrize("stem", pages_module().stems())
def test_what_is_inside_comes_last(stem: Any) -> None:
    text = (DOCS / f"reference/{stem}.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)", text, re.MULTILINE)
    if "<!-- internals:" in text:
        assert headings[-1] == "Inside"
    bases = "methods.base|evaluate.per_image|methods.attribution.Attribution"
    if found := re.search(rf"<!-- names: .*\b({bases})\b", text):
        assert found.start() > text.index("\n## Inside\n")


def test_the_reference_begins_with_all_methods_and_what_each_costs() -> None:
    text = (DOCS / "reference/methods.md").read_text(encoding="utf-8")
    table = pages_module().filled(text, "methods").partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| [")]
    found = {row[0].split("`")[1]: row[1:] for row in rows}
    assert list(found) == list(methods.methods())
    samples = methods.MaskedRegression().samples
    expected = {
        "Rollout": ["with attention", "1", "no", "no"],
        "Relevance": ["with attention", "1 + 1", "no", "yes"],
        "LeGrad": ["with attention", "(1 + 1) a layer", "no", "yes"],
        "GradCAM": ["with tokens or features on a grid", "1 + 1", "no", "yes"],
        "ChannelGates": ["with channel gates", "1", "no", "no"],
        "SpatialGates": ["with spatial gates", "1", "no", "no"],
        "IntegratedGradients": ["any", f"{START + 2} + {START}", "yes", "yes"],
        "MaskedRegression": ["any", str(samples + 2), "yes", "yes"],
        "EdgeMap": ["any", "0", "no", "no"],
    }
    for name, columns in expected.items():
        assert found[name][1:5] == columns, name
    signed = {name for name, row in found.items() if row[3] == "yes"}
    assert signed == {
        "LibraGradient",
        "IntegratedGradients",
        "Occlusion",
        "MaskedRegression",
        "LIME",
    }
    assert found["Relevance"][5] == "Passed (ViT, smoothed)"
    assert found["Rollout"][5] == "Did not pass (ViT)"


def test_a_placeholder_for_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no public name at 'attention\.wheels'"):
        pages_module().named("attention.wheels")
    with pytest.raises(ValueError, match=r"vision_attn\.attention\.rotary has public names alone"):
        pages_module().inside("attention.rotary", "attention")


def test_a_public_name_without_a_placeholder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pages_module()
    made.placed.cache_clear()
    monkeypatch.setattr(made, "stems", lambda: ["functions", "tokens"])
    with pytest.raises(
        ValueError, match=r"no page has a placeholder for attention\.attend\.Attend"
    ):
        made.placed()
    made.placed.cache_clear()


@pytest.mark.xdist_group("site")
@pytest.mark.slow
def test_pages_of_names_stand_in_the_site_and_not_in_its_list_of_pages(site: Path) -> None:
    page = (site / "reference/methods/Rollout.html").read_text(encoding="utf-8")
    assert "from vision_attn.methods import Rollout" in page
    assert 'src="../../pictures/methods/Rollout.jpg"' in page
    assert len(re.findall(r"<h1", page)) == 1
    assert "AttentionCall.html" not in (site / "index.html").read_text(encoding="utf-8")
    assert not (site / "ja/reference/methods").exists()
    for file in [*site.glob("reference/**/*.html"), *site.glob("??/reference/*.html")]:
        text = file.read_text(encoding="utf-8")
        for link in re.findall(r'<a\b[^>]*?href="?([^"\s>#]+\.html)', text):
            assert "://" in link or (file.parent / link).resolve().is_file(), f"{file}: {link}"
