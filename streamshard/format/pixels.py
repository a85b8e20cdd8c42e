"""Pixels of an image file as an array, as Pillow gives them, by the quickest way that gives the same.

A JPEG is decoded by libjpeg-turbo's own interface where ``simplejpeg`` is installed: the same library that Pillow
decodes with, with the same transform (accurate integers) and the same smoothing of colours, but into the four bytes a
pixel that Pillow holds. What it refuses or warns of, and whatever is no JPEG of colours or greys, is decoded by Pillow
alone, so that results and errors do not depend on whether it is there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamshard.format.images import import_pillow, open_image

if TYPE_CHECKING:
    from PIL import Image

_JPEG_MAGIC = b"\xff\xd8"
_COLOURS = ("YCbCr", "Gray", "RGB")
RESAMPLINGS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")


def pixels_of(
    content: bytes | bytearray | memoryview | Image.Image,
    size: tuple[int, int] | None = None,
    *,
    resample: str = "bilinear",
) -> NDArray[np.uint8]:
    """Give an image's pixels as uint8 array of shape (height, width, 3): red, green, blue.

    The same values as ``np.array(image.convert("RGB").resize((width, height), resample))`` of Pillow: transparency is
    dropped, an animation's first frame is taken, and nothing is rotated by the EXIF orientation.

    Args:
        content: an image file, as ``decode_images=False`` gives it, which is quicker; or a picture of Pillow.
        size: (height, width) in pixels to scale to; None: as it is.
        resample: how: ``"nearest"``, ``"box"``, ``"bilinear"``, ``"hamming"``, ``"bicubic"`` or ``"lanczos"``.

    Raises:
        ValueError: a size or filter that there is not.
        FormatError: not an image, truncated, or so large that Pillow refuses it.
    """
    if resample not in RESAMPLINGS:
        raise ValueError(f"resample={resample!r}: expected one of {', '.join(RESAMPLINGS)}")
    image = _decoded(content) if isinstance(content, (bytes, bytearray, memoryview)) else content
    if image.mode != "RGB":
        image = image.convert("RGB")
    if size is not None:
        height, width = size
        if height < 1 or width < 1:
            raise ValueError(f"size={size!r}: expected (height, width) of at least one pixel each")
        image = image.resize((width, height), import_pillow().Resampling[resample.upper()])
    return np.array(image)


def _decoded(content: bytes | bytearray | memoryview) -> Image.Image:
    turbo = _simplejpeg()
    found = None if turbo is None or content[:2] != _JPEG_MAGIC else _decoded_by(turbo, content)
    return open_image(content) if found is None else found


def _decoded_by(simplejpeg: Any, content: bytes | bytearray | memoryview) -> Image.Image | None:
    """Decode a JPEG; None: damaged, of other colours or of more pixels than Pillow takes, which is left to it."""
    pillow = import_pillow()
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        most = pillow.MAX_IMAGE_PIXELS
        if colours not in _COLOURS or (most is not None and width * height > most):
            return None
        pixels = simplejpeg.decode_jpeg(content, "RGBX")
    except (ValueError, KeyError):  # the latter for 4:4:1, which its library knows and it does not
        return None
    # Four bytes a pixel, as Pillow holds them: three would be spread one by one.
    image: Image.Image = pillow.frombytes("RGB", (width, height), pixels, "raw", "RGBX", 0, 1)
    return image


@functools.cache
def _simplejpeg() -> Any:
    """Give the module if it is there, and Pillow's own decoder is the same library."""
    try:
        import simplejpeg
    except ImportError:
        return None
    from PIL import features

    return simplejpeg if features.check_feature("libjpeg_turbo") else None
