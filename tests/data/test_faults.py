"""What goes wrong with one sample costs that sample, whatever its type."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from vision_attn.data import ImageError, ImageFolder, InOrder, Preprocess, read_image
from vision_attn.data.draws import Draws
from vision_attn.data.faults import apart, fault_line, sample_errors
from vision_attn.data.files import ImageFiles
from vision_attn.data.images import to_rgb

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
ERRORS = [
    SyntaxError("not a TIFF file (header b'junk' not valid)"),
    struct.error("unpack requires a buffer of 2 bytes"),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    OverflowError("Python int too large to convert to C long"),
    ZeroDivisionError("division by zero"),
    KeyError(274),
    IndexError("list index out of range"),
    TypeError("a tuple, not an int"),
    AssertionError(),
    EOFError(),
    StopIteration(),
    NotImplementedError("of this kind"),
]
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@each_error
def test_any_error_of_a_sample_becomes_one_line_that_names_it(error: Any) -> None:
    with pytest.raises(ImageError, match=r"^a\.png: \S") as caught, sample_errors("a.png"):
        raise error
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_ctrl_c_is_no_samples_fault() -> None:
    with pytest.raises(KeyboardInterrupt), sample_errors("a.png"):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        apart(lambda some: (_ for _ in ()).throw(KeyboardInterrupt), [1, 2], str)
    with pytest.raises(LookupError), sample_errors("a.png", passing=(LookupError,)):
        raise LookupError("the whole set")


def test_a_line_names_its_sample_once_and_is_short() -> None:
    assert fault_line("a.png", ImageError("a.png: damaged")) == "a.png: damaged"
    assert fault_line("a.png", KeyError("x")) == "a.png: KeyError: 'x'"
    assert len(fault_line("a.png", ValueError("x" * 5000 + "\nmore"))) < 320


@each_error
def test_a_failure_among_several_costs_one(error: Any) -> None:
    def halves(numbers: Any) -> list[Any]:
        if 5 in numbers:
            raise error
        return [number / 2 for number in numbers]

    outcomes, lines = apart(halves, [2, 5, 7], lambda number: f"number {number}")
    assert outcomes == [([2], [1.0]), ([7], [3.5])]
    assert len(lines) == 1
    assert lines[0].startswith("number 5: ")
    assert apart(halves, [2, 7], str) == ([([2, 7], [1.0, 3.5])], [])
    assert apart(halves, [], str) == ([], [])


def photo(height: int = 31, width: int = 41) -> Image.Image:
    rng = np.random.default_rng(height * width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


EXIF = {
    "no TIFF": b"Exif\0\0garbage of a camera",
    "cut": b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01",
    "far": b"Exif\0\0II*\0\xff\xff\xff\xff",
    "empty": b"Exif\0\0",
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's, without a name
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("header", EXIF)
def test_a_damaged_exif_header_costs_nothing_but_the_turning(
    tmp_path: Path, header: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"photo.{suffix}"
    options = {"quality": 95} if suffix == "jpg" else {"lossless": True} if suffix == "webp" else {}
    photo().save(path, exif=EXIF[header], **options)
    with Image.open(path) as opened:
        expected = np.asarray(opened.convert("RGB"))
        read = read_image(path)
        np.testing.assert_array_equal(np.asarray(read), expected)
        np.testing.assert_array_equal(np.asarray(to_rgb(opened)), expected)
        preprocess = Preprocess((16, 24), MEAN, STD)
        wanted = preprocess(Image.fromarray(expected))
        for image in (path, read, opened):
            assert torch.equal(preprocess(image), wanted)
    said = [r.getMessage() for r in caplog.records if str(path) in r.getMessage()]
    assert len(said) <= 1
    assert all("EXIF header is damaged" in line for line in said)
    assert said or header != "no TIFF"


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tif"])
def test_of_several_frames_the_first_is_read_and_a_line_says_so(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, alone = tmp_path / f"photo.{suffix}", tmp_path / f"alone.{suffix}"
    options: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    frames = [photo(), photo().transpose(Image.Transpose.FLIP_TOP_BOTTOM)]
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    frames[0].save(alone, **options)
    read = [read_image(each) for each in (path, path, alone)]
    expected = frames[0].quantize() if suffix == "gif" else frames[0]
    np.testing.assert_allclose(
        np.asarray(read[0], int), np.asarray(expected.convert("RGB"), int), atol=20
    )
    np.testing.assert_array_equal(np.asarray(read[0]), np.asarray(read[1]))
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{path}: it has several frames or pages: the first is read"]


def test_a_later_frame_that_is_cut_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "photo.gif"
    frames = [photo(), photo().transpose(Image.Transpose.FLIP_TOP_BOTTOM)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    expected, whole = np.asarray(read_image(path)), path.read_bytes()
    for cut in range(1, 1000, 7):
        path.write_bytes(whole[:-cut])
        np.testing.assert_array_equal(np.asarray(read_image(path)), expected)


def test_what_is_read_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo().save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0" + bytes(6))
    parsed = []
    getexif = Image.Image.getexif
    monkeypatch.setattr(Image.Image, "getexif", lambda image: parsed.append(1) or getexif(image))
    read = read_image(tmp_path / "a.jpg")
    first = len(parsed)
    Preprocess((16, 24), MEAN, STD)(read)
    assert first <= 2
    assert len(parsed) == first
    assert to_rgb(read) is read
    assert "exif" not in read.info


SPOILED = (67, 30)  # the size of the photo that goes wrong


@pytest.fixture
def spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Two classes of four photos, set/dog/2.png the only one of its size; what makes it fail."""
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            photo(30 + i, 40).save(tmp_path / "set" / name / f"{i}.png")
    photo(30, 67).save(tmp_path / "set" / "dog" / "2.png")
    load = PngImagePlugin.PngImageFile.load

    def spoil(error: BaseException) -> None:
        def loaded(image: Any) -> Any:
            if image.size == SPOILED:
                raise error
            return load(image)

        monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", loaded)

    return spoil


