"""Pictures of what features say: components as colours, similar patches, why two photos are alike.

Axes: H, W a photo's height and width, h, w the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import PIL.Image
from jaxtyping import Float
from numpy import ndarray
from PIL.Image import Image

from vision_attn import render
from vision_attn.data.faults import fault_line
from vision_attn.files import replacing
from vision_attn.render import ColorMap, Panel, Scale, Style
from vision_attn.runs.explain import read
from vision_attn.runs.naming import file_names
from vision_attn.runs.patches import TooFewComponentsError, patch_components, patch_similarity
from vision_attn.runs.progress import Silent
from vision_attn.runs.similarity import PhotoSimilarity, nearest_photos, photo_similarity
from vision_attn.tokens.modules import LayerLike
from vision_attn.types import Model

__all__ = ["FeaturePictures"]

Picture = ndarray


@dataclass(frozen=True)
class FeaturePictures:
    """Where and how pictures of features are written; each method returns lines on what they show.

    Raw numbers lie beside the pictures, as .npy.

    Attributes:
        layer: As of `patch_features`.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> import PIL.Image
        >>> import vision_attn
        >>> from vision_attn.runs.feature_pictures import FeaturePictures
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=0)
        >>> with TemporaryDirectory() as folder:
        ...     photo = Path(folder, "cat.png")
        ...     PIL.Image.fromarray(np.zeros((60, 80, 3), np.uint8)).save(photo)
        ...     lines = FeaturePictures(model, Path(folder)).similar_to([photo], (0.5, 0.5))
        ...     Path(folder, "cat.similarity.png").is_file()
        True
    """

    model: Model
    folder: Path
    layer: LayerLike | None = None
    style: Style = field(default_factory=ColorMap)

    def readable(self, files: Sequence[Path], progress: Silent) -> list[Path]:
        """Leave out the photos that cannot be read; each is a problem of `progress`."""
        kept = []
        for file in files:
            try:
                read(file, self.model.preprocess)
                kept.append(file)
            except Exception as error:  # of this photo
                progress.problem(fault_line(file, error))
        return kept

    def components(self, files: Sequence[Path], keep_background: bool = False) -> list[str]:
        """Paint the first three principal components of all photos together: NAME.components.png.

        Raises:
            ValueError: There are fewer than three components, or as `patch_components`.
        """
        photos = [read(file, self.model.preprocess)[1] for file in files]
        try:
            found = patch_components(
                self.model, photos, 3, self.layer, split_background=not keep_background
            )
        except TooFewComponentsError:
            raise ValueError(
                "colours need three components, and the patches of these images have fewer: name "
                "a layer with more patches (--layer)"
                if keep_background
                else "colours need three components, and the foreground of these images has fewer: "
                "take the background too (--keep-background)"
            ) from None
        colors = found.colors()
        for name, photo, one, scores in zip(
            self._names(files), photos, colors, found.scores.numpy(), strict=True
        ):
            pixels = render.enlarged(np.asarray(photo))
            laid = np.stack([self._laid(channel, pixels) for channel in np.moveaxis(one, -1, 0)], 2)
            self._save(render.colored(pixels, laid), f"{name}.components", scores)
        shares = [f"{share:.0%}" for share in found.variance.tolist()]
        inside = float(found.foreground.double().mean())
        of = "the variance" if keep_background else "the foreground's variance"
        line = f"the first three components have {shares[0]}, {shares[1]} and {shares[2]} of {of}"
        return [
            line if keep_background else f"{line}; {1 - inside:.0%} of the patches are background"
        ]

    def similar_to(self, files: Sequence[Path], place: tuple[float, float]) -> list[str]:
        """Paint the cosine with one patch of the first photo on each: NAME.similarity.png.

        Args:
            place: (x, y), shares of the network's input.

        Raises:
            ValueError: As `patch_similarity`.
        """
        lines = []
        for number, (name, file) in enumerate(zip(self._names(files), files, strict=True)):
            other = None if number == 0 else file
            values = patch_similarity(self.model, files[0], place, other, self.layer).numpy()
            photo = read(file, self.model.preprocess)[1]
            scale = Scale(1.0, "cosine", signed=bool(values.min() < 0))
            painted = self._painted(photo, values, scale)
            if number == 0:
                left, top, right, bottom = self.model.preprocess.box(photo.size)
                x, y = left + place[0] * (right - left), top + place[1] * (bottom - top)
                painted = render.mark(painted, x / photo.size[0], y / photo.size[1])
            if isinstance(self.style, ColorMap):
                painted = render.with_colorbar(painted, self.style, scale)
            self._save(painted, f"{name}.similarity", values)
            lines.append(f"{file.name}: cosine {values.min():.2f} to {values.max():.2f}")
        return lines

    def compare(self, files: Sequence[Path]) -> list[str]:
        """Paint why the first photo and each other one are alike: NAME.and.OTHER.png.

        Raises:
            ValueError: There are fewer than two photos, or as `photo_similarity`.
        """
        if len(files) < 2:
            raise ValueError(f"compare expects at least two images, got {len(files)}")
        first, *names = self._names(files)
        lines = []
        for name, file in zip(names, files[1:], strict=True):
            found = photo_similarity(self.model, files[0], file, self.layer)
            panels = self._pair(files[0], file, found)
            sheet = render.heatmap_grid(panels, warning=self.model.warning)
            stem = f"{first}.and.{name}"
            render.save(sheet, self.folder / f"{stem}.png")
            for each, values in zip((first, name), found.maps, strict=True):
                self._save_numbers(f"{stem}.{each}", values.numpy())
            own = "" if found.embedding is None else f" (the embeddings: {found.embedding:.4f})"
            lines.append(f"{files[0].name}, {file.name}: cosine {found.cosine:.4f}{own}")
        return lines

    def nearest(
        self,
        file: Path,
        among: Sequence[str],
        k: int = 5,
        batch_size: int = 8,
        progress: Silent | None = None,
    ) -> list[str]:
        """Paint the most alike photos of a folder, each with its maps: NAME.nearest.png.

        Raises:
            ValueError: As `nearest_photos`.
        """
        found = nearest_photos(self.model, file, among, k, self.layer, batch_size, progress)
        pairs = [self._pair(file, Path(each.file), each.similarity) for each in found]
        panels = [panel for row in zip(*pairs, strict=True) for panel in row]
        title = f"most like {file.name}"
        sheet = render.heatmap_grid(panels, title, len(found), warning=self.model.warning)
        render.save(sheet, self.folder / f"{self._names([file])[0]}.nearest.png")
        return [
            f"{number}. {each.file}: cosine {each.similarity.cosine:.4f}"
            for number, each in enumerate(found, 1)
        ]

    def _names(self, files: Sequence[Path]) -> list[str]:
        return file_names(list(files), self.folder)

    def _pair(self, first: Path, second: Path, found: PhotoSimilarity) -> list[Panel]:
        """Paint the maps of two photos in one scale, each on a square of paper."""
        maps = [values.numpy().astype(np.float32) for values in found.maps]
        scale = render.fit(np.concatenate([values.ravel() for values in maps]))
        titles = first.name, f"{second.name}, cosine {found.cosine:.3f}"
        return [
            Panel(title, _square(self._painted(photo, values, scale)), "", scale, self.style)
            for file, title, values in zip((first, second), titles, maps, strict=True)
            for photo in [read(file, self.model.preprocess)[1]]
        ]

    def _painted(self, photo: Image, values: Float[ndarray, "h w"], scale: Scale) -> Picture:
        pixels = render.enlarged(np.asarray(photo))
        return render.overlay(pixels, self._laid(values, pixels), scale=scale, style=self.style)

    def _laid(self, values: Float[ndarray, "h w"], pixels: Picture) -> Float[ndarray, "H W"]:
        return self.model.preprocess.to_original(values, (pixels.shape[1], pixels.shape[0]))

    def _save(self, picture: Picture, stem: str, numbers: ndarray) -> None:
        captioned = render.with_caption(picture, self.model.warning)
        render.save(captioned, self.folder / f"{stem}.png")
        self._save_numbers(stem, numbers)

    def _save_numbers(self, stem: str, numbers: ndarray) -> None:
        with replacing(self.folder / f"{stem}.npy") as file:
            np.save(file, numbers)


def _square(picture: Picture) -> Picture:
    """Put a picture in the middle of a white square, so that sheets hold photos of any shape."""
    height, width = picture.shape[:2]
    side = max(height, width)
    paper = PIL.Image.new("RGB", (side, side), (255, 255, 255))
    paper.paste(PIL.Image.fromarray(picture), ((side - width) // 2, (side - height) // 2))
    return np.asarray(paper)
