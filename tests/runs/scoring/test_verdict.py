"""The verdict over scores: the rule on made-up numbers, its words, and what the files say of it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import vision_attn
from vision_attn.commands.score import show
from vision_attn.data import Preprocess
from vision_attn.methods import (
    CentreGaussian,
    Class,
    EdgeMap,
    Explainer,
    GradCAM,
    Occlusion,
    RandomMap,
    RawAttention,
    Rollout,
)
from vision_attn.models import ViT
from vision_attn.runs.progress import Silent
from vision_attn.runs.scoring import Scores, tables
from vision_attn.runs.scoring.evidence import Samples
from vision_attn.runs.scoring.mosaics import Mosaics
from vision_attn.runs.scoring.results import METRICS, Results, short, signed
from vision_attn.runs.scoring.tasks import Share, Work
from vision_attn.runs.scoring.verdict import judge
from vision_attn.types import Model

METHODS = GradCAM(), Occlusion(), Rollout()
BASELINES = RandomMap(), CentreGaussian(), EdgeMap()
PREPROCESS = Preprocess((32, 48), (0.5,) * 3, (0.25,) * 3)


class Named(Samples):
    """Names alone."""

    def __init__(self) -> None:
        pass

    def __getitem__(self, item: Any) -> Any:
        raise NotImplementedError


def results_of(
    leads: dict[str, tuple[float, float]],
    images: int = 100,
    methods: tuple[Explainer, ...] = METHODS,
    **more: Any,
) -> Results:
    """Scores in which a method leads each baseline by {method: (deletion, insertion)} or 0.

    noise: of each image's score, ends: {method: rank correlation with all weights lost}.
    """
    noise, ends = more.get("noise", 0.05), more.get("ends", {})
    generator = torch.Generator().manual_seed(more.get("seed", 0))
    names = [f"{i}.png" for i in range(images)]
    explainers = {str(one): one for one in (*methods, *BASELINES)}
    hard = 0.2 * torch.randn(images, generator=generator)  # is common to all methods
    records = {}
    for method in explainers:
        deletion, insertion = leads.get(method, (0.0, 0.0))
        own = noise * torch.randn(2, images, generator=generator)
        for i, name in enumerate(names):
            scores = {
                "deletion": float(0.4 - deletion + hard[i] + own[0, i]),
                "insertion": float(0.5 + insertion + hard[i] + own[1, i]),
            }
            record = {"kind": "maps", "method": method, "image": name, "scores": scores}
            known = {"label": None, "predicted": 0, "target": 0, "constant": False}
            records["maps", method, name] = record | known
            if ends:
                alike = ends.get(method, 0.0) + 0.01 * (i % 3)
                one = {"scores": {"randomisation": alike}, "rank correlation": [0.9, alike]}
                records["sanity", method, name] = record | known | one | {"kind": "sanity"}
    everything = list(range(images))
    work = Work.__new__(Work)  # without its data
    work.settings = {"model": "m", "data": "d", "target": "label", "steps": 4, "removal": "mean"}
    work.data = Named()
    work.data.names = names
    work.all = Share(everything, everything if ends else [])
    work.explainers = explainers
    request: Any = SimpleNamespace(words="the true class", target=Class(), contrast=None)
    work.request = request
    work.model = Model(nn.Sequential(nn.Linear(2, 2)), PREPROCESS, [], None)
    work.requested = images
    work.mosaics = Mosaics("d", work.model, work.data, sides=(), most=0)
    return Results(work, records)


def test_ahead_of_every_baseline_by_both_is_trusted_and_the_rest_is_not() -> None:
    results = results_of({"GradCAM": (0.2, 0.1), "Occlusion": (-0.1, 0.2)})
    verdict = judge(results)
    trust = {one.method: one.trust for one in verdict.methods}
    assert trust == {"GradCAM": "yes", "Occlusion": "no", "Rollout": "no"}
    by_name = {one.method: one for one in verdict.methods}
    assert by_name["Occlusion"].deletion == "worse"
    assert by_name["Occlusion"].insertion == "better"
    assert by_name["Rollout"].deletion == by_name["Rollout"].insertion == "no better"
    assert "worse than" in by_name["Occlusion"].reason
    assert by_name["Rollout"].reason.startswith("no better than")
    assert "better than every baseline by deletion" in by_name["GradCAM"].reason
    assert verdict.text.splitlines() == [
        "Trust here, as far as deletion and insertion go: GradCAM. "
        "Do not trust: Occlusion, Rollout.",
        "This rests on deletion and insertion, on 100 images, each method beside RandomMap, "
        "CentreGaussian and EdgeMap (95 % intervals of the paired differences); whether the maps "
        "depend on the weights was not measured.",
    ]


def test_few_images_tell_nothing_however_large_the_lead() -> None:
    verdict = judge(results_of({"GradCAM": (0.3, 0.3)}, images=19))
    assert verdict.of("unknown") == ["GradCAM", "Occlusion", "Rollout"]
    assert verdict.what == (
        "No method has shown here that it can be trusted. "
        "Cannot tell from 19 images: GradCAM, Occlusion, Rollout. "
        "A verdict needs at least 20 images."
    )
    assert judge(results_of({"GradCAM": (0.3, 0.3)}, images=20)).of("yes") == ["GradCAM"]


def test_a_wide_interval_around_no_lead_is_no_proof_of_none() -> None:
    verdict = judge(results_of({}, images=30, noise=0.5))
    assert "unknown" in {one.trust for one in verdict.methods}
    one = next(one for one in verdict.methods if one.trust == "unknown")
    assert one.reason.startswith("cannot tell from 30 images: ")
    assert "not shown to be better than" in one.reason


def test_measures_that_disagree_are_named_as_such() -> None:
    verdict = judge(results_of({"GradCAM": (0.2, 0.0)}))
    (one,) = (one for one in verdict.methods if one.method == "GradCAM")
    assert (one.trust, one.deletion, one.insertion) == ("unknown", "better", "no better")
    assert one.reason.startswith("its measures disagree: better than every baseline by deletion")
    assert "Deletion and insertion disagree on GradCAM." in verdict.what
    assert "Cannot tell" not in verdict.what


@pytest.mark.parametrize(
    ("end", "trust", "dependence"),
    [(0.1, "yes", "changes"), (0.9, "no", "unchanged"), (0.49, "unknown", "open")],
)
def test_a_map_that_outlives_the_weights_is_not_believed(
    end: float, trust: str, dependence: str
) -> None:
    # 0.49 to 0.51, a third each: the mean is exactly at the limit
    results = results_of({"GradCAM": (0.2, 0.2)}, images=99, ends={"GradCAM": end, "Rollout": 0.8})
    verdict = judge(results)
    (one,) = (one for one in verdict.methods if one.method == "GradCAM")
    assert (one.trust, one.randomisation) == (trust, dependence)
    if trust == "no":
        assert one.reason.startswith("its map does not depend on the weights")
        assert ".910 [.9" in one.reason
    assert verdict.randomised == 99
    assert verdict.basis.endswith("and on 99 images with the weights randomised.")
    if trust == "yes":
        assert verdict.what.startswith("Trust here: GradCAM.")


def test_a_lead_that_rounds_to_nothing_is_none() -> None:
    verdict = judge(results_of({"GradCAM": (1e-4, 1e-4)}, noise=1e-5))
    (one,) = (one for one in verdict.methods if one.method == "GradCAM")
    assert (one.trust, one.deletion) == ("no", "no better")
    assert "+0.000 [+0.000, +0.000]" in one.reason
    worse = judge(results_of({"GradCAM": (-1e-4, -1e-4)}, noise=1e-5)).methods[0]
    assert worse.deletion == "no better"
    assert verdict.what.startswith("Trust none of these methods here: GradCAM, Occlusion, Rollout.")


def test_chance_trusts_one_method_in_forty_where_that_is_easiest() -> None:
    """Better by deletion for sure, by insertion as good as one baseline and better than two."""
    methods = tuple(RawAttention(layer=i) for i in range(20))
    leads = dict.fromkeys(map(str, methods), (0.3, 0.0))
    leads |= {"CentreGaussian": (0.0, -0.3), "EdgeMap": (0.0, -0.3)}
    trusted = sum(
        len(judge(results_of(leads, images=40, methods=methods, seed=seed)).of("yes"))
        for seed in range(20)
    )
    assert 0 < trusted <= 0.04 * 400


def test_an_explainer_that_is_a_baseline_is_not_judged_but_marked() -> None:
    results = results_of({"EdgeMap(cells=7)": (0.2, 0.2)}, methods=(GradCAM(), EdgeMap(cells=7)))
    assert [one.method for one in judge(results).methods] == ["GradCAM"]
    _, _, rows = next(tables.tables(results))
    assert [row[0].text for row in rows] == [
        "GradCAM",
        *(f"{name} (baseline)" for name in ("EdgeMap(cells=7)", *map(str, BASELINES))),
    ]


def test_methods_keep_their_order_whatever_they_score() -> None:
    results = results_of({"Rollout": (0.2, 0.2)})
    assert list(results.table) == ["GradCAM", "Occlusion", "Rollout", *map(str, BASELINES)]


def test_scores_md_begins_with_the_verdict_and_explains_each_column() -> None:
    results = results_of({"GradCAM": (0.2, 0.1)}, ends={"GradCAM": 0.1})
    title, _, what, _, basis, *rest = tables.as_markdown(results).splitlines()
    verdict = judge(results)
    assert (title, what, basis) == ("# Which heatmap to trust", verdict.what, verdict.basis)
    table = [line for line in rest if line.startswith("| **")]
    assert [line.split(" | ")[1] for line in table] == ["yes", "no", "no"]
    text = "\n".join(rest)
    for metric in results.metrics:
        assert f"- {tables.heading(metric)}: {tables.ABOUT[metric]}\n" in text
    assert tables.ABOUT.keys() == METRICS.keys()
    assert "<li>deletion ↓: the class" in tables.as_html(results)


def test_a_baseline_in_bold_is_said_to_have_won() -> None:
    results = results_of({"EdgeMap": (0.2, 0.0), "GradCAM": (0.0, 0.2)})
    for text in (tables.as_markdown(results), tables.as_html(results)):
        for name in map(str, BASELINES):
            for line in text.replace("<tr>", "\n<tr>").splitlines():
                if line.startswith((f"| {name} (baseline)", f"<tr><td>{name} (baseline)")):
                    bold = "**" in line or "<b>" in line
                    assert bold == (name == "EdgeMap")
                    assert bold == ("baseline won" in line)
    assert "| GradCAM | " in tables.as_markdown(results)


def test_equal_means_leave_the_bold_type_to_the_methods() -> None:
    results = results_of({}, noise=0.0)
    assert tables.winners(results, "deletion") == set()  # all print the same
    results = results_of({"GradCAM": (0.1, 0.1), "EdgeMap": (0.1, 0.1)}, noise=0.0)
    assert tables.winners(results, "deletion") == {"GradCAM"}


def test_zero_has_no_sign() -> None:
    assert (short(-0.0001), signed(-0.0001), signed(0.0001)) == (".000", "+0.000", "+0.000")
    assert (short(-0.25), signed(-0.25)) == ("-.250", "-0.250")


@pytest.fixture(scope="module")
def untrained() -> Scores:
    torch.manual_seed(0)
    network = ViT((32, 48), 8, 3, dim=12, depth=2, heads=2).eval()
    layout = network.layout((32, 48))
    model = Model(network, PREPROCESS, ["a", "b", "c"], layout, "tiny", "random")
    quick: dict[str, Any] = {"steps": 2, "batch_size": 4, "limit": 4, "progress": Silent()}
    return vision_attn.score(model, "planted", ["GradCAM"], **quick)


@pytest.mark.xdist_group("scored untrained")
def test_the_verdict_is_a_value_in_the_files_and_the_last_word_of_the_command(
    untrained: Scores, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = untrained.verdict()
    assert [row["method"] for row in verdict.rows()] == ["GradCAM"]
    assert verdict.rows()[0]["trust"] == "unknown"
    kept = json.loads((untrained.save(tmp_path) / "scores.json").read_text())
    assert kept["verdict"]["text"] == verdict.text == str(verdict)
    assert kept["verdict"]["methods"] == verdict.rows()
    assert str(untrained).endswith(verdict.text)
    show(untrained)
    assert capsys.readouterr().out.rstrip().endswith(verdict.text)


@pytest.mark.xdist_group("scored untrained")
def test_scores_of_random_weights_say_so(untrained: Scores) -> None:
    words = "Random weights: this model has not been trained."
    assert untrained.to_dict()["weights"] == "random"
    assert untrained.verdict().text.startswith(words)
    for text in (str(untrained), untrained._repr_html_(), tables.as_markdown(untrained.results)):
        assert words in text


def test_no_methods_no_verdict() -> None:
    results = results_of({}, methods=())
    assert judge(results).what == "No method was scored."


@pytest.mark.parametrize(("images", "best", "worst"), [(1, 1, 0), (2, 1, 1), (5, 3, 2), (13, 3, 3)])
def test_no_image_is_among_the_best_and_the_worst(images: int, best: int, worst: int) -> None:
    found = results_of({}, images)
    numbers = found.numbers(found.ranking[0], "Rollout")
    lower_is_better = found.ranking[0] == "deletion"
    order = sorted(numbers, key=numbers.__getitem__, reverse=not lower_is_better)
    assert len(order) == images
    assert found.extremes("Rollout") == (order[:best], order[::-1][:worst])
