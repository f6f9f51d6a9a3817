"""Every sentence that Python or a script writes into a page has its Japanese and its Chinese."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import vision_attn
from vision_attn import types
from vision_attn.methods import Explainer
from vision_attn.pages.language import interface, texts, translations
from vision_attn.render import ColorMap, Dim
from vision_attn.runs import ablation, comparison, maps
from vision_attn.runs.diagnosis import measure, verdict
from vision_attn.types import Trust

PAGES = Path(vision_attn.__file__).parent / "pages"
WORDS = translations()
KNOWN = " | ".join(WORDS)
SENTENCE_END = re.compile(r"(?<=[.?!])(?<!\bal\.) (?=[A-Z“\d])")
SEVERAL_WORDS = re.compile(r"[A-Za-z]{2,}[^A-Za-z]* [A-Za-z]{2,}")

# Files that write no text of a page, and what other files have beside it.
NO_TEXT = {"language.py", "parts.py", "translation.py", "program.py"}
IN_PICTURES = {"largest of all tokens", "largest of a patch", "share of photos"}
ON_THE_TERMINAL = {"no photo of it in", "images are done, in", "the same command continues"}
KINDS = {"dead head", "equal heads", "uniform head", "no attention"}  # of findings
NETWORKS = {"Vision Transformer", "Spatial-attention CNN"}
CODE = {"px system-ui, sans-serif", "change less", "worker-src blob", "js is not there"}
NO_SENTENCES = IN_PICTURES | ON_THE_TERMINAL | KINDS | NETWORKS | CODE


def written(source: str) -> Iterator[str]:
    """Yield the texts of Python code, without docstrings and errors."""
    tree = ast.parse(dedent(source))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            skipped.add(id(body[0].value))
        if isinstance(node, ast.Raise | ast.AnnAssign):
            inside = node if isinstance(node, ast.Raise) else node.annotation
            skipped |= {id(part) for part in ast.walk(inside)}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str):
            yield node.value


def in_scripts(source: str) -> Iterator[str]:
    """Yield the texts of JavaScript: in quotes, and what stands around the values of templates."""
    source = re.sub(r"^\s*(//|\*|/\*).*$", "", source, flags=re.MULTILINE)
    yield from re.findall(r'"([^"\n]*)"', source)
    for template in re.findall(r"`([^`]*)`", source):
        yield from re.split(r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", template)


def missing(parts: Iterator[str]) -> list[str]:
    """List the sentences without a translation; HTML, code and commands are none."""
    found = []
    for part in parts:
        if re.search(r'[<>"`=$]|vision-attn|--|\.(png|jpg|html)|rgb\(|^[.[#(]\w', part):
            continue
        for sentence in SENTENCE_END.split(part):
            text = sentence.replace("\\u00b7", "·").strip(" .;:,()%·")
            if SEVERAL_WORDS.search(text) and text not in KNOWN and text not in NO_SENTENCES:
                found.append(text)
    return found


FILES = [file for file in PAGES.rglob("*.py") if file.name not in NO_TEXT]


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-2:]))
def test_a_page_that_python_writes_is_translated(file: Path) -> None:
    assert missing(written(file.read_text(encoding="utf-8"))) == []


def _getter(kind: type, name: str) -> Any:
    """The function of a property."""
    return vars(kind)[name].fget


OTHERS: list[Any] = [
    *(verdict, types.Trust, types.Calibration.unlike, comparison.Comparison.sentences),
    *(ablation.Unit.__str__, ablation.Ablation.text_rows, ablation.AblationJob._explained),
    *(
        _getter(ablation.Ablation, "lead"),
        maps.Map.passed,
        _getter(maps.Map, "title"),
        measure.token_words,
    ),
]


@pytest.mark.parametrize("code", OTHERS, ids=lambda code: code.__name__)
def test_what_runs_say_on_pages_is_translated(
    code: ModuleType | Callable[..., Trust | str | list[str]],
) -> None:
    assert missing(written(inspect.getsource(code))) == []


def test_styles_and_warnings_are_translated() -> None:
    said = [ColorMap.meaning, Dim.meaning, types.RANDOM_WEIGHTS, types.RANDOM_CLASSIFIER]
    assert {*said, maps.NOT_SHOWN} <= set(WORDS)


def explainers(kind: type = Explainer) -> Iterator[type]:
    one: type
    for one in kind.__subclasses__():
        if one.__module__.startswith("vision_attn.") and not inspect.isabstract(one):
            yield one
        yield from explainers(one)


def test_what_methods_are_is_translated() -> None:
    about = {" ".join((one.__doc__ or "").split("\n\n")[0].split()) for one in explainers()}
    assert len(about) > 20
    sentences = {sentence for text in about for sentence in SENTENCE_END.split(text)}
    assert sorted(sentences - set(WORDS)) == []


SCRIPTS = sorted(PAGES.rglob("*.js"))


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_what_scripts_write_is_translated(file: Path) -> None:
    assert missing(in_scripts(file.read_text(encoding="utf-8"))) == []


def test_a_sentence_without_translation_is_seen() -> None:
    code = '''def page(count, name):
        """This is a docstring."""
        if not count:
            raise ValueError("expected at least one")
        return f"There are {count} llamas on it", f"head {name}"
    '''
    assert missing(written(code)) == ["There are", "llamas on it"]
    assert missing(in_scripts('say(`${one} of many llamas`); // "what a comment"\n')) == [
        "of many llamas"
    ]


def test_only_what_a_page_can_need_comes_with_it() -> None:
    assert '"Undo"' in interface("<button>Undo</button>")
    assert '"Undo"' not in interface("<button>Reset</button>")
    assert '"{Count} more"' in interface("<summary>3 more</summary>")
    assert '"“passed”' in interface(r'"\u201cpassed\u201d: tested by covering, on 3 images"')


def test_texts_of_data_are_found_and_pictures_are_not() -> None:
    data = {"a": ["one", {"score": 0.5}], "picture": "A" * 20_000}
    assert set(texts(data)) == {"a", "one", "score", "picture"}
