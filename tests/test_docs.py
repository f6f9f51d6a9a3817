"""The documentation builds without a warning, and what its pages say of the code is so."""

import ast
import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import captum.attr
import captum.metrics
import markdown
import numpy as np
import pytest
import pytorch_grad_cam
import pytorch_grad_cam.metrics
import torch
import yaml
from PIL import Image

import vision_attn
from vision_attn import attention, evaluate
from vision_attn import methods as explain
from vision_attn.cli import COMMANDS, TRAINING
from vision_attn.compat.argparse_private import options_of
from vision_attn.fitting.configs import about, shipped_configs
from vision_attn.models.checkpoint import build
from vision_attn.models.shelf import Shelf
from vision_attn.render.video import VideoWriter
from vision_attn.training.flops import training_flops

ROOT = Path(__file__).parent.parent
READMES = [ROOT / f"README{language}.md" for language in ("", ".ja", ".zh")]
PAGES = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.xdist_group("site")
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    page = (site / "reference/attention.html").read_text()
    assert "normalise_j(score(q_i, k_j))" in page
    loads = re.compile(
        r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']?https?:[^>]*>"""
    )
    for file in site.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        found = [one for one in loads.findall(text) if 'rel="canonical"' not in one]
        assert not found, f"{file.name}: {found}"
        assert "arithmatex" not in text, f"{file.name}: a formula that is no MathML"
        assert "<!-- table" not in text, f"{file.name}: a table that was not filled in"
    for style in site.rglob("*.css"):
        assert not re.findall(r"@import|url\(.?https?:", style.read_text(encoding="utf-8")), (
            style.name
        )
    assert not (site / "404.html").exists()
    assert len(list(site.glob("notebooks/*.ipynb"))) == len(list(ROOT.glob("notebooks/*.ipynb")))


