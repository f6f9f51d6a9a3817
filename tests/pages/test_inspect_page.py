"""The page as a file: what is in it, and that nothing in it is taken for HTML."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import Preprocess
from vision_attn.methods import LeGrad
from vision_attn.models import ViT
from vision_attn.pages.inspect import (
    Inspection,
    Page,
    Prediction,
    QueryKeys,
    ShownChannelGate,
    ShownMap,
    ShownSpatialGate,
    Weights,
    Windows,
)
from vision_attn.pages.inspect.inspection import Look
from vision_attn.pages.inspect.page import SCRIPTS, distance, entropy
from vision_attn.pages.live import page as live
from vision_attn.types import Model

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, size=(30, 40, 3), dtype=np.uint8)
EVIL = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'>"


def layer(name: str = "0", heads: int = 2, tokens: int = 7, d: int = 3) -> QueryKeys:
    q, k = RNG.normal(size=(2, heads, tokens, d)).astype(np.float32)
    return QueryKeys(name, q, k)


def data_of(page: Page) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html)
    assert len(found) == 1
    return json.loads(found[0])


def test_the_numbers_can_be_read_back() -> None:
    weights = RNG.random((3, 7, 7)).astype(np.float32)
    values, gate = RNG.random((5, 4)).astype(np.float32), RNG.random(11).astype(np.float32)
    inspection = Inspection(
        "a model",
        "a.png",
        PHOTO,
        grid=(2, 3),
        prefix=["class token"],
        layers=[layer(), Weights("last", weights)],
        maps=[ShownMap("Rollout", values, prefix_mass=0.25, scores={"deletion": 0.5})],
        gates=[ShownChannelGate("se", gate), ShownSpatialGate("mask", values)],
    )
    [item] = data_of(Page.of([inspection]))["items"]
    numbers = zlib.decompress(base64.b64decode(item["bytes"]))
    read = lambda at, count: np.frombuffer(numbers, "<f4", count, at)  # noqa: E731
    np.testing.assert_array_equal(read(item["maps"][0]["values"], 20).reshape(5, 4), values)
    np.testing.assert_array_equal(read(item["gates"][0]["values"], 11), gate)
    assert item["maps"][0]["scores"] == {"deletion": 0.5}
    assert item["maps"][0]["grid"] == [5, 4]
    assert [one["name"] for one in item["layers"]] == ["0", "last"]
    head = item["layers"][1]["heads"][2]
    largest = read(head["at"], 7)
    codes = np.frombuffer(numbers, np.uint8, 49, head["at"] + 28).reshape(7, 7)
    shown = largest[:, None] * (codes / 255) ** 2
    np.testing.assert_allclose(shown, weights[2], atol=0.004)
    assert all(head["at"] % 4 == 0 for one in item["layers"] for head in one["heads"])
    assert head["entropy"] == pytest.approx(entropy(weights[2]))


def test_entropy_and_distance_against_loops() -> None:
    weights = RNG.random((7, 7)) ** 3
    rows = [row / row.sum() for row in weights]
    bits = [-sum(w * np.log2(w) for w in row) for row in rows]
    assert entropy(weights) == pytest.approx(np.mean(bits))
    assert entropy(np.eye(7)) == 0
    reach = []
    for i in range(6):  # after one prefix token: a grid of 2 x 3
        among = weights[1 + i, 1:] / weights[1 + i, 1:].sum()
        apart = [np.hypot(i // 3 - j // 3, i % 3 - j % 3) for j in range(6)]
        reach.append(among @ apart)
    assert distance(weights, (2, 3)) == pytest.approx(np.mean(reach), rel=1e-6)


def test_names_are_never_html() -> None:
    inspection = Inspection(
        EVIL,
        EVIL,
        PHOTO,
        predictions=[Prediction(0, EVIL, 0.5)],
        grid=(2, 3),
        prefix=[EVIL],
        layers=[layer(EVIL)],
        maps=[
            ShownMap(EVIL, np.ones((2, 2), np.float32), about=EVIL, unit=EVIL, scores={EVIL: 1.0})
        ],
        gates=[ShownChannelGate(EVIL, np.ones(3, np.float32))],
    )
    page = Page.of([inspection])
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<img" not in page.html
    item = data_of(page)["items"][0]
    assert item["image"] == item["predictions"][0]["name"] == item["maps"][0]["about"] == EVIL
    frame = page._repr_html_()
    assert frame.count("<") == 2  # <iframe ...></iframe>
    assert unescape(re.findall(r'(?s)srcdoc="(.*?)"', frame)[0]) == page.html


def test_long_names_go_on_after_a_separator_and_the_title_has_no_markup() -> None:
    a_map = ShownMap("Rollout", np.ones((5, 4), np.float32))
    shown = Page.of([Inspection("ours:a_b/c & <d>", "my_photo.png", PHOTO, maps=[a_map])]).html
    assert '<p translate="no">ours:<wbr>a_<wbr>b/<wbr>c &amp; &lt;d&gt;</p>' in shown
    assert '<h1 translate="no">my_<wbr>photo.png</h1>' in shown
    assert "<title>my_photo.png · ours:a_b/c &amp; &lt;d&gt;</title>" in shown


def test_a_file_name_that_is_no_text_can_be_shown(tmp_path: Path) -> None:
    inspection = Inspection(
        "m", "caf\udce9.png", PHOTO, grid=(2, 3), prefix=["cls"], layers=[layer()]
    )
    saved = Page.of([inspection]).save(tmp_path / "page.html")
    assert "caf?.png" in saved.read_text(encoding="utf-8")


def test_nothing_is_fetched_and_only_our_script_runs() -> None:
    html = Page.of([Inspection("m", "i", PHOTO, maps=[ShownMap("A", PHOTO[..., 0] / 255)])]).html
    assert "default-src 'none'" in html
    assert "unsafe" not in re.findall(r"<meta[^>]*Content-Security[^>]*>", html)[0]
    outside = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:)\w+:[^\s"')]*""", html)
    assert outside == []


