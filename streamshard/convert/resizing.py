"""Images made smaller on request: scaled down to a longest side, or encoded anew at a lower quality.

An image that needs no change keeps its bytes. One that does keeps its kind of file (JPEG stays JPEG, PNG stays PNG,
WebP stays WebP; others become JPEG, or PNG where they have transparency), its EXIF data with the orientation, whose
rotation is not applied, and its colour profile. Files of several pictures are never changed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamshard.convert.images import ImageFacts, check_image
from streamshard.convert.problems import UNREADABLE_IMAGE, RecordProblem

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY = 90
_LOSSY = ("jpeg", "webp")
# Pillow's modes that JPEG can hold as they are.
_JPEG_MODES = ("RGB", "L", "CMYK")


@dataclass(frozen=True, slots=True)
class Resizing:
    """What is asked for.

    Args:
        max_side: most pixels of the longer side; ``None``: any.
        quality: of JPEG and lossy WebP, 1 to 100. Given, such files are encoded anew even if they are small enough,
            unless that makes them no smaller; ``None``: 90 for those that are scaled, all others stay as they are.

    Raises:
        ValueError: out of range.
    """

    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.max_side is not None and not 1 <= self.max_side <= 65_500:
            raise ValueError(f"max_side={self.max_side}: expected 1 to 65500 pixels")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"quality={self.quality}: expected 1 to 100")

    def make(self, content: bytes, max_pixels: int) -> tuple[bytes, ImageFacts]:
        """The image as it is to be stored, decoded once completely, and what it is then.

        Run inside :func:`~streamshard.convert.images.own_pixel_limit`.

        Raises:
            RecordProblem: as :func:`~streamshard.convert.images.check_image`, or an image that cannot be encoded.
        """
        facts = check_image(content, max_pixels=max_pixels)
        if facts.animated and facts.format != "mpo":
            return content, facts
        from PIL import Image

        with Image.open(io.BytesIO(content)) as image:
            scaled = self.max_side is not None and max(image.size) > self.max_side
            lossy = (image.format == "WEBP" and b"VP8 " in content[:64]) or facts.format in ("jpeg", "mpo")
            if not scaled and not (self.quality is not None and lossy):
                return content, facts
            try:
                made, kind = self._encoded(image, facts.format, scaled=scaled, lossy=lossy)
            except MemoryError:
                raise  # says something of this machine, not of the file
            # Pillow's encoders raise ValueError, OSError, KeyError, struct.error, …: whatever it is, no file came out.
            except Exception as error:
                raise RecordProblem(
                    UNREADABLE_IMAGE,
                    f"cannot be encoded anew ({type(error).__name__}: {str(error)[:200]}); leave out --max-side and"
                    " --quality, or the record",
                ) from error
        if not scaled and len(made) >= len(content):
            return content, facts
        return made, ImageFacts(kind)

    def _encoded(self, image: Image.Image, found: str, *, scaled: bool, lossy: bool) -> tuple[bytes, str]:
        exif, profile = image.info.get("exif"), image.info.get("icc_profile")
        picture = _plain(image)
        kind = _kind(found, picture)
        if scaled and self.max_side is not None:
            picture = _scaled_down(picture, self.max_side)
        if kind == "jpeg" and picture.mode not in _JPEG_MODES:
            picture = picture.convert("RGB")
        settings: dict[str, Any] = {}
        if kind == "webp" and not lossy:
            settings["lossless"] = True
        elif kind in _LOSSY:
            settings["quality"] = self.quality or DEFAULT_QUALITY
        if exif:
            settings["exif"] = exif
        if profile:
            settings["icc_profile"] = profile
        out = io.BytesIO()
        picture.save(out, kind.upper(), **settings)
        return out.getvalue(), kind


def _plain(image: Image.Image) -> Image.Image:
    """The picture in a mode that can be scaled: no palette, no single transparent colour."""
    if image.mode == "P" or "transparency" in image.info:
        if image.mode in ("I;16", "I"):
            return image
        return image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode == "PA":
        return image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    return image


def _kind(found: str, picture: Image.Image) -> str:
    if found in ("jpeg", "png", "webp"):
        return found
    if found == "mpo":
        return "jpeg"
    return "png" if picture.mode in ("RGBA", "LA", "La", "RGBa") or picture.mode.startswith("I") else "jpeg"


def _scaled_down(picture: Image.Image, max_side: int) -> Image.Image:
    from PIL import Image

    width, height = picture.size
    longer = max(width, height)
    size = (max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer)))
    return picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