@cache
def site_module() -> ModuleType:
    """docs/build_site.py as a module."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs/build_site.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def test_the_command_line_reference_has_every_command_and_option() -> None:
    page = site_module().filled((ROOT / "docs/reference/commands.md").read_text(encoding="utf-8"))
    parts = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(parts) == {*COMMANDS, *TRAINING}
    for command in COMMANDS:
        options = set(options_of(site_module().parser_of(command))) - {"-h", "--help"}
        missing = [option for option in options if f"`{option}`" not in parts[command]]
        assert not missing, f"{command}: {missing}"


def test_an_option_is_shown_with_its_value_and_a_pipe_stays_in_its_cell() -> None:
    build = site_module()
    html = markdown.markdown(build.commands(), extensions=["tables", "fenced_code"])
    assert "<td><code>--pretrained</code> <code>true|false</code></td>" in html
    with pytest.raises(KeyError, match="nothing"):
        build.filled("<!-- table: nothing -->")
    with pytest.raises(ValueError, match="no section 'Add a wheel'"):
        build.filled("<!-- section: Add a wheel -->")


JOURNAL = sorted((ROOT / "docs/lab/journal").glob("*.md"))


def journal() -> str:
    """The index of the journal and the pages of its experiments."""
    pages = [ROOT / "docs/lab/journal.md", *JOURNAL]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_the_journal_lists_each_experiment_with_its_date_question_and_answer() -> None:
    index = (ROOT / "docs/lab/journal.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\S+) \| (?:<a id=\S+></a>)*\[(.+\?)\]\(journal/(\w+)\.md\) \| (.+) \|$",
        index,
        re.MULTILINE,
    )
    assert sorted(name for *_, name, _ in rows) == [page.stem for page in JOURNAL]
    for date, question, name, answer in rows:
        page = (ROOT / f"docs/lab/journal/{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {question}\n\n{date}. **{answer}**\n\n"), name
    shown = re.findall(r"lab/journal/(\w+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(shown) == [page.stem for page in JOURNAL]


def measured() -> dict[str, list[dict[str, Any]]]:
    return json.loads((ROOT / "docs/results.json").read_text(encoding="utf-8"))


def test_the_runs_of_the_results_are_those_of_the_configs_and_the_journal() -> None:
    written = journal()
    for run in measured()["runs"]:
        comment = about(shipped_configs()[run["config"]])[1]
        whole = shipped_configs()[run["config"]].read_text(encoding="utf-8")
        for value in (run["top1"], run.get("views")):
            if value is not None:
                assert f"{value:.1f} %" in whole, f"{run['config']}: {value} is not in {comment!r}"
        assert f"{run['pflop']:.2g} PFLOP" in whole.replace("\n#", ""), run["config"]
        assert f"{run['top1']:.1f} %" in written
        assert f"{run['minutes']:.1f} |" in written
        assert f"| {run['parameters']:.2f} M |" in written


@pytest.mark.parametrize("name", ["vit_planted", "vit_cifar10"])
def test_the_work_of_a_run_is_counted(name: str) -> None:
    (run, *_) = [run for run in measured()["runs"] if run["config"] == name]
    described = yaml.safe_load(shipped_configs()[name].read_text())["model"]["network"]
    network = build(described)
    work = sum(
        count * training_flops(network, torch.zeros(2, 3, size, size)) / 2
        for size, count in run["images"]
    )
    assert run["pflop"] == pytest.approx(work / 1e15, rel=0.01)


def test_the_runs_are_ordered_by_their_work() -> None:
    rows = site_module().runs().splitlines()[2:]
    works = [float(row.split(" | ")[3] or "inf") for row in rows]
    assert works == sorted(works)
    assert len(rows) == len(measured()["runs"]) + len(vision_attn.list_models())


def test_what_is_said_of_speed_is_in_the_journal() -> None:
    written = journal()
    names = {page.stem for page in JOURNAL}
    for row in measured()["speed"]:
        assert row["journal"] in names, row["what"]
        assert (ROOT / row["command"].split()[1]).is_file(), row["what"]
        for number in re.findall(r"\d+\.\d+|\d{2}", f"{row['ratio']} {row['avx2']}"):
            assert number in written, f"{row['what']}: {number}"


def test_the_results_begin_with_a_picture_and_five_numbers() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert re.search(
        r"^# Results\n\n!\[.+\]\(pictures/work.png\)\n\n<!-- table: five -->", page, re.MULTILINE
    )
    rows = site_module().five().splitlines()[2:]
    numbers = [number for row in rows for number in re.findall(r"\*\*(.+?)\*\*", row)[:1]]
    assert numbers == ["93.8 %", "92.0 %", "1.12 x", "6e-08", "19 to 70 x"]
    below = site_module().filled(page.replace("<!-- table: five -->", ""))
    assert all(number.removesuffix(" x") in below for number in numbers)


def test_the_exactness_of_maps_is_that_of_every_network_of_the_table() -> None:
    page = (ROOT / "docs/coverage.md").read_text(encoding="utf-8")
    rows = page.partition("| sum of r |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    shown = site_module().exactness().splitlines()[-1].strip("| ").split(" | ")
    assert int(shown[0]) == len(cells) > 30
    for place, value in ((2, shown[1]), (3, shown[2])):
        assert float(value) == max(float(row[place]) for row in cells)


def test_a_formula_is_mathml_and_code_is_left_alone() -> None:
    given = r'<p><span class="arithmatex">\(a &lt; b\)</span> <code>$x$</code></p>'
    made = site_module().with_formulas(given)
    assert "<math" in made
    assert "&lt;" in made.partition("<code>")[0].replace("&#x0003C;", "&lt;")
    assert "<code>$x$</code>" in made


def test_a_word_of_code_in_a_sentence_stays_whole_and_a_pipe_loses_its_backslash() -> None:
    given = r"<p><code>--output DIR</code></p><td><code>mean\|max</code></td>"
    block = "<pre><span></span><code>vision-attn demo</code></pre>"
    made = site_module().on_page_content(given + block, None, None, None)
    assert '<code><span class="word">--output</span> DIR</code>' in made
    assert '<td><code class="name">mean|max</code></td>' in made
    assert block in made
    shell = f'<div class="language-sh highlight">{block}</div>'.replace(
        "demo", "demo -o DIR --page"
    )
    made = site_module().on_page_content(shell, None, None, None)
    assert 'vision-attn demo <span class="word">-o</span> DIR <span class="word">--page' in made


def test_a_long_word_of_code_is_broken_after_its_dots_alone_and_names_in_cells_are_not() -> None:
    content = site_module().on_page_content
    long = "--trainer.callbacks+=vision_attn.training.Compile"
    made = content(f"<p><code>{long}</code></p>", None, None, None)
    parts = re.findall(r'<span class="word">([^<]*)</span>', made)
    assert parts == ["--trainer.", "callbacks+=", "vision_attn.", "training.", "Compile"]
    assert made.count("<wbr>") == len(parts) - 1
    cells = "<td><code>AttentionOverAttention</code></td><td><code>Rollout(fusion=max, x=1)</code>"
    made = content(f"{cells}</td><p><code>Dot</code></p><th></th>", None, None, None)
    assert made.count('class="name"') == 1
    assert made.endswith("<p><code>Dot</code></p><td></td>")
    shares = content("<p>20 % of them</p><code>20 % 3</code>", None, None, None)
    assert shares == "<p>20&nbsp;% of them</p><code>20 % 3</code>"
    bare = "<table><thead><tr><th></th><th></th></tr></thead><tbody>"
    assert content(bare, None, None, None) == '<table tabindex="0"><tbody>'


def test_a_formula_is_divided_at_its_wide_gaps_but_not_inside_braces() -> None:
    parts = site_module().parts_of(r"a = b, \qquad c^{x \quad y} = d \quad e")
    assert parts == ["a = b, ", " c^{x  y} = d ", " e"]
    given = r'<div class="arithmatex">\[a, \qquad b\]</div>'
    assert site_module().with_formulas(given).count('display="block"') == 2


LEARN = [page for page in PAGES if re.fullmatch(r"\d\d-[\w-]+\.md", page.name)]


@pytest.mark.parametrize("page", LEARN, ids=lambda page: page.stem)
def test_a_page_of_learn_has_a_formula_a_picture_and_an_example_that_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "$$" in text
    assert re.search(r"!\[.+?\]\(.+?\)", text)
    (example,) = re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    runner.run(
        doctest.DocTestParser().get_doctest(example, {}, page.name, None, 0), out=report.append
    )
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("page", LEARN, ids=lambda page: page.stem)
def test_a_page_of_learn_asks_works_an_example_and_has_something_to_play_with(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    answers = re.findall(
        r'<div class="ask" data-right="(\d)" markdown>\n\*\*.+\?\*\*\n\n((?:- .+\n)+)\n\?\?\? note "Why"',
        text,
    )
    assert answers
    assert all(1 <= int(right) <= listed.count("\n") for right, listed in answers)
    assert re.search(r"^##+ By hand\n", text, re.MULTILINE)
    assert text.index('class="ask"') < text.index("<!-- play: ")
    beside = re.findall(r'<div class="beside" markdown>\n\n\$\$.+?\$\$\n\n<!-- code: \S+ -->', text)
    assert beside
    filled = site_module().filled(text)
    assert filled.count('data-play="') == text.count("<!-- play: ")
    code = re.findall(r'^(?:=== "PyTorch"\n\n    )?```py title=', filled, re.MULTILINE)
    assert len(code) == text.count("<!-- code: ")


def test_what_there_is_to_play_with_is_named_and_so_is_code() -> None:
    build = site_module()
    with pytest.raises(ValueError, match="nothing to play with named 'chess'"):
        build.filled("<!-- play: chess -->")
    made = build.filled("<!-- code: attention.GRUUpdate.forward -->")
    assert made.startswith('```py title="GRUUpdate"\ndef forward(self, query')
    assert made.endswith(".view_as(query)\n```")
    assert '"""' not in build.filled("<!-- code: attention.MultiHeadAttention.weights -->")
    content = build.with_scripts("<p></p>", "learn/08-heads.html")
    assert '<script src="../learn/story.js"></script>' in content


