"""Encodings: a value of one column to its bytes in a sample, and back.

    scalars, str, bytes, json, text numbers    here
    ndarray[:dtype[:shape]]                    ndarray.py
    jpeg, png, pil                             images.py
    list[...]                                  lists.py
    pkl                                        unsafe.py

All numbers are little-endian, whatever the machine. Names and bytes are those of MDS version 2.
"""

from __future__ import annotations

import abc
import json
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np

from streamshard.errors import FormatError, SampleError
from streamshard.format.json_text import json_text


class Encoding(abc.ABC):
    """How one column is stored. Immutable; one object per name and process.

    Attributes:
        name: as written in the index, e.g. ``"ndarray:uint16:2,3"``.
        size: bytes of every encoded value, or None where they differ (a u32 length is stored then).
        unsafe: decoding can run code that the data chooses.
    """

    name: str
    size: int | None = None
    unsafe: bool = False

    @abc.abstractmethod
    def encode(self, value: Any) -> bytes:
        """Turn a value into bytes.

        Raises:
            SampleError: a value that this encoding cannot hold (the column is added by the schema).
        """

    @abc.abstractmethod
    def decode(self, payload: bytes | memoryview) -> Any:
        """Turn the bytes of one value back. The result never refers to a memoryview that was passed.

        Raises:
            FormatError: bytes that are not what the encoding writes.
        """

    def stored(self, payload: bytes | memoryview) -> Any:
        """Give what ``decode_images=False`` reads: the stored bytes for images, else the value."""
        return self.decode(payload)

    def __repr__(self) -> str:
        return f"<encoding {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], Encoding], tuple[str]]:
        return parse_encoding, (self.name,)


