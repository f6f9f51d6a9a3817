"""Names of output files: no two alike on any file system, none that of a photo."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vision_attn.methods import GradCAM, LayerCAM, QueryKey, RawAttention, Rollout
from vision_attn.runs.naming import file_names, folded, label


def names_of(*paths: str, folder: str | None = None) -> list[str]:
    return file_names([Path(path) for path in paths], None if folder is None else Path(folder))


def test_a_stem_is_enough_where_it_is_the_only_one() -> None:
    assert names_of("/x/a.png", "/y/b.c.jpg") == ["a", "b.c"]
    assert names_of("/x/a.png", "/x/a.jpg") == ["a.png", "a.jpg"]


def test_paths_that_hyphens_make_alike_are_told_apart() -> None:
    """As many files as it takes for both to be written with all of their folders."""
    paths = ["/r/a-b/c/x.png", "/r/a/b-c/x.png", "/r/q/c/x.png", "/r/q/b-c/x.png", "/r/s/b-c/x.png"]
    names = names_of(*paths)
    assert len({folded(name) for name in names}) == len(paths)
    assert names == names_of(*paths)
    assert dict(zip(paths, names, strict=True)) == dict(
        zip(paths[::-1], names_of(*paths[::-1]), strict=True)
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/x/A.png", "/x/a.PNG"),
        (
            f"/x/{unicodedata.normalize('NFC', 'é')}.png",
            f"/x/{unicodedata.normalize('NFD', 'é')}.png",
        ),
        ("/x/STRASSE.png", "/x/straße.png"),
        ("/a-b/c.png", "/a/b-c.png"),
        ("/x/a.png", "/x/a.png"),  # the same photo twice, or two that have no file
        ("image", "image"),
    ],
)
def test_names_that_are_alike_but_for_how_they_are_written(one: str, other: str) -> None:
    names = names_of(one, other)
    assert folded(names[0]) != folded(names[1])
    assert [name.count("/") for name in names] == [0, 0]


part = st.text(st.sampled_from("aAbé-.é"), min_size=1, max_size=3).filter(lambda p: p.strip("."))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(part, min_size=1, max_size=4), min_size=2, max_size=9))
def test_no_two_names_are_ever_alike(paths: list[list[str]]) -> None:
    files = [Path("/", *parts) for parts in paths]
    for folder in (None, Path("/"), Path("/a")):
        names = file_names(files, folder)
        assert len({folded(name) for name in names}) == len(files)
        inside = [folded(file.stem) for file in files if file.parent == folder]
        for name in names:
            assert not any(stem.startswith(f"{folded(name)}.") for stem in inside)


def test_no_picture_has_the_name_of_a_photo_beside_it() -> None:
    photos = ["/x/a.png", "/x/a.Rollout.png", "/x/b.png", "/y/b.Rollout.png", "/x/A.png.grid.jpg"]
    names = names_of(*photos, folder="/x")
    written = {
        folded(f"{name}.{end}.png") for name in names for end in ("Rollout", "grid", "EdgeMap")
    }
    assert not written & {folded(Path(photo).name) for photo in photos if photo.startswith("/x/")}
    assert names[1:4] == ["a.Rollout", "b", "b.Rollout"]
    assert names_of(*photos, folder="/elsewhere")[0] == "a"


def test_names_that_are_too_long_are_cut_and_still_differ() -> None:
    long = "é" * 120
    names = names_of(f"/x/{long}1.png", f"/x/{long}2.png", f"/{long}/{long}1.png")
    assert len(set(names)) == 3
    assert all(len(name.encode()) <= 150 for name in names)


METHODS = [
    Rollout(), Rollout(fusion="max"), Rollout(fusion="min"), Rollout(residual=0.25), RawAttention(layer=1),
    RawAttention(layer=-1, head=1), QueryKey(query=(0.5, 0.25)), QueryKey(query=(1, 2)),
    GradCAM(layer="a.b"), GradCAM(layer="a/b"), GradCAM(layer="a-b"), GradCAM(layer="ab"),
    GradCAM(layer="a b"), GradCAM(layer="a:b"), GradCAM(layer="3"), GradCAM(layer="None"),
    GradCAM(layer="a'b"), GradCAM(layer='a"b'), LayerCAM(layer="é" * 90 + "1"), LayerCAM(layer="é" * 90 + "2"),
]  # fmt: skip


def test_two_methods_have_two_labels() -> None:
    labels = [label(str(method)) for method in METHODS]
    assert len({folded(one) for one in labels}) == len(METHODS)
    for text in labels:
        assert not set(text) & set("<>:/\\|?*'\" \t\n")
        assert len(text.encode()) <= 120
    assert labels[0] == "Rollout"
    assert labels[1] == "Rollout(fusion=max)"
    assert labels[6] == "QueryKey(query=(0.5,0.25))"
    assert label("Rollout (baseline)") == "Rollout(baseline)"
    assert label("golf ball") == "golfball"
