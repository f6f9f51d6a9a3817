"""What mkdocs makes anew at each build: the command line, tables, formulas and notebooks.

<!-- names: PATHS -->        the reference: tables of names, a page for each; reference_pages.py
<!-- table: NAME -->         tables of parsers, configs, shelf or results.json, see TABLES
<!-- section: HEADING -->    that section of CONTRIBUTING.md
<!-- interactive: NAME -->   a page to click in, made by our own code, see INTERACTIVE
<!-- play: NAME -->          a thing to drag or switch, see assets/play.js; its numbers: story.py
<!-- code: DOTTED.NAME -->   the source of a function of ours, and the same in Keras: keras_tabs.py
$...$ and $$...$$            MathML, which a browser shows without a script
NAME.ja.md, NAME.zh.md       the page in Japanese and Chinese, with the anchors of the English one
notebooks/                   a page for each notebook, with its outputs if it has run, and the file
"""

import argparse
import ast
import html
import importlib
import inspect
import json
import pydoc
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, InclusionLevel
from PIL import Image

import vision_attn
from vision_attn import cli
from vision_attn.data import example_photos
from vision_attn.data.planted import paint
from vision_attn.fitting.configs import about, shipped_configs
from vision_attn.models.shelf import Card, Shelf, list_models
from vision_attn.runs.progress import Silent

sys.path.insert(0, str(Path(__file__).parent))
import languages
import reference_pages
import story
from keras_tabs import with_keras
from reference_pages import table

import notebooks

ROOT = Path(__file__).parent.parent
LONGEST_WORD = 32  # letters of code that stay on one line, also on a telephone
LONGEST_NAME = 24  # the same in a cell of a table
SHORT_VALUE = 5  # letters of a value that stays beside its option


@event_priority(-200)  # after the plugin of languages, which knows only files on the disk
def on_files(files: Any, config: Any) -> Any:
    """Add the notebooks, as pages and to download, and the interactive pages."""
    language = config.theme["language"]
    for source in sorted(notebooks.SOURCES.glob("*.ipynb")):
        ran = notebooks.executed(source)
        file = notebooks.KEPT / source.name if ran else source
        files.append(File.generated(config, f"notebooks/{source.name}", abs_src_path=str(file)))
        page = notebooks.page_of(source.stem, ran or nbformat.read(source, as_version=4))
        for name, picture in page.pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
        files.append(in_each_language(f"notebooks/{source.stem}.md", page.markdown, config))
    if language == "en":  # one copy, for the pages of all languages
        made = {f"learn/{name}.html": make() for name, make in INTERACTIVE.items()}
        made["learn/story.js"] = story.script()
        made |= {f"learn/words_{one}.js": languages.script(one) for one in languages.TRANSLATED}
        for name, content in made.items():
            files.append(File.generated(config, name, content=content))
        for listed in reference_pages.pages():
            files.append(in_english(listed, config))
    return files


