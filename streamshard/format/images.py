"""Images. The bytes of the source file are stored wherever there is one; pixels are decoded on reading.

    jpeg, png                      the file
    pil                            u32 width, u32 height, u32 length of mode, mode, raw pixels
    jpeg_array, list[...]          several of them, see lists.py

A ``jpeg`` column may hold image files of any format, since its decoder goes by content; ``png`` holds PNG.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.errors import FormatError, MissingDependencyError, SampleError
from streamshard.format.encodings import Encoding, type_name
from streamshard.format.lists import ListEncoding

if TYPE_CHECKING:
    from PIL import Image, ImageFile

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# (offset, magic, format): enough to know a file without decoding it; Pillow is asked about the rest.
_MAGIC = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, _PNG_MAGIC, "PNG"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (8, b"WEBP", "WEBP"),
)
# Pillow hands EPS, a program in PostScript, to Ghostscript; IPTC holds a file of any format, EPS too.
_PROGRAMS = frozenset(("EPS", "IPTC"))
_PIL_HEAD = struct.Struct("<III")
_PIL_BITS = {
    "1": 1,
    "L": 8,
    "P": 8,
    "LA": 16,
    "La": 16,
    "PA": 16,
    "I;16": 16,
    "I;16L": 16,
    "I;16B": 16,
    "I;16N": 16,
}
_PIL_BITS |= dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24)
_PIL_BITS |= dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 32)


def sniff_format(content: bytes) -> str | None:
    """Name an image file's format (``"JPEG"``, ``"PNG"``, ...) by its first bytes, or None for no image."""
    for begin, magic, name in _MAGIC:
        if content[begin : begin + len(magic)] == magic:
            return name
    image_module = import_pillow()
    try:
        with image_module.open(io.BytesIO(content)) as image:
            found: str | None = image.format
    except Exception:  # noqa: BLE001 Pillow's plugins raise anything on bytes that are not theirs: no image
        return None
    return None if found in _PROGRAMS else found


def refuse_program(image: Image.Image) -> None:
    """Refuse an opened image whose decoding would run another program on its content.

    Raises:
        FormatError: EPS, or what may hold EPS.
    """
    if image.format in _PROGRAMS:
        raise FormatError(f"{image.format} is not decoded, since that would run Ghostscript")


def open_image(content: bytes | bytearray | memoryview) -> Image.Image:
    """Decode a whole image file.

    Raises:
        FormatError: not an image, truncated, so large that Pillow refuses it, or of a format whose decoding runs
            other programs (EPS).
    """
    image_module = import_pillow()
    try:
        image: Image.Image = image_module.open(io.BytesIO(content))
        refuse_program(image)
        image.load()
    except MemoryError:
        raise  # says something of this machine, not of the file
    except Exception as error:  # Pillow's decoders raise many classes on broken files
        raise FormatError(
            f"an image of {len(content)} bytes that cannot be decoded ({type(error).__name__}: {error})"
        ) from error
    return image


