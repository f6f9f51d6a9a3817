"""A translation says what its page says: headings, formulas, figures, code, links and things to play with."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LANGUAGES = ("ja", "zh")
ENGLISH = [
    *(DOCS / name for name in ("index.md", "glossary.md", "trust.md")),
    *sorted(path for path in DOCS.glob("start/*.md") if path.name.count(".") == 1),
    *sorted(path for path in DOCS.glob("learn/*.md") if path.name.count(".") == 1),
]
TRANSLATIONS = [path for path in sorted(DOCS.rglob("*.md")) if path.name.count(".") == 2]
FENCED = re.compile(r"^ *```.*?^ *```\n?", re.MULTILINE | re.DOTALL)
WIDE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def module() -> ModuleType:
    """docs/languages.py."""
    spec = importlib.util.spec_from_file_location("languages", DOCS / "languages.py")
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(made)
    return made


def translation(page: Path, language: str) -> Path:
    return page.with_suffix(f".{language}.md")


def original(page: Path) -> Path:
    return page.with_name(re.sub(r"\.\w\w\.md$", ".md", page.name))


def outline(text: str) -> dict[str, Any]:
    """What a page and its translation have in common."""
    prose = re.sub(r" *\\text\{[^}]*\} *", " ", FENCED.sub("", text))  # words may change places
    parts = re.split(r"^(#+) .*\n", prose, flags=re.MULTILINE)
    sections = ["".join(parts[:1]), *parts[2::2]]
    titles = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    bare = [
        re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|\]\([^)]+\)", " ", one, flags=re.DOTALL)
        for one in sections
    ]
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in prose.splitlines() if line.startswith("|")
    ]
    return {
        "headings": parts[1::2],
        "numbers of headings": [re.findall(r"^\d+\.", title) for title in titles],
        "code": [re.sub(r" +#.*", "", block) for block in FENCED.findall(text)],
        "displayed formulas": [
            " ".join(one.split()) for one in re.findall(r"\$\$(.*?)\$\$", prose, re.DOTALL)
        ],
        "formulas by section": [
            sorted(re.findall(r"\$([^$\n]+)\$", re.sub(r"\$\$.*?\$\$", "", one, flags=re.DOTALL)))
            for one in sections
        ],
        "placeholders and HTML": re.findall(r"^ *<.*>$", prose, re.MULTILINE),
        "boxes": re.findall(r"^ *(?:\?\?\?|!!!|===)\+? *\w*", prose, re.MULTILINE),
        "links by section": [
            sorted(
                re.sub(r"\.(?:ja|zh)\.md", ".md", link)
                for link in re.findall(r"\]\(([^)]+)\)", one)
            )
            for one in sections
        ],
        "names of code by section": [sorted(re.findall(r"`[^`\n]+`", one)) for one in sections],
        "list items by section": [
            len(re.findall(r"^ *(?:-|\d+\.) ", one, re.MULTILINE)) for one in sections
        ],
        "cells of tables": [
            sorted(re.findall(r"`[^`]+`|\$[^$]+\$|\d+(?:\.\d+)?", cell))
            for row in rows
            for cell in row
        ],
        "fractions by section": [sorted(re.findall(r"\d+\.\d+|\d+/\d+", one)) for one in bare],
    }


def whole_numbers(text: str) -> list[set[str]]:
    """The numbers of two digits or more of each section, without the commas of thousands."""
    prose = re.sub(r"(?<=\d),(?=\d{3})", "", FENCED.sub("", text))
    return [
        set(re.findall(r"\d{2,}", one)) for one in re.split(r"^#+ .*\n", prose, flags=re.MULTILINE)
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_of_start_learn_and_trust_is_translated(language: str) -> None:
    assert len(ENGLISH) == 19
    missing = [page.name for page in ENGLISH if not translation(page, language).is_file()]
    assert not missing
    assert {original(page) for page in TRANSLATIONS if f".{language}." in page.name} == set(ENGLISH)


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_translation_has_the_parts_of_its_page(page: Path) -> None:
    english, text = original(page).read_text(encoding="utf-8"), page.read_text(encoding="utf-8")
    found = outline(text)
    for what, wanted in outline(english).items():
        assert found[what] == wanted, what
    for wanted, here in zip(whole_numbers(english), whole_numbers(text), strict=True):
        assert wanted <= here, f"numbers that are missing: {wanted - here}"


@pytest.mark.parametrize("page", TRANSLATIONS, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_translation_leaves_no_sentence_in_english_and_links_to_translations(page: Path) -> None:
    language = page.name.split(".")[1]
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]+`|\$[^$\n]+\$|<[^>]*>", "", FENCED.sub("", text))
    for paragraph in re.split(r"\n\n|^\|.*|^- ", prose, flags=re.MULTILINE):
        letters = re.sub(r"\]\([^)]*\)|[\W\d_]+", " ", paragraph).split()
        assert len(letters) < 5 or WIDE.search(paragraph), paragraph
    for link in re.findall(r"\]\(((?!http)[^)#]+\.md)", text):
        target = page.parent / link
        if target.name.count(".") == 1:
            assert not translation(target, language).is_file(), f"{link} has a translation"


def test_the_glossaries_have_the_same_words() -> None:
    english, *others = (
        re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| .+ \|$", page.read_text("utf-8"), re.MULTILINE)
        for page in sorted(DOCS.glob("glossary*.md"), key=lambda page: page.name.count("."))
    )
    assert len(english) > 40
    assert all(other == english for other in others)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_words_of_the_interface_are_those_that_are_used(language: str) -> None:
    words = json.loads((DOCS / f"words_{language}.json").read_text(encoding="utf-8"))
    script = (DOCS / "assets/play.js").read_text(encoding="utf-8")
    used = set(re.findall(r'say\("([^"]+)"', script))
    used |= {"context|query", "sum|query", ", (nothing)", *FEATURES, *facts(), *of_the_site()}
    assert set(words) == used
    for english, said in words.items():
        assert WIDE.search(said), english
        assert sorted(re.findall(r"\{\w+\}", said)) == sorted(re.findall(r"\{\w+\}", english)), said


FEATURES = {f"{name}|feature" for name in ("stone", "grass", "sky", "look")}


def facts() -> list[str]:
    """The sentences of docs/story.py."""
    return re.findall(
        r'^    "([A-Z][^"]+\.)": \(', (DOCS / "story.py").read_text("utf-8"), re.MULTILINE
    )


def of_the_site() -> set[str]:
    """The words that docs/build_site.py puts into a page."""
    source = (DOCS / "build_site.py").read_text(encoding="utf-8")
    titles = re.findall(r'def (?:inspect|live)_\w+\(\) -> str:\n    """(.+)\."""', source)
    named = re.findall(r'^[A-Z]+ = "([A-Z][^"]+\w\.?)"$', source, re.MULTILINE)
    return {*titles, *named, "Search", module().ONLY_ENGLISH}


def test_the_headings_of_a_translation_have_the_anchors_of_the_english_ones() -> None:
    english = "# Ask again\n\n```sh\n# a comment\nls\n```\n\n## Play `x`\n\n## Play x\n"
    japanese = "# もう一度\n\n```sh\n# コメント\nls\n```\n\n## 動かす `x`\n\n## 動かす\n"
    made = module().with_anchors(japanese, english)
    assert "# もう一度 {#ask-again}\n" in made
    assert "# コメント\nls" in made
    assert made.endswith("## 動かす `x` {#play-x}\n\n## 動かす {#play-x_1}\n")
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        module().with_anchors(japanese + "## 余分\n", english)


def test_lines_of_japanese_are_joined_without_a_space() -> None:
    assert module().joined("注意の\n機構、\n重み\nabc\n重み") == "注意の機構、重み\nabc\n重み"
    assert module().joined("注意\n\n- 重み") == "注意\n\n- 重み"