def in_english(page: reference_pages.Page, config: Any) -> File:
    """A page that only English has; from it the other languages lead to the page above it."""
    hidden = InclusionLevel.NOT_IN_NAV
    file = File.generated(config, page.uri, content=page.markdown, inclusion=hidden)
    alternates = {"en": file}
    for language in languages.TRANSLATED:
        above = File.generated(config, f"reference/{page.parent}.md", content="")
        above.dest_uri = f"{language}/{above.dest_uri}"
        alternates[language] = above
    return known(file, "en", alternates)


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Keep the tab and the list of the reference open on the pages of names."""
    above = {item.file.src_uri: item.parent for item in nav.pages}
    for file in files.documentation_pages():
        if file.inclusion.is_not_in_nav() and file.src_uri.startswith("reference/"):
            file.page.parent = above[f"reference/{file.src_uri.split('/')[1]}.md"]
    return nav


def in_each_language(name: str, content: str, config: Any) -> File:
    """An English page without a file, among the pages of the language that is built."""
    made = {}
    for language in ("en", *languages.TRANSLATED):
        file = File.generated(config, name, content=content)
        file.dest_uri = file.dest_uri if language == "en" else f"{language}/{file.dest_uri}"
        made[language] = file
    language = config.theme["language"]
    return known(made[language], language, made)


def known(file: File, language: str, alternates: dict[str, File]) -> File:
    """An English file with what the plugin of languages writes on those of the disk."""
    vars(file).update(locale="en", locale_alternate_of=language, alternates=alternates)
    return file


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put tables, sections and interactive pages where a page asks for them."""
    language = config.theme["language"]
    if language != "en" and not languages.is_fallback(page, language):
        english = Path(config.docs_dir) / page.file.norm_src_uri
        markdown = languages.with_anchors(markdown, english.read_text(encoding="utf-8"))
        markdown = languages.joined(markdown)
    if languages.is_fallback(page, language):
        page.meta["search"] = {"exclude": True}  # it is found as the English page
    root = "../" * page.url.count("/")
    if page.file.src_uri in REFERENCE:
        stem = Path(page.file.src_uri).stem
        markdown = reference_pages.filled(markdown, stem, root, language)
    return re.sub(
        r"\(\.\./\.\./notebooks/(\w+)\.ipynb\)",
        r"(../notebooks/\1.md)",
        filled(markdown, root, language),
    )


