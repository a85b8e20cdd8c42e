"""What an image file is: recognised by its first bytes, proven by decoding it once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import NamedTuple

from streamshard.convert.problems import HUGE_IMAGE, UNREADABLE_IMAGE, RecordProblem
from streamshard.format.images import refuse_program

HEAD_NBYTES = 32
UNKNOWN = "unknown"
# Formats that Pillow opens without decoding anything.
_SIZE_IN_HEADER = frozenset(("jpeg", "png", "gif", "webp", "tiff", "bmp"))
_FTYP_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"), "heic"),
    **dict.fromkeys((b"avif", b"avis"), "avif"),
}
_WHAT_TO_INSTALL = {
    "heic": "Pillow reads no HEIC without the package pillow-heif; convert the file to JPEG or PNG",
    "avif": "this Pillow reads no AVIF; install a Pillow with AVIF (11.3 or newer) or the package pillow-avif-plugin",
}
_PAGE = "a web page: a download that failed?"
_OTHERS = {
    b"<!doctype html": _PAGE, b"<html": _PAGE,
    b"<svg": "SVG, which has no pixels", b"<?xml": "XML or SVG, which has no pixels",
    b"%pdf": "a PDF document", b"pk\3\4": "a ZIP archive", b"\x1f\x8b": "a gzip file", b"8bps": "a Photoshop file",
    b"version https://git-lfs": "a Git LFS pointer: `git lfs pull` fetches the file",
    b"\xff\x0a": "JPEG XL", b"\0\0\0\x0cjxl ": "JPEG XL",
    b"{": "JSON: the answer of a server?", b"/9j/": "base64 text of a JPEG", b"ivborw0kggo": "base64 text of a PNG",
}  # fmt: skip


class ImageFacts(NamedTuple):
    """Real format (``jpeg``, ``png``, ``webp``, …, ``unknown``) and whether the file holds more than one picture."""

    format: str
    animated: bool = False


def sniff_format(head: bytes) -> str:
    """Tell the format from the first 32 bytes of a file; ``"unknown"`` where they say nothing."""
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith((b"II*\0", b"MM\0*")):
        return "tiff"
    if head.startswith(b"BM"):
        return "bmp"
    if head[4:8] == b"ftyp":
        return _FTYP_BRANDS.get(head[8:12], UNKNOWN)
    return UNKNOWN


def check_image(content: bytes, *, max_pixels: int) -> ImageFacts:
    """Decode the first picture of an image file completely.

    Run inside :func:`own_pixel_limit` with the same limit.

    Raises:
        RecordProblem: not an image, cut, broken, more pixels than allowed, or a program (EPS).
    """
    from PIL import Image, UnidentifiedImageError

    sniffed = sniff_format(content[:HEAD_NBYTES])
    num_pixels = 0
    try:
        with Image.open(BytesIO(content)) as image:
            _check_pixels(image.size, max_pixels)
            num_pixels = image.width * image.height
            refuse_program(image)
            image.load()
            animated = bool(getattr(image, "is_animated", False))
            found = (image.format or sniffed).lower()
    except (RecordProblem, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(content, sniffed, max_pixels, str(error)) from None
    except UnidentifiedImageError:
        hint = _WHAT_TO_INSTALL.get(sniffed)
        what = f"content is {sniffed.upper()}, which cannot be decoded here: {hint}" if hint else (
            f"content is not a readable image ({_described(content)})"
        )  # fmt: skip
        raise RecordProblem(
            UNREADABLE_IMAGE, f"{what}; --no-check stores files without decoding them"
        ) from None
    # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, IndexError, … for broken
    # files: whatever it is, the file is not decodable, and the record is reported with the cause.
    except Exception as error:
        _refuse_want_of_memory(error, sniffed, num_pixels)
        raise RecordProblem(
            UNREADABLE_IMAGE, f"cannot be decoded ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    return ImageFacts(found, animated)


def _refuse_want_of_memory(error: Exception, sniffed: str, num_pixels: int) -> None:
    """Raise MemoryError where that is what a decoder in C lacked: libjpeg's says no more than that data are broken."""
    if not isinstance(error, OSError):
        return
    if "out of memory" in str(error):
        raise MemoryError(str(error)) from None
    if sniffed == "jpeg" and num_pixels:
        import mmap

        try:  # all coefficients of a progressive file, of 16 bits each; the pages are not touched
            mmap.mmap(-1, 8 * num_pixels).close()
        except OSError:
            raise MemoryError(str(error)) from None


def _described(content: bytes) -> str:
    """What bytes are that no decoder knows."""
    head = content[:HEAD_NBYTES].lstrip()
    for begins, what in _OTHERS.items():
        if head.lower().startswith(begins):
            return f"it is {what}"
    if content[4:8] == b"ftyp":
        return "it is a video"
    if not any(content):
        return f"all of its {len(content)} bytes are zero"
    return f"it starts with {content[:8].hex(' ')}"


def _check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise _huge(f"{width}x{height} pixels", width * height, max_pixels)


def _too_many_pixels(content: bytes, sniffed: str, max_pixels: int, text: str) -> RecordProblem:
    """What to say where Pillow refused an image, perhaps one inside another (an icon holds PNG files)."""
    from PIL import Image

    if sniffed in _SIZE_IN_HEADER:
        open_class, _ = Image.OPEN[sniffed.upper()]
        width, height = open_class(BytesIO(content), "").size
        return _huge(f"{width}x{height} pixels", width * height, max_pixels)
    found = re.search(r"\d+", text)
    num_pixels = int(found.group()) if found else 2 * max_pixels
    return _huge(f"{num_pixels} pixels", num_pixels, max_pixels)


def _huge(shown: str, num_pixels: int, max_pixels: int) -> RecordProblem:
    return RecordProblem(
        HUGE_IMAGE,
        f"{shown}, more than the limit of {max_pixels}; if the file is right, raise it with --max-image-pixels"
        f" {num_pixels}",
    )


@contextmanager
def own_pixel_limit(max_pixels: int | None) -> Iterator[None]:
    """Give Pillow the converter's limit, without warnings, and its own back afterwards.

    Pillow refuses from twice this number on, also where a decoder opens an image inside an image; what lies between
    is for :func:`check_image`.

    Args:
        max_pixels: the limit; ``None`` where no image will be decoded: then nothing is done, and Pillow not loaded.
    """
    if max_pixels is None:
        yield
        return
    from PIL import Image

    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with warnings.catch_warnings():
            # Pillow warns about odd metadata; the file is stored as it is, so there is nothing to do about it.
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before
