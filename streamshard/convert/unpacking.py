"""Compressed inputs: told by their first bytes, unpacked block by block, and a cut one is never taken for whole."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from streamshard._sizes import format_bytes
from streamshard.errors import ConvertError, MissingDependencyError

_BLOCK = 1 << 20
# A zstandard decompressor returns all that its input unpacks to at once; small inputs bound that.
_PACKED_BLOCK = 1 << 12
_MAGICS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstandard", b"\xfd7zXZ\0": "xz"}
_PADDED = ("gzip", "xz")
PACKED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")


def packing_of(head: bytes) -> str | None:
    """Name the compression of a file by its first six bytes, or ``None``."""
    return next((name for magic, name in _MAGICS.items() if head.startswith(magic)), None)


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _unpacker(packing: str) -> Callable[[], _Unpacker]:
    if packing == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    if packing == "bzip2":
        return bz2.BZ2Decompressor
    if packing == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("unpacking .zst needs zstandard: pip install zstandard") from None
    context = zstandard.ZstdDecompressor()
    return lambda: context.decompressobj()


def unpack(path: Path, target: Path, packing: str, name: str, advance: Callable[[int], None]) -> None:
    new = _unpacker(packing)
    unpacker: _Unpacker | None = None
    with path.open("rb", buffering=_BLOCK) as packed, target.open("wb", buffering=_BLOCK) as plain:
        while block := packed.read(_PACKED_BLOCK):
            advance(len(block))
            while block:
                if unpacker is None:
                    # gzip and xz files may be padded with zeros behind their last member.
                    if not block.strip(b"\0") and packing in _PADDED:
                        break
                    unpacker = new()
                try:
                    plain.write(unpacker.decompress(block))
                except Exception as error:
                    if not isinstance(
                        error, (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError)
                    ) and (type(error).__name__ != "ZstdError"):
                        raise
                    if isinstance(error, OSError) and error.errno is not None:
                        raise  # the disk, not the data
                    raise ConvertError(
                        f"source {name!r}: broken {packing} data after {format_bytes(plain.tell())} of text: {error}"
                    ) from None
                block = unpacker.unused_data if unpacker.eof else b""
                if unpacker.eof:
                    unpacker = None
        nbytes = plain.tell()
    if unpacker is not None:
        raise ConvertError(
            f"source {name!r}: the {packing} data ends before its end mark, after {format_bytes(nbytes)} of text;"
            " the file was cut: fetch or make it again"
        )