def test_large_photos_are_made_smaller() -> None:
    photo = np.zeros((3000, 2000, 3), np.uint8)
    html = Page.of([Inspection("m", "i", photo, maps=[ShownMap("A", np.ones((2, 2)))])]).html
    assert len(html) < 200_000


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="at least one inspection"):
        Page.of([])
    with pytest.raises(ValueError, match=r"a\.png, m: expected layers, maps, gates or features"):
        Inspection("m", "a.png", PHOTO)
    with pytest.raises(
        ValueError, match=r"layer 3: expected 7 tokens \(1 prefix \+ grid 2x3\), got 8"
    ):
        Inspection("m", "i", PHOTO, grid=(2, 3), prefix=["cls"], layers=[layer("3", tokens=8)])
    with pytest.raises(ValueError, match=r"box must be .* got \(0.5, 0.0, 0.5, 1.0\)"):
        Inspection(
            "m", "i", PHOTO, box=(0.5, 0.0, 0.5, 1.0), grid=(2, 3), prefix=["c"], layers=[layer()]
        )


@pytest.mark.parametrize(
    "box",
    [
        (0.0, 1.0, 1.0, 0.0),
        (1.0, 0.0, 2.0, 1.0),
        (0.0, -1.0, 1.0, 0.0),
        (0.0, 0.0, np.nan, 1.0),
        (-np.inf, 0.0, 1.0, 1.0),
    ],
)
def test_a_box_that_shows_nothing_of_the_photo_is_no_box(
    box: tuple[float, float, float, float],
) -> None:
    with pytest.raises(ValueError, match=r"box must be .* of which it shows a part, got"):
        Inspection("m", "i", PHOTO, box=box, maps=[ShownMap("A", np.ones((2, 2)))])


IN_A_PADDING = """
const board = new Layer({ name: "", averages: [] }, job.item);
const cells = new Cells([4, 4], placed(job.item.box, 80, 40), placed(board.seen, 80, 40));
const points = [0, 1, 2, 3].map((at) => centreOf(board, [at, at]));
return {
  seen: board.seen,
  points,
  tokens: points.map((point) => board.tokenAt(point)),
  x: [0, 1, 2, 3, 4].map(cells.x),
  y: [0, 1, 2, 3, 4].map(cells.y),
};
"""


def test_what_lies_in_a_padding_is_neither_framed_nor_asked(in_node: Callable[..., Any]) -> None:
    box = [-1, -0.25, 2, 1.25]  # of the 4 columns, those of the border see no photo at all
    scripts = [f"../../inspect/js/{name}.js" for name in ("attention", "stage")]
    item = {"box": box, "grid": [4, 4], "prefix": []}
    found = in_node(scripts, IN_A_PADDING, {}, item=item)
    assert found["seen"] == [0, 0, 1, 1]
    assert found["x"] == [0, 0, 40, 80, 80]
    assert found["y"] == [0, 5, 20, 35, 40]
    assert found["points"][1:3] == [[0.25, 0.3125], [0.75, 0.6875]]
    assert found["tokens"] == [None, 5, 10, None]


def windows(weights: np.ndarray | None = None, **parts: Any) -> Windows:
    """A grid of 3x3 in windows of 2x2, padded to 4x4."""
    places = np.array([[0, 1, 3, 4], [2, 9, 5, 9], [6, 7, 9, 9], [8, 9, 9, 9]])
    weights = RNG.random((2, 4, 4, 4)).astype(np.float32) if weights is None else weights
    regions = np.zeros((4, 4), int)
    given = {"grid": (3, 3), "window": (2, 2), "places": places, "regions": regions, **parts}
    return Windows("5", weights, **given)