def test_learn_has_twelve_pages_and_every_mechanism_has_its_place() -> None:
    assert len(LEARN) == 12
    text = "".join(page.read_text(encoding="utf-8") for page in LEARN)
    missing = [name for name in attention.__all__ if not re.search(rf"`{name}\b|\b{name}\(", text)]
    missing += missing_methods(text)
    assert not missing, f"no page of Learn names {missing}"


def missing_methods(text: str) -> list[str]:
    names = ("Rollout", "WeightedRollout", "GradientRollout", "Relevance", "AttentionGradCAM")
    names += ("LeGrad", "RawAttention", "QueryKey", "GradCAM", "IntegratedGradients", "Occlusion")
    assert set(names) <= set(explain.__all__)
    return [name for name in names if f"`{name}`" not in text]


def test_every_picture_of_learn_is_made_by_its_script() -> None:
    source = (ROOT / "docs/pictures/learn.py").read_text(encoding="utf-8")
    made = set(
        re.findall(r'^    "(\w+\.\w+)": \w+,', source.partition("\nPICTURES")[2], re.MULTILINE)
    )
    kept = {path.name for path in (ROOT / "docs/pictures/learn").iterdir()}
    assert made == kept
    assert all(path.stat().st_size < 120_000 for path in (ROOT / "docs/pictures/learn").iterdir())