def type_name(value: object) -> str:
    """Name a value's type for a message: ``int``, ``numpy.float32``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class BytesEncoding(Encoding):
    """Bytes as they are."""

    name = "bytes"

    def encode(self, value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise SampleError(f"expected bytes, found {type_name(value)}")

    def decode(self, payload: bytes | memoryview) -> bytes:
        return bytes(payload)


class StrEncoding(Encoding):
    """Text as UTF-8."""

    name = "str"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise SampleError(f"expected str, found {type_name(value)}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SampleError(f"text that UTF-8 cannot hold: {error}") from error

    def decode(self, payload: bytes | memoryview) -> str:
        try:
            return str(payload, "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"not UTF-8: {error.reason} at byte {error.start}") from error


class ScalarEncoding(Encoding):
    """One number of fixed size. ``int`` reads back as a Python int, the others as NumPy scalars."""

    def __init__(self, name: str, letter: str, dtype: str) -> None:
        self.name = name
        self.dtype = np.dtype(dtype)
        self.size = self.dtype.itemsize
        self.pack = struct.Struct("<" + letter).pack

    def encode(self, value: Any) -> bytes:
        try:
            return self.pack(value)
        except (struct.error, OverflowError, TypeError, DeprecationWarning) as error:
            if isinstance(value, np.bool_):  # has no __index__; NumPy 1 only warns of it
                return self.pack(bool(value))
            raise SampleError(self._refusal(value)) from error

    def _refusal(self, value: Any) -> str:
        if self.dtype.kind == "f":
            if hasattr(value, "__float__") and not isinstance(value, str):
                return f"{value!r:.40} is out of range for {self.name}"
            return f"expected a number, found {type_name(value)}"
        bits = 8 * self.dtype.itemsize
        low, high = (0, 2**bits - 1) if self.dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if hasattr(value, "__index__") and not isinstance(value, np.ndarray):
            shown = f"{value!r:.40}" if abs(int(value)) < 10**40 else "an integer of more than 40 digits"
            return f"{shown} is out of range: {self.name} holds {low} to {high}"
        return f"expected an integer, found {type_name(value)}"

    def decode(self, payload: bytes | memoryview) -> Any:
        if len(payload) != self.size:
            raise FormatError(f"{self.name} takes {self.size} bytes, found {len(payload)}")
        value = np.frombuffer(payload, self.dtype)[0]
        return int(value) if self.name == "int" else value


class TextNumberEncoding(Encoding):
    """A number as decimal text, of any size or precision."""

    def __init__(
        self, name: str, wanted: type, write: Callable[[Any], str], read: Callable[[str], Any]
    ) -> None:
        self.name = name
        self._wanted = wanted
        self._write = write
        self._read = read

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, self._wanted):
            raise SampleError(f"expected {self._wanted.__name__}, found {type_name(value)}")
        try:
            return self._write(value).encode()
        except ValueError as error:  # CPython limits int to str conversion to 4300 digits
            raise SampleError(f"a number too long to be written as text: {error}") from error

    def decode(self, payload: bytes | memoryview) -> Any:
        try:
            return self._read(str(payload, "utf-8"))
        except (ValueError, InvalidOperation) as error:
            raise FormatError(f"{bytes(payload[:40])!r} is not a number for {self.name}") from error


class JsonEncoding(Encoding):
    """Whatever ``json.dumps`` takes; an ndarray as nested lists. NaN passes, as in Python's own parser."""

    name = "json"

    def __init__(self) -> None:
        self._loads = json.JSONDecoder().decode

    def encode(self, value: Any) -> bytes:
        try:
            return json_text(value.tolist() if isinstance(value, np.ndarray) else value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleError(f"a value that JSON cannot hold: {error}") from error

    def decode(self, payload: bytes | memoryview) -> Any:
        try:
            return self._loads(str(payload, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not JSON: {error}") from error


# name -> (struct letter, dtype)
SCALARS: dict[str, tuple[str, str]] = {
    "int": ("q", "<i8"),
    "uint8": ("B", "<u1"),
    "uint16": ("H", "<u2"),
    "uint32": ("I", "<u4"),
    "uint64": ("Q", "<u8"),
    "int8": ("b", "<i1"),
    "int16": ("h", "<i2"),
    "int32": ("i", "<i4"),
    "int64": ("q", "<i8"),
    "float16": ("e", "<f2"),
    "float32": ("f", "<f4"),
    "float64": ("d", "<f8"),
}

_Factory = Callable[[str], Encoding]


def _scalar(name: str) -> _Factory:
    letter, dtype = SCALARS[name]
    return lambda _: ScalarEncoding(name, letter, dtype)


def _ndarray(parameters: str) -> Encoding:
    from streamshard.format.ndarray import NdarrayEncoding

    return NdarrayEncoding.from_parameters(parameters)


def _image(name: str) -> _Factory:
    def build(_: str) -> Encoding:
        from streamshard.format.images import build_image_encoding

        return build_image_encoding(name)

    return build


def _bytes_list(_: str) -> Encoding:
    from streamshard.format.lists import ListEncoding

    return ListEncoding("list[bytes]", BytesEncoding(), "value")


def _pickle(_: str) -> Encoding:
    from streamshard.format.unsafe import PickleEncoding

    return PickleEncoding()


_IMAGES = ("jpeg", "png", "pil", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]")
_WITH_PARAMETERS = {"ndarray"}
_BUILTIN: dict[str, _Factory] = {
    "bytes": lambda _: BytesEncoding(),
    "str": lambda _: StrEncoding(),
    **{name: _scalar(name) for name in SCALARS},
    # bool is an int in Python; it is written as 0 or 1, since "True" could not be read back.
    "str_int": lambda _: TextNumberEncoding("str_int", int, int.__repr__, int),
    "str_float": lambda _: TextNumberEncoding("str_float", float, float.__repr__, float),
    "str_decimal": lambda _: TextNumberEncoding("str_decimal", Decimal, str, Decimal),
    "ndarray": _ndarray,
    **{name: _image(name) for name in _IMAGES},
    "list[bytes]": _bytes_list,
    "json": lambda _: JsonEncoding(),
    "pkl": _pickle,
}
_registered: dict[str, _Factory] = {}


def known_encodings() -> tuple[str, ...]:
    """List the names, built in and registered, without parameters."""
    return (*_BUILTIN, *_registered)


def register_encoding(prefix: str, factory: Callable[[str], Encoding]) -> None:
    """Add an encoding of your own under ``prefix`` or ``prefix:parameters``.

    Call it where your module is imported, so that worker processes know it too. mosaicml-streaming
    can read such a column only if the same name is added there.

    Args:
        prefix: not the name of a built-in encoding, without a colon.
        factory: from the text after the first colon ("" where there is none) to an :class:`Encoding`
            whose ``name`` is the whole name.

    Raises:
        ValueError: a prefix that is empty, has a colon, or is built in.
    """
    if not prefix or ":" in prefix or prefix in _BUILTIN:
        raise ValueError(
            f"prefix={prefix!r}: expected a new name without a colon; built in: {', '.join(_BUILTIN)}"
        )
    _registered[prefix] = factory
    parse_encoding.cache_clear()


@lru_cache(maxsize=4096)
def parse_encoding(name: str) -> Encoding:
    """Give the encoding of a name such as ``"int"`` or ``"ndarray:uint16:2,3"``.

    Raises:
        FormatError: an unknown name (the known ones are listed) or parameters that make no sense.
    """
    prefix, colon, parameters = name.partition(":")
    factory = _registered.get(prefix) or _BUILTIN.get(prefix)
    if factory is None or (colon and prefix in _BUILTIN and prefix not in _WITH_PARAMETERS):
        raise FormatError(f"unknown encoding {name!r:.80}; known: {', '.join(known_encodings())}")
    return factory(parameters)
