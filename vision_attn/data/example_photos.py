"""A dozen photos that come with the package, to look at before you have photos of your own."""

from pathlib import Path

from PIL.Image import Image

from vision_attn.data.images import read_image
from vision_attn.errors import quoted

__all__ = ["example_photos", "sample"]


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


def sample(name: str) -> Image:
    """Open one of the package's photos.

    Args:
        name: As in `example_photos()`, such as "church".

    Returns:
        The photo, RGB.

    Raises:
        ValueError: There is no such photo.

    Examples:
        >>> import vision_attn
        >>> vision_attn.sample("church").size
        (160, 160)
    """
    photos = example_photos()
    if name not in photos:
        raise ValueError(f"expected one of {', '.join(photos)} as the sample, got {quoted(name)}")
    return read_image(photos[name])