def test_each_method_is_shown_on_two_photos_with_the_verdict_that_was_measured() -> None:
    page = (ROOT / "docs/howto/methods.md").read_text(encoding="utf-8")
    cards = re.findall(
        r"^- !\[(\w+) on two photos\]\(\S+/(\w+)\.jpg\)\n  \*\*`(\w+)`\*\* — .+ \*\*([\w ]+)\*\*\.$",
        page,
        re.MULTILINE,
    )
    shown = {name: verdict for name, *_, verdict in cards}
    assert all(name == picture == said for name, picture, said, _ in cards)
    pictures = {path.stem for path in (ROOT / "docs/pictures/methods").iterdir()}
    assert pictures == set(shown) <= set(explain.__all__)
    figures = (ROOT / "docs/real_data.md").read_text(encoding="utf-8")
    vit, senet, spatial = re.split(r"(?=^## .*_imagenette)", figures, flags=re.MULTILINE)[1:4]
    card = Shelf()["compact_vit_imagenette"].values["trust"]["methods"]
    for name, verdict in shown.items():
        part = spatial if name == "SpatialGates" else senet if name in CNN_METHODS else vit
        trusted = re.findall(rf"Trust here: ({LIST}+)\.", part)
        against = re.findall(
            rf"(?:Do not trust|Trust none of these methods here): ({LIST}+)\.", part
        )
        if part is vit:
            trusted += [re.sub(r"\(.*?\)", "", method) for method in card]
        if verdict == "Passed":
            assert re.search(rf"\b{name}\b", " ".join(trusted)), name
        elif verdict == "Did not pass":
            assert re.search(rf"\b{name}\b", " ".join(against)), name
        else:
            assert f"Deletion and insertion disagree on {name}" in part


CNN_METHODS = ("GradCAM", "LayerCAM", "ChannelGates")
LIST = r"(?:[^.]|\.\d)"  # of a list of methods to its end: smooth=1.0 has a point, too