def test_entropy_and_distance_in_windows_against_loops() -> None:
    layer = windows()
    page = Page.of([Inspection("m", "i", PHOTO, grid=(5, 6), layers=[replace(layer, merged=2)])])
    [head, _] = data_of(page)["items"][0]["layers"][0]["heads"]
    bits, reach = [], []
    for token in range(9):
        window, place = np.argwhere(layer.places == token)[0]
        row = layer.weights[0, window, place]
        bits.append(-sum(w * np.log2(w) for w in row / row.sum()))
        keys = [(w, key) for w, key in zip(row, layer.places[window], strict=True) if key < 9]
        apart = [w * np.hypot(token // 3 - k // 3, token % 3 - k % 3) for w, k in keys]
        reach.append(sum(apart) / sum(w for w, _ in keys))
    assert head["entropy"] == pytest.approx(np.mean(bits), rel=1e-5)
    assert head["distance"] == pytest.approx(np.mean(reach), rel=1e-5)
    assert head["error"] <= 0.004


def test_windows_are_few_bytes() -> None:
    """Swin-T's first layer at 224 pixels: 3136 tokens of 49 keys, not 3136 x 3136."""
    places = np.arange(56 * 56).reshape(8, 7, 8, 7).swapaxes(1, 2).reshape(64, 49)
    weights = RNG.random((3, 64, 49, 49)).astype(np.float32)
    layer = Windows("0", weights, (56, 56), (7, 7), places, np.zeros_like(places))
    page = Page.of([Inspection("m", "i", PHOTO, grid=(56, 56), layers=[layer])])
    assert len(page.html) < 3 * 3136 * (49 + 4) * 4 / 3 + 150_000


def test_windows_that_do_not_fit_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"layer 5: expected each of the 9 tokens of a grid of 3x3 .* got 8 places"
    ):
        windows(places=np.array([[0, 1, 3, 4], [2, 9, 5, 9], [6, 7, 9, 9], [9, 9, 9, 9]]))
    with pytest.raises(ValueError, match=r"expected weights \(head, 4 windows, 4 queries, 4 keys"):
        windows(np.ones((2, 3, 4, 4), np.float32))
    for grid, prefix in (((3, 4), []), ((3, 3), ["cls"])):
        with pytest.raises(ValueError, match=r"layer 5: expected windows of a grid of 3x[34] and"):
            Inspection("m", "i", PHOTO, grid=grid, prefix=prefix, layers=[windows()])


ADDED = {"inspect": ("recorded",), "live": live.PAGE_SCRIPTS + live.LAST_SCRIPTS}


@pytest.mark.parametrize("page", ADDED)
def test_no_script_of_a_page_takes_the_name_of_anothers_function(page: str) -> None:
    places = [("inspect", name) for name in (*SCRIPTS, "page")]
    places += [(page, name) for name in ADDED[page]]
    scripts = [
        (files("vision_attn.pages") / folder / "js" / f"{name}.js").read_text(encoding="utf-8")
        for folder, name in places
    ]
    found = re.findall(
        r"^(?:async )?(?:function|class|const|let) (\w+)", "\n".join(scripts), re.MULTILINE
    )
    assert len(found) > 100
    assert [name for name in set(found) if found.count(name) > 1] == []


def test_smooth_and_raw_maps_of_a_method_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = ViT((16, 24), 8, 5, 12, 2, 3).eval()
    preprocess = Preprocess((16, 24), (0.5,) * 3, (0.5,) * 3)
    classes = ["ant", "bee", "cat", "dog", "eel"]
    model = Model(network, preprocess, classes, network.layout((16, 24)))
    photo = Image.fromarray(PHOTO).resize((24, 16))
    methods = [LeGrad(smooth=1.0), LeGrad(), LeGrad(smooth=0.5), LeGrad(start_layer=1)]
    calls, legrad = [], LeGrad.explain

    def counted(self: LeGrad, *arguments: Any) -> Any:
        calls.append(self)
        return legrad(self, *arguments)

    monkeypatch.setattr(LeGrad, "explain", counted)
    maps = Look("a ViT", model, methods).at(photo).maps
    assert calls == [LeGrad(), LeGrad(start_layer=1)]
    images = preprocess(photo)[None]
    for at, shown in enumerate(maps):
        method = methods[at // 3]
        assert shown.method == str(method)
        expected = method(network, images, shown.target).values[0].numpy()
        np.testing.assert_allclose(shown.values, expected, rtol=1e-5, atol=1e-9)
    assert len(maps) == 3 * len(methods)