REFERENCE = {f"reference/{stem}.md" for stem in reference_pages.stems()}


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Turn formulas into MathML, keep options whole, and let the keyboard reach narrow tables."""
    content = re.sub(r"(?<!</span>)<code>([^<\n]*-[^<\n]*)</code>", with_whole_words, content)
    content = re.sub(
        r'(?<=<div class="language-sh highlight">).*?(?=</pre>)',
        lambda block: re.sub(r"(?<=[\s>])-[^\s<>]+", lambda m: unbroken(m[0]), block[0]),
        content,
        flags=re.DOTALL,
    )
    content = re.sub(r"<td.*?</td>", lambda m: with_names(m[0]), content, flags=re.DOTALL)
    content = re.sub(r"<thead>\s*<tr>\s*(<th></th>\s*)+</tr>\s*</thead>", "", content)
    content = content.replace("<th></th>", "<td></td>")  # a heading without words is none
    content = re.sub(r"(?<=\d) %(?![^<]*</(?:code|pre)>)", "&nbsp;%", content)
    content = with_formulas(content).replace("<table>", '<table tabindex="0">')
    language = config.theme["language"] if config else "en"
    if language != "en":
        content = re.sub(r"<p><em>((?:(?!</em>).)+)</em></p>", CAPTION, content, flags=re.DOTALL)
    if languages.is_fallback(page, language):
        note = languages.said(languages.ONLY_ENGLISH, language)
        content = f'<p class="only" lang="{language}" data-search-exclude>{note}</p>\n{content}'
    return with_scripts(content, page.url, language) if "data-play" in content else content


CAPTION = r'<p class="caption">\1</p>'  # Japanese and Chinese have no italics


def with_scripts(content: str, url: str, language: str = "en") -> str:
    """HTML of the page at this address, followed by what the things to play with need."""
    root = "../" * url.count("/")
    words = [] if language == "en" else [f"learn/words_{language}.js"]
    scripts = ("learn/story.js", *words, "assets/play.js")
    return content + "".join(f'\n<script src="{root}{name}"></script>' for name in scripts)


def with_names(cell: str) -> str:
    """A cell whose names of code are not broken, and whose pipes have lost their backslash."""
    name = rf"<code>([^<\s]{{1,{LONGEST_NAME}}})</code>"
    return re.sub(name, r'<code class="name">\1</code>', cell.replace(r"\|", "|"))


def with_whole_words(code: re.Match[str]) -> str:
    """Code in a sentence whose words, such as --output, are not broken at their hyphens."""
    whole = re.sub(r"\S*-\S*", lambda m: unbroken(m[0]), code[1])
    return f"<code>{whole}</code>"


def unbroken(word: str) -> str:
    """A word on one line; a long one may be broken after a dot, a slash or an equals sign."""
    parts = [word] if len(word) <= LONGEST_WORD else re.split(r"(?<=[./=])(?=[^./=])", word)
    return "<wbr>".join(f'<span class="word">{part}</span>' for part in parts)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the search dialog, which the theme leaves without a name, and the text's language."""
    language = config.theme["language"]
    # For these the theme's script would ask for a sitemap, which a page from the disk may not read.
    output = re.sub(r'<link rel="?alternate"?[^>]*>', "", output)
    if languages.is_fallback(page, language):
        output = output.replace("<article ", '<article lang="en" ', 1)
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" '
        f'aria-label="{languages.said("Search", language)}"',
    )


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Leave out the page for missing addresses: a site opened from the disk never shows it."""
    return "" if template_name == "404.html" else output


# ---------------------------------------------------------------- the command line


class Recorder(cli.Parser):
    """A parser that remembers what was added to it, group by group."""

    def __init__(self, **given: Any):
        self.groups: list[tuple[str, list[argparse.Action]]] = [("", [])]
        super().__init__(**given)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.groups[0][1].append(action)
        return action

    def add_argument_group(self, title: Any = None, *rest: Any, **options: Any) -> Any:
        group = super().add_argument_group(title, *rest, **options)
        if title not in ("positional arguments", "options"):
            added: list[argparse.Action] = []
            self.groups.append((str(title), added))
            add = group.add_argument

            def recorded(*names: Any, **given: Any) -> argparse.Action:
                added.append(add(*names, **given))
                return added[-1]

            vars(group)["add_argument"] = recorded
        return group


def parser_of(command: str) -> Recorder:
    """The parser of one command, with what it has been given."""
    module = importlib.import_module(f"vision_attn.commands.{command}")
    parser = Recorder(prog=f"vision-attn {command}", description=cli.COMMANDS[command])
    module.add_arguments(parser)
    return parser


def written(action: argparse.Action) -> str:
    """An option or a word as it is typed."""
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    if action.nargs == 0:
        return names
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    value = str(value or ("" if action.option_strings else action.dest.upper()))
    value = value or action.dest.upper()
    if not action.option_strings:
        return f"`{value}`" + {"*": " ...", "?": " (may be left out)"}.get(str(action.nargs), "")
    space = "\N{NO-BREAK SPACE}" if len(value) <= SHORT_VALUE else " "
    return f"{names}{space}`{value}`"


def commands() -> str:
    """Every command with every option."""
    words = importlib.import_module("vision_attn.commands.fit.words")
    parts = []
    for command, does in cli.COMMANDS.items():
        parser = parser_of(command)
        parts.append(f"## {command}\n\n{does[0].upper()}{does[1:]}.\n")
        parts.append(f"```text\n{parser.format_usage().strip()}\n```\n")
        for title, actions in parser.groups:
            shown = [a for a in actions if a.help != argparse.SUPPRESS and a.dest != "help"]
            if shown:
                heading = [f"**{title[0].upper()}{title[1:]}**\n"] if title else []
                rows = [(written(a), cell(str(a.help or ""))) for a in shown]
                parts += [*heading, table(("option", "meaning"), rows)]
    for command, does in cli.TRAINING.items():
        text = words.help_text(command).partition("configs here:")[0]
        parts.append(
            f"## {command}\n\n{does[0].upper()}{does[1:]}.\n\n```text\n{text.strip()}\n```\n"
        )
    return "\n".join(parts)


# ---------------------------------------------------------------- tables


def cell(text: str) -> str:
    """Plain text in a cell: what Markdown and HTML would take for their own is escaped."""
    return re.sub(r"([|*_<>\[\]`])", r"\\\1", text.replace("%%", "%"))


def shelf() -> str:
    """The pretrained networks, from their cards."""
    rows = [
        (
            f"[`{row['name']}`](models.md#{row['name']})",
            row["network"],
            row["data"],
            f"{row['accuracy']:.1%}".replace("%", " %"),
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['size'] / 1e6:.1f} MB",
        )
        for row in list_models()
    ]
    return table(("name", "network", "data", "test top-1", "parameters", "file"), rows)


def configs_of(part: str, measured: bool = False) -> str:
    """The configs with this part in their name, and what each reaches, from their header comments.

    measured: only those of which something was.
    """
    rows = [
        (f"`{name}`", *map(cell, about(path)))
        for name, path in shipped_configs().items()
        if part in name and (re.search(r"\d", about(path)[1]) or not measured)
    ]
    return table(("config", "what it trains", "what it reaches"), rows)


PARTS = {
    "planted": "Drawn images, nothing to download",
    "cifar": "CIFAR-10 and CIFAR-100",
    "image": "Photos in folders",
    "dates": "Dates, from text to text",
    "strings": "Rows of objects, named one by one",
    "questions": "Questions about images",
}


def configs() -> str:
    """Every config of the package, by its data."""
    parts = []
    for part, title in PARTS.items():
        parts.append(f"## {title}\n\n{configs_of(part)}")
    return "\n".join(parts)


def results() -> dict[str, list[dict[str, Any]]]:
    """What was measured, from results.json."""
    text = (ROOT / "docs" / "results.json").read_text(encoding="utf-8")
    measured: dict[str, list[dict[str, Any]]] = json.loads(text)
    return measured


def runs() -> str:
    """Every measured run, those of the shelf too, by the work of its training."""
    rows = [*results()["runs"], *map(shelved_run, Shelf())]
    header = (
        "network",
        "data and attention",
        "parameters",
        "PFLOP",
        "test",
        "6 views",
        "minutes",
    )
    return table(header, [run_row(run) for run in sorted(rows, key=work)])


def work(run: dict[str, Any]) -> float:
    """PFLOP, or infinity where nobody counted."""
    return run["pflop"] if run["pflop"] is not None else float("inf")


def shelved_run(card: Card) -> dict[str, Any]:
    """A network of the shelf, as a run of results.json."""
    values = card.values
    flops = values["training"]["flops"]
    return {
        "name": f"vision_attn:{card.name}",
        "data": values["data"]["name"],
        "attention": values["network"]["class"],
        "parameters": values["network"]["parameters"] / 1e6,
        "pflop": flops and flops / 1e15,
        "top1": 100 * values["test"]["top1"],
        "minutes": values["training"]["minutes"],
    }


def run_row(run: dict[str, Any]) -> tuple[str, ...]:
    """A run as cells of a table."""
    name = f"`{run.get('name') or run['config']}`"
    return (
        f"{name}, {run['variant']}" if "variant" in run else name,
        f"{run['data']}: {run['attention']}",
        f"{run['parameters']:.2f} M",
        "" if run["pflop"] is None else f"{run['pflop']:.2g}",
        percent(run["top1"]),
        percent(run["views"]) if "views" in run else "",
        f"{run['minutes']:.1f}" + (f" ({run['machine']})" if "machine" in run else ""),
    )


def percent(value: float) -> str:
    return f"{value:.1f} %"


def seeds() -> str:
    """The runs of which several seeds were measured: the mean."""
    rows = [
        (
            f"`{run['config']}`" + (f", {run['variant']}" if "variant" in run else ""),
            str(run["seeds"]["count"]),
            percent(run["seeds"]["top1"]),
            percent(run["seeds"]["views"]),
        )
        for run in results()["runs"]
        if "seeds" in run
    ]
    return table(("config", "seeds", "test, mean", "6 views, mean"), rows)


def maps() -> str:
    """How often a map's maximum lies inside the object of a drawn image."""
    rows = [
        (
            f"`{row['network']}`",
            ", ".join(f"{name} {share} %" for name, share in row.items() if name != "network"),
        )
        for row in results()["maps"]
    ]
    return table(("network", "map's maximum inside the object"), rows)