def test_a_method_without_a_card_says_what_it_shows_and_whether_it_passed() -> None:
    page = (ROOT / "docs/howto/methods.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \| (.+) \| ([\w ]+?)(?: \((.+)\))? \|$", page, re.MULTILINE
    )
    carded = {path.stem for path in (ROOT / "docs/pictures/methods").iterdir()}
    assert carded | {name for name, *_ in rows} == set(explain.methods())
    assert carded.isdisjoint(name for name, *_ in rows)
    figures = (ROOT / "docs/real_data.md").read_text(encoding="utf-8")
    vit, senet, _ = re.split(r"(?=^## .*_imagenette)", figures, flags=re.MULTILINE)[1:4]
    said = {
        "Passed": rf"Trust here: {LIST}*\b{{}}\b",
        "Did not pass": rf"(?:Do not trust|Trust none of these methods here): {LIST}*\b{{}}\b",
        "Undecided": rf"(?:disagree on|Cannot tell from \d+ images:) {LIST}*\b{{}}\b",
    }
    for name, _, _, verdict, networks in rows:
        assert bool(networks) == (verdict in said), name
        for network in filter(None, networks.split(", ")):
            part = {"ViT": vit, "SENet": senet}[network]
            assert re.search(said[verdict].format(name), part), f"{name}, {network}"
        if verdict == "Not scored here":
            assert not re.search(rf"\b{name}\b", vit + senet), name
        elif not networks:
            assert verdict == "A baseline", name
            assert issubclass(explain.methods()[name], explain.Baseline)


def test_what_is_left_when_a_map_covers_the_photo_is_what_the_page_on_trust_says() -> None:
    spec = importlib.util.spec_from_file_location("trust_picture", ROOT / "docs/pictures/trust.py")
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(made)
    text = (ROOT / "docs/trust.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "pictures/trusted.jpg" in line]
    said = [float(number) for number in re.findall(r"(\d+) %", line)]
    model, photo = vision_attn.load_model(made.NETWORK), vision_attn.sample(made.PHOTO)
    found = model.explain(photo, made.METHODS)
    left = [made.probability(model, photo, made.brightest(one.values)) for one in found.maps]
    shares = [found.classes(1)[0][1], *left]
    assert said == pytest.approx([100 * share for share in shares], abs=0.51)
    cells = made.brightest(np.array([[3.0, 1.0], [2.0, 5.0], [4.0, 0.0]]))
    assert cells.tolist() == [[False, False], [False, True], [True, False]]


def outline(page: Path) -> dict[str, Any]:
    """What two translations of a page have in common."""
    text = page.read_text(encoding="utf-8")
    shell = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    python = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    parts = re.split(r"^(#+) .*\n", text, flags=re.MULTILINE)
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in prose.splitlines() if line.startswith("|")
    ]
    return {
        "headings": parts[1::2],
        "commands": [re.sub(r" +#.*", "", block) for block in shell],
        "python": [re.sub(r" +#.*", "", block) for block in python],
        "columns": [len(row) for row in rows],
        "code and numbers in tables": [
            sorted(re.findall(r"`[^`]+`|\d+(?:\.\d+)?", cell)) for row in rows for cell in row
        ],
        "links by section": [
            sorted(
                re.sub(r"\.(?:ja|zh)\.md", ".md", link)
                for link in re.findall(r"\]\(([^)]+)\)", part)
            )
            for part in parts[4::2]
        ],
        "list items by section": [
            len(re.findall(r"^- ", part, re.MULTILINE)) for part in parts[2::2]
        ],
    }


@pytest.mark.parametrize("page", READMES[1:], ids=lambda page: page.name)
def test_the_front_pages_say_the_same(page: Path) -> None:
    english, other = outline(READMES[0]), outline(page)
    for what, found in english.items():
        assert other[what] == found, what
    languages = [set(re.findall(r"\(README\S*\.md\)", one.read_text("utf-8"))) for one in READMES]
    assert all(len(named) == len(READMES) - 1 for named in languages)


PEERS = {one["row"]: (one["checked"], one["by"]) for one in measured()["peers"]}