def import_pillow() -> Any:
    """Give ``PIL.Image``, or say what to install."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("images need Pillow; install it with: pip install pillow") from error
    return Image


def _source_bytes(image: ImageFile.ImageFile, formats: tuple[str, ...]) -> bytes | None:
    """Give the file an image was opened from if it still says what the image shows, else None."""
    if image.format not in formats:
        return None
    content = _reread(image)
    if not content:
        return None
    try:
        with import_pillow().open(io.BytesIO(content)) as source:
            if (source.format, source.mode, source.size) != (image.format, image.mode, image.size):
                return None
            if image.tile:  # not decoded yet: the pixels are the file's unless draft() or seek() chose others
                return content if source.tile == image.tile else None
            source.load()
            # Changed in place since it was opened, or the file was replaced: the pixels are what counts.
            same = (
                source.getpalette() == image.getpalette()
                and source.info.get("transparency") == image.info.get("transparency")
                and source.tobytes() == image.tobytes()
            )
    except MemoryError:
        raise  # else the picture would be encoded anew without need, and a JPEG lose quality
    except Exception:  # noqa: BLE001 a file that no longer opens is not the source; the pixels get saved
        return None
    return content if same else None


def _reread(image: ImageFile.ImageFile) -> bytes:
    file = getattr(image, "fp", None)
    try:
        if file is not None and not file.closed and file.seekable():
            place = file.tell()
            file.seek(0)
            content: bytes = file.read()
            file.seek(place)
            return content
        filename = getattr(image, "filename", "")
        if filename:
            return Path(filename if isinstance(filename, str) else filename.decode()).read_bytes()
    except (OSError, ValueError, AttributeError, UnicodeDecodeError):
        return b""
    return b""


class FileImageEncoding(Encoding):
    """``jpeg`` and ``png``: an image file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._save_as = name.upper()
        # An MPO is a JPEG with further pictures behind the first.
        self._verbatim = ("JPEG", "MPO") if name == "jpeg" else ("PNG",)

    def encode(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._check_file(bytes(value))
        image_module = import_pillow()
        if not isinstance(value, image_module.Image):
            raise SampleError(f"expected the bytes of an image file or a PIL image, found {type_name(value)}")
        content = _source_bytes(value, self._verbatim) if hasattr(value, "tile") else None
        if content is not None:
            return content
        out = io.BytesIO()
        try:
            value.save(out, format=self._save_as)
        except (OSError, ValueError, KeyError) as error:
            raise SampleError(
                f"a PIL image of mode {value.mode} cannot be saved as {self._save_as} ({error}); "
                "pass the bytes of the image file, or convert the image"
            ) from error
        return out.getvalue()

    def _check_file(self, content: bytes) -> bytes:
        if not content:
            raise SampleError("0 bytes given as an image: an empty file")
        found = sniff_format(content)
        if found is None:
            raise SampleError(f"bytes that are not a readable image (they begin with {content[:12]!r})")
        if self.name == "png" and found != "PNG":
            raise SampleError(
                f"expected a PNG file, found {found}; a jpeg column takes image files of any format"
            )
        return content

    def decode(self, payload: bytes | memoryview) -> Image.Image:
        return open_image(payload)

    def stored(self, payload: bytes | memoryview) -> bytes:
        return bytes(payload)


class RawImageEncoding(Encoding):
    """``pil``: size, mode and uncompressed pixels."""

    name = "pil"

    def encode(self, value: Any) -> bytes:
        image_module = import_pillow()
        if not isinstance(value, image_module.Image):
            raise SampleError(f"expected a PIL image, found {type_name(value)}")
        if value.mode in ("P", "PA"):
            raise SampleError(
                f"a PIL image of mode {value.mode} would lose its palette in a pil column; "
                "use a png column, or image.convert('RGB') or 'RGBA'"
            )
        mode: bytes = value.mode.encode()
        pixels: bytes = value.tobytes()
        return _PIL_HEAD.pack(*value.size, len(mode)) + mode + pixels

    def decode(self, payload: bytes | memoryview) -> Image.Image:
        if len(payload) < _PIL_HEAD.size:
            raise FormatError(f"a raw image of {len(payload)} bytes: its header takes {_PIL_HEAD.size}")
        width, height, mode_nbytes = _PIL_HEAD.unpack_from(payload)
        begin = _PIL_HEAD.size + mode_nbytes
        mode = bytes(payload[_PIL_HEAD.size : begin][:16]).decode("ascii", "replace")
        bits = _PIL_BITS.get(mode)
        if bits is None or mode_nbytes != len(mode):
            raise FormatError(f"a raw image of unknown mode {mode!r}")
        wanted = (width * bits + 7) // 8 * height
        # Size against bytes before Pillow allocates width x height.
        if len(payload) - begin != wanted:
            raise FormatError(
                f"a raw image of {width} x {height} in mode {mode} takes {wanted} bytes, found "
                f"{len(payload) - begin}"
            )
        try:
            image: Image.Image = import_pillow().frombytes(mode, (width, height), bytes(payload[begin:]))
        except (ValueError, OSError, MemoryError, OverflowError) as error:
            raise FormatError(f"a raw image of {width} x {height} in mode {mode}: {error}") from error
        return image

    def stored(self, payload: bytes | memoryview) -> bytes:
        return bytes(payload)


def build_image_encoding(name: str) -> Encoding:
    """Make one of the image encodings by name."""
    if name in ("jpeg", "png"):
        return FileImageEncoding(name)
    if name == "pil":
        return RawImageEncoding()
    if name.startswith("list["):
        return ListEncoding(name, build_image_encoding(name[5:-1]), "image")
    return ListEncoding(name, FileImageEncoding("jpeg"), "image", reserved=False)