def exactness() -> str:
    """How near maps are to dense matrices, from the table of the page on coverage."""
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| \d+ / \d+ \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    _, *errors = zip(*rows, strict=True)
    float64, float32 = (f"{max(map(float, column)):.0e}" for column in errors)
    header = ("networks", "all methods of attention, float64", "Rollout, float32")
    return table(header, [(str(len(rows)), float64, float32)])


def rollout() -> str:
    """What a rollout costs beside a forward pass."""
    rows = [(row["what"], row["forward"], row["memory"]) for row in results()["rollout"]]
    header = ("ViT-S/16, float32, two threads", "times one forward pass", "extra memory")
    return table(header, rows)


def speed() -> str:
    """The package beside others."""
    rows = [
        (row["what"], row["ratio"], row["avx2"], f"[journal](lab/journal/{row['journal']}.md)")
        for row in results()["speed"]
    ]
    return table(("what", "AVX512, bfloat16", "AVX2, float32", "measured"), rows)


def five() -> str:
    """The five numbers at the top of the results, each out of a table below."""
    measured = results()
    (run,) = [row for row in measured["runs"] if row["config"] == FASTEST and "variant" not in row]
    shelved = shelved_run(Shelf()["senet_imagenette"])
    networks, float64, _ = exactness().splitlines()[-1].strip("| ").split(" | ")
    rollouts, scored = measured["rollout"][0], measured["speed"][SCORED]
    photos = Shelf()["senet_imagenette"].values["test"]["images"]
    rows = [
        (
            percent(run["top1"]),
            f"of CIFAR-10's test images, learned in {run['minutes']:.0f} minutes",
        ),
        (percent(shelved["top1"]), f"of {photos:,} photos of Imagenette, learned from nothing"),
        (f"{rollouts['forward']} x", f"the time of the network alone: {rollouts['what']}"),
        (
            float64,
            f"of the map's maximum: the largest error of attention's maps, {networks} networks",
        ),
        (scored["ratio"].partition(" times")[0] + " x", f"as fast: {scored['what']}"),
    ]
    return table(("", ""), [(f"**{number}**", meaning) for number, meaning in rows])