@each_error
@pytest.mark.parametrize("storage", ["memory", "cache", "stream"])
def test_a_training_photo_costs_itself(
    spoil: Callable[..., None], tmp_path: Path, error: Any, storage: Any
) -> None:
    spoil(error)
    source = ImageFolder("set", size=16, storage=storage, workers=0, max_corrupt=1)
    source.test_fraction = 0.0
    train = source.load(tmp_path, 0.0, 0).train
    items = np.arange(len(train))
    assert len(train.fetch(items, Draws(0, 0, items))) == (8 if storage == "stream" else 7)


@each_error
def test_a_photo_to_predict_costs_itself(
    spoil: Callable[..., None], tmp_path: Path, error: Any
) -> None:
    spoil(error)
    paths = sorted((tmp_path / "set").rglob("*.png"))
    files = ImageFiles(paths, Preprocess((16, 16), MEAN, STD), InOrder(8, batch_size=3))
    assert sum(len(names) for _, names in files) == 7
    assert len(files.failed) == 1
    assert "2.png: " in files.failed[0]


def test_what_fails_after_the_photo_is_read_costs_it_too(
    spoil: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resizing, in training and in prediction."""
    resize = Image.Image.resize

    def resized(image: Image.Image, *args: Any, **options: Any) -> Image.Image:
        if image.size == SPOILED:
            raise MemoryError
        return resize(image, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", resized)
    train = ImageFolder("set", size=16, storage="memory").load(tmp_path, 0.0, 0)
    assert len(train.train) + len(train.test) == 7
    paths = sorted((tmp_path / "set").rglob("*.png"))
    files = ImageFiles(paths, Preprocess((16, 16), MEAN, STD), InOrder(8, batch_size=3))
    assert sum(len(names) for _, names in files) == 7
    assert files.failed == [f"{tmp_path / 'set' / 'dog' / '2.png'}: MemoryError"]