def test_what_the_front_page_says_of_peers_is_so() -> None:
    text = READMES[0].read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    table = {row[0]: row[1:] for row in rows}
    assert text.count("\n| | vision_attn | pytorch-grad-cam | captum |\n|---|---|---|---|\n") == 1
    body = text.partition("| captum |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in body.splitlines()] == list(PEERS)
    for row, (file, by) in PEERS.items():
        assert by in (ROOT / file).read_text(encoding="utf-8"), row
    cam, captum_cam = pytorch_grad_cam.GradCAM, captum.attr.LayerGradCam
    layers = table["layers that you name for a GradCAM"]
    assert layers == ("none", "`target_layers`", "`layer`")
    for kind, name in ((cam, "target_layers"), (captum_cam, "layer")):
        assert signature(kind).parameters[name].default is Parameter.empty
    assert explain.GradCAM() == explain.GradCAM(layer=None)
    page = (ROOT / "docs/lab/journal/rollout_time.md").read_text(encoding="utf-8")
    part = page.partition("\n## 224 x 224 pixels")[2].partition("\n## ")[0]
    measured = dict(
        re.findall(r"^\| (\S[^|]*) \| [^|]+ \| ([\d.]+ \| \d+) \|$", part, re.MULTILINE)
    )
    cells = zip(
        table["its time, where 1 is the network's own"], table["memory that it adds"], strict=True
    )
    ways = ("GradCAM", "grad-cam GradCAM", "captum LayerGradCam")
    for way, (time, memory) in zip(ways, cells, strict=True):
        assert measured[way] == f"{time} | {memory.removesuffix(' MiB')}"
    followed = table["attention followed through all layers (`Rollout`)"]
    tested = table["a map is tested by covering and uncovering"]
    for row, modules, word in (
        (followed, (explain, pytorch_grad_cam, captum.attr), "rollout"),
        (tested, (evaluate, pytorch_grad_cam.metrics, captum.metrics), "insertion|deletion"),
    ):
        has = tuple(
            any(re.search(word, name, re.IGNORECASE) for name in names_of(module))
            for module in modules
        )
        assert tuple(cell == "yes" for cell in row) == has == (True, False, False)


def names_of(module: ModuleType) -> list[str]:
    """The names in a module, and those of the modules and classes inside its package."""
    inner = [one.name for one in pkgutil.iter_modules(module.__path__)]
    files = [path.read_text("utf-8") for path in Path(module.__path__[0]).glob("*.py")]
    return [*dir(module), *inner, *re.findall(r"^class (\w+)", "\n".join(files), re.MULTILINE)]


def test_the_lines_at_the_top_of_the_front_page_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"```python\n(.*?)```", READMES[0].read_text("utf-8"), re.DOTALL)[0]
    assert block.count("\n") == 4
    exec(compile(block, "README.md", "exec"), {})
    assert list((tmp_path / "outputs/look").glob("*.png"))


def test_the_moving_picture_of_the_front_page_is_small_and_the_same_in_all_languages() -> None:
    (shown,) = {
        re.findall(r"\]\((docs/pictures/\S+\.webp)\)", page.read_text("utf-8"))[0]
        for page in READMES
    }
    assert (ROOT / shown).stat().st_size < 400_000
    picture: Any
    with Image.open(ROOT / shown) as picture:
        assert picture.size == (800, 480)  # letters of 25 pixels: 12 of 400
        assert picture.n_frames >= 6