FASTEST = "senet_cifar10_fast"
SCORED = 7  # deletion curves, against grad-cam
TABLES: dict[str, Callable[[], str]] = {
    "runs": runs,
    "seeds": seeds,
    "maps": maps,
    "exactness": exactness,
    "rollout": rollout,
    "speed": speed,
    "five": five,
    "commands": commands,
    "configs": configs,
    "shelf": shelf,
    **{f"configs {part}": partial(configs_of, part) for part in PARTS},
    **{f"measured configs {part}": partial(configs_of, part, measured=True) for part in PARTS},
}


def section(heading: str) -> str:
    """A section of CONTRIBUTING.md, without its heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise ValueError(f"CONTRIBUTING.md has no section {heading!r}")
    return found[1].strip()


def filled(markdown: str, root: str = "", language: str = "en") -> str:
    """A page with its tables and sections; `root` leads to the folder of the site.

    Raises for a name that there is not.
    """
    markdown = re.sub(r"<!-- table: (.+?) -->", lambda m: TABLES[m[1]](), markdown)
    markdown = re.sub(
        r"<!-- interactive: (.+?) -->", lambda m: frame(m[1], f"{root}learn/", language), markdown
    )
    markdown = re.sub(r"<!-- play: (\w+) -->", lambda m: board(m[1], language), markdown)
    markdown = re.sub(r"<!-- code: (\S+) -->", lambda m: code(m[1]), markdown)
    return re.sub(r"<!-- section: (.+?) -->", lambda m: section(m[1]), markdown)


# ---------------------------------------------------------------- interactive pages


def inspect_vit() -> str:
    """The inspector: two test images of the planted set, seen by the ViT of the shelf."""
    model = vision_attn.load_model("vision_attn:vit_planted")
    images = planted_images(INSPECTED)
    return vision_attn.inspect(replace(model, name="vit_planted"), images, progress=Silent()).html


def live_vit() -> str:
    """The live page of the shelf's ViT that knows photos, with the photos of the package."""
    model = vision_attn.load_model("vision_attn:compact_vit_imagenette")
    photos = example_photos()
    first = photos.pop("church")
    named = replace(model, name="compact_vit_imagenette")
    return vision_attn.live(named, [first, *photos.values()], progress=Silent()).html


