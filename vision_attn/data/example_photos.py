"""A dozen photos that come with the package, to look at before you have photos of your own."""

from pathlib import Path

__all__ = ["example_photos"]


def example_photos() -> dict[str, Path]:
    """Return the files of the package's photos, by their names.

    Photos of the ten classes of Imagenette, from its validation part (ImageNet), as illustrations
    for research. No network of this package was trained on them.

    Examples:
        >>> from vision_attn.data import example_photos
        >>> photos = example_photos()
        >>> len(photos), photos["church"].name
        (12, 'church.jpg')
    """
    folder = Path(__file__).with_name("photos")
    return {path.stem: path for path in sorted(folder.glob("*.jpg"))}