def test_the_front_page_is_short_and_its_numbers_are_those_of_the_package() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    fit = [one for one in explain.methods().values() if not issubclass(one, explain.Baseline)]
    assert f"There are {len(fit)} methods and three baselines" in text
    for row in vision_attn.list_models():
        cells = f"| {row['network']} | {row['data']} | {row['accuracy']:.1%}".replace("%", " %")
        cells += f" | {row['parameters'] / 1e6:.2f} M | {row['size'] / 1e6:.1f} MB |"
        assert f"| `vision_attn:{row['name']}` {cells}" in text
    runs = json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))["runs"]
    listed = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([\d.]+) % \|$", text, re.MULTILINE)
    assert len(listed) == 4
    for name, share in listed:
        (run,) = [run for run in runs if run["config"] == name and "variant" not in run]
        assert float(share) == run["top1"], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"^vision-attn (\w+)", text, re.MULTILINE):
        assert command in {**COMMANDS, **TRAINING}
    for file in re.findall(r"\b(?:configs|notebooks|benchmarks)/[a-z0-9]\w*\.\w+", text):
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/reliability.md"])
def test_what_is_code_and_what_is_data_is_said_in_a_sentence(page: str) -> None:
    """What is said holds: tests/fitting/test_run.py and tests/models/test_weights.py."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    sentences = [one for one in text.split(". ") if " configs are data" in one]
    assert len(sentences) == 1
    named = (
        r"a config can name only \[?the classes that \[?its options take\]\(\S*config_classes.md\)"
    )
    assert re.search(named, sentences[0])
    assert "another package, whose code then runs, name that with `--allow PACKAGE`" in sentences[0]
    assert "No command reads the `config.yaml` beside a checkpoint" in text


def imports_of(page: Path) -> list[tuple[str, str]]:
    """The (module, name) pairs of ours that a script or a notebook imports."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        lines = "\n".join(sources).splitlines()
        source = "\n".join(
            "pass" if line.lstrip().startswith(("%", "!")) else line for line in lines
        )
    else:
        source = page.read_text(encoding="utf-8")
    return [
        (str(node.module), alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vision_attn")
        for alias in node.names
    ]


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("docs/*.py"), *ROOT.glob("docs/*/*.py"), *ROOT.glob("notebooks/*.ipynb")],
    ids=lambda page: page.name,
)
def test_studies_pictures_and_notebooks_use_public_names(page: Path) -> None:
    private = []
    for module, name in imports_of(page):
        home = importlib.import_module(module)
        is_module = hasattr(home, "__path__") and find_spec(f"{module}.{name}") is not None
        if name not in home.__all__ and not is_module:
            private.append(f"{module}.{name}")
    assert not private


def test_the_picture_of_the_rooms_shows_the_contract_and_every_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/pictures")
    rooms = importlib.import_module("rooms")
    drawn = (ROOT / "docs/pictures/rooms.svg").read_text(encoding="utf-8")
    assert drawn == rooms.picture(), "run docs/pictures/rooms.py"
    for file in (ROOT / "vision_attn").iterdir():
        assert (
            file.stem.startswith("_")
            or file.suffix not in ("", ".py")
            or (file.stem == "cli" or re.search(rf"\b{file.stem}\b", drawn))
        ), f"the picture lacks {file.stem}"


def walks() -> dict[str, list[str]]:
    """The files that each walk of the architecture page names, in their order."""
    _, *parts = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("\n## ")
    return {
        part.splitlines()[0]: re.findall(r"`([\w/]+\.py)`", part.partition("\n1. ")[2])
        for part in parts
    }


@pytest.mark.parametrize("walk", walks())
def test_a_walk_enters_no_file_twice(walk: str) -> None:
    files = walks()[walk]
    assert len(files) > 10
    assert len(set(files)) == len(files)
    missing = [file for file in files if not (ROOT / "vision_attn" / file).is_file()]
    assert not missing


WALKED = """
import sys, threading
from pathlib import Path
import vision_attn
from vision_attn.cli import main
root, entered = Path(vision_attn.__file__).parent, set()
def note(frame, event, _):
    if event == "call" and frame.f_code.co_name[0].islower():
        entered.add(frame.f_code.co_filename)
sys.setprofile(note)
threading.setprofile(note)
status = main(sys.argv[1:])
sys.setprofile(None)
print([str(Path(file).relative_to(root)) for file in entered if file.startswith(str(root))])
sys.exit(status)
"""