def live_senet() -> str:
    """The live page of the SENet of the shelf, with the photos of the package."""
    model = vision_attn.load_model("vision_attn:senet_imagenette")
    return vision_attn.live(replace(model, name="senet_imagenette"), progress=Silent()).html


def planted_images(numbers: Iterable[int]) -> list[Any]:
    """These test images of the planted set, as PIL images."""
    painted = [paint(number, number + 1, split="test").images[0] for number in numbers]
    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in painted]


INSPECTED = 3, 13  # test images of the planted set
INTERACTIVE: dict[str, Callable[[], str]] = {
    "inspect_vit": inspect_vit,
    "live_vit": live_vit,
    "live_senet": live_senet,
}


def frame(name: str, learn: str, language: str = "en") -> str:
    """An interactive page in a frame, and a link to it alone. Raises KeyError for another name."""
    title = " ".join((INTERACTIVE[name].__doc__ or "").split()).rstrip(".")
    title = languages.said(title, language)
    return (
        f'<iframe class="interactive" name="{language}" src="{learn}{name}.html" title="{title}" '
        'loading="lazy"></iframe>\n'
        f'<a href="{learn}{name}.html">{languages.said(ALONE, language)}</a>'
    )


ALONE = "Open it in a page of its own"
SCRIPTLESS = "To play here, switch on JavaScript."


def board(name: str, language: str = "en") -> str:
    """A thing to play with, which assets/play.js fills. Raises ValueError for another name."""
    script = (ROOT / "docs/assets/play.js").read_text(encoding="utf-8")
    if f"\n    {name}(board) {{" not in script:
        raise ValueError(f"assets/play.js has nothing to play with named {name!r}")
    note = languages.said(SCRIPTLESS, language)
    return f'<div class="play" data-play="{name}"><p>{note}</p></div>'


def code(name: str) -> str:
    """The source of the method vision_attn.NAME, without its docstring, and the same in Keras."""
    method = pydoc.locate(f"vision_attn.{name}")
    assert callable(method), f"vision_attn.{name}: there is no such method"
    source = textwrap.dedent(inspect.getsource(method))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    said = function.body[0]
    lines = source.splitlines()
    if ast.get_docstring(function):
        del lines[said.lineno - 1 : said.end_lineno]
    owner = name.split(".")[-2]
    return with_keras(name, f'```py title="{owner}"\n' + "\n".join(lines) + "\n```")


# ---------------------------------------------------------------- formulas


def with_formulas(content: str) -> str:
    """HTML whose formulas are MathML."""
    content = re.sub(
        r'<div class="arithmatex">\\\[(.*?)\\\]</div>',
        lambda m: (
            f'<span class="formula" tabindex="0">{"".join(map(block, parts_of(m[1])))}</span>'
        ),
        content,
        flags=re.DOTALL,
    )
    return re.sub(
        rf'([{OPENING}]?)<span class="arithmatex">\\\((.*?)\\\)</span>([{CLOSING}]*)',
        lambda m: whole(m[1], mathml(m[2], "inline"), m[3]),
        content,
        flags=re.DOTALL,
    )


OPENING = "(（“"
CLOSING = ",.;:)”，。；：）、？"


def whole(before: str, formula: str, after: str) -> str:
    """A formula on one line with the punctuation that touches it."""
    return f'<span class="whole">{before}{formula}{after}</span>' if before + after else formula


def parts_of(formula: str) -> list[str]:
    """A formula in the parts between its wide gaps: on a narrow screen each gets a line."""
    parts = [""]
    for piece in re.split(r"\\qquad|\\quad", formula):
        whole = parts[-1].count("{") == parts[-1].count("}") and parts[-1].strip()
        parts = [*parts, piece] if whole else [*parts[:-1], parts[-1] + piece]
    return parts


def block(formula: str) -> str:
    return mathml(formula, "block")


def mathml(formula: str, display: str) -> str:
    """A formula of LaTeX as MathML."""
    return convert(html.unescape(formula).strip(), display=display)