FIT = "fit --config vit_planted --data.source.train 40 --data.source.val 20 --data.source.test 20 "
FIT += "--trainer.max_epochs 1 --trainer.accelerator cpu --trainer.default_root_dir OUT"


@pytest.mark.parametrize(
    ("walk", "words", "others"),
    [
        (
            "A photo through `explain`",
            "explain MODEL PHOTOS --method Rollout --page --device cpu -o OUT",
            set(),
        ),
        (
            "A config through `fit`",
            FIT,
            {
                "fitting/messages.py",
                "data/sources.py",
                "data/folders.py",
            },  # errors, others' data
        ),
        (
            "A folder through `score`",
            "score MODEL PHOTOS --method Rollout --steps 2 --sanity 1 --device cpu -o OUT",
            {"evaluate/localization.py", "evaluate/boxes.py"},  # where there are masks or boxes
        ),
    ],
)
@pytest.mark.slow
def test_a_walk_is_the_way_that_is_gone(
    walk: str,
    words: str,
    others: set[str],
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
) -> None:
    values = {"MODEL": models("vit"), "PHOTOS": str(photos), "OUT": str(tmp_path / "out")}
    words = [values.get(word, word) for word in words.split()]
    done = subprocess.run(
        [sys.executable, "-c", WALKED, *words], capture_output=True, text=True, check=True
    )
    entered = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert set(walks()[walk]) - others <= entered


# What the examples of the pages need, so that each runs offline and in seconds.
LIMITS = {
    'load_model("timm:vit_small_patch16_224")': 'load_model("timm:vit_tiny_patch16_224", '
    "pretrained=False, image_size=64, depth=2)",
    "limit=200": "limit=2, steps=2",
    'fit("vit_planted", max_epochs=2)': 'fit("vit_planted", LITTLE, max_epochs=1)',
    'fit("vit_cifar10", {"data.batch_size": 64}, max_epochs=2, data_root=".data")': "fit("
    '"vit_planted", LITTLE, max_epochs=1)',
    'load_model("outputs/demo/vit/best.ckpt")': "load_model(DEMO)",
    '"timm:vit_small_patch16_dinov3.lvd1689m"': '"timm:test_vit", pretrained=False, num_classes=0',
    '"hf:openai/clip-vit-base-patch32"': "CLIP",
}
LITTLE = {"data.source.train": 40, "data.source.val": 20, "data.source.test": 20}


# tests/runs/test_many.py runs that of docs/large_data.md, which needs saved results.
WITH_PYTHON = [
    page
    for page in PAGES
    if "```python" in page.read_text(encoding="utf-8")
    and page.name != "large_data.md"
    and "." not in page.stem  # a translation has the code of its page
]


def tiny_clip(folder: Path) -> Path:
    """A folder with a CLIP of random weights and a few words."""
    sys.path.insert(0, str(ROOT / "tests/models"))
    import texts

    texts.clip(folder)
    return folder


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.slow
def test_the_python_of_a_page_runs(
    page: Path,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 64, 96, 3), dtype=np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", 10.0) as video:
        for frame in frames:
            video.append(frame)
    (photos / "cat.png").rename(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    q, k, v = torch.rand(3, 1, 2, 5, 32)
    names = {"LITTLE": LITTLE, "DEMO": models("vit"), "q": q, "k": k, "v": v}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    if page.name in ("words.md", "recipes.md"):
        names["CLIP"] = f"hf:{tiny_clip(tmp_path / 'clip')}"
    for block in blocks:
        for text, limited in LIMITS.items():
            block = block.replace(text, limited)
        exec(compile(block, page.name, "exec"), names)
    if page.name == "python.md":
        written = {path.name for path in (tmp_path / "outputs").iterdir()}
        assert {"look", "gallery", "score", "inspect.html", "model.onnx", "vit_planted"} <= written
