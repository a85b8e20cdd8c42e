"""What a batch holds, in a few bytes a value: taken at once, compared later, even if the batch is overwritten."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

_DEEPEST = 100
_SHOWN = 60


class Leaf(NamedTuple):
    """One value inside a batch.

    Attributes:
        path: where it is, such as ``['image'][2]``; empty for the batch itself.
        digest: of its type and content; of a container, of its type, length and keys.
        shown: a short text for people.
    """

    path: str
    digest: bytes
    shown: str


Portrait = tuple[Leaf, ...]


def portrait_of(value: Any) -> Portrait:
    """Describe any value: containers first, then what is in them, in one fixed order.

    Tensors, arrays and pictures count by type, shape and bits, so a NaN equals itself; mappings count in any
    order of their keys; other objects by their attributes, else by their pickle.

    Raises:
        TypeError: a value that cannot be described, or is nested more than 100 deep (or in itself).
    """
    leaves: list[Leaf] = []
    _describe(value, "", leaves, 0)
    return tuple(leaves)


def digest_of(portrait: Portrait) -> bytes:
    """One digest for everything in a portrait."""
    return hashlib.blake2b(b"".join(leaf.digest for leaf in portrait), digest_size=16).digest()


def show(portrait: Portrait) -> str:
    """A short text for people that tells the values of a portrait."""
    inner = [f"{leaf.path} = {leaf.shown}" for leaf in portrait if leaf.path]
    text = ", ".join(inner[:4]) or portrait[0].shown
    return f"{text}, …" if len(inner) > 4 else text


def first_difference(expected: Portrait, found: Portrait) -> tuple[Leaf, Leaf] | None:
    """Return the first pair of values that differ, or None. Both are at the same path."""
    for one, other in zip(expected, found, strict=False):
        if (one.path, one.digest) != (other.path, other.digest):
            return one, other
    return None


def _describe(value: Any, path: str, leaves: list[Leaf], depth: int) -> None:
    if depth > _DEEPEST:
        raise TypeError(f"a batch is nested more than {_DEEPEST} deep at {path[:_SHOWN]}…, or holds itself")

    def leaf(shown: str, *content: bytes | memoryview) -> None:
        digest = hashlib.blake2b(
            f"{type(value).__module__}.{type(value).__qualname__}".encode(), digest_size=16
        )
        for part in content:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        leaves.append(Leaf(path, digest.digest(), shown))

    bits = _bits_of(value)
    if bits is not None:
        form, content, shown = bits
        leaf(shown, form.encode(), content)
    elif isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: (type(key).__name__, repr(key)))
        leaf(_short(f"{type(value).__name__} with keys {', '.join(map(repr, keys))}"), repr(keys).encode())
        for key in keys:
            _describe(value[key], f"{path}[{key!r}]", leaves, depth + 1)
    elif isinstance(value, Set):
        members = sorted((portrait_of(member) for member in value), key=digest_of)
        leaf(_short(repr(value)), *(digest_of(member) for member in members))
    elif isinstance(value, Sequence):
        leaf(f"{type(value).__name__} of {len(value)}", len(value).to_bytes(8, "little"))
        for number, member in enumerate(value):
            _describe(member, f"{path}[{number}]", leaves, depth + 1)
    else:
        attributes = _attributes_of(value)
        if attributes is None:
            leaf(_short(repr(value)), _pickled(value, path))
        else:
            leaf(f"{type(value).__name__} object", repr(sorted(attributes)).encode())
            for name in sorted(attributes):
                _describe(attributes[name], f"{path}.{name}", leaves, depth + 1)


def _bits_of(value: Any) -> tuple[str, bytes | memoryview, str] | None:
    """Form, content and short text of a value that has bits of its own; None for others."""
    if value is None or isinstance(value, (bool, int, complex, str)):
        return "", repr(value).encode(), _short(repr(value))
    if isinstance(value, float):
        return "", np.float64(value).tobytes(), repr(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        content = bytes(value)
        return "", content, _short(repr(content))
    # Whoever holds a tensor or a picture has loaded its package; whoever does not need not.
    torch, pillow = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        flat = value.detach().cpu().contiguous().reshape(-1)
        form = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        return form, flat.view(torch.uint8).numpy().tobytes(), f"tensor {form} {_few(flat[:9].tolist())}"
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        form = f"{array.dtype.str} {np.shape(value)}"
        return (
            form,
            array.tobytes(),
            f"array {array.dtype} {np.shape(value)} {_few(array.ravel()[:9].tolist())}",
        )
    if isinstance(value, np.ndarray):
        return None
    if pillow is not None and isinstance(value, pillow.Image):
        form = f"{value.mode} {value.size[0]}x{value.size[1]}"
        content = value.tobytes()
        palette = value.getpalette() if value.mode == "P" else None
        digest = hashlib.blake2b(content, digest_size=4).hexdigest()
        return f"{form} {palette}", content, f"picture {form}, digest {digest}"
    return None


def _attributes_of(value: Any) -> dict[str, Any] | None:
    if isinstance(value, np.ndarray):
        return {"shape": value.shape, "items": value.ravel().tolist()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, type) or callable(value):
        return None
    return vars(value) if getattr(value, "__dict__", None) else None


def _pickled(value: Any, path: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=4)
    except Exception as error:
        raise TypeError(
            f"{path or 'the batch'} is a {type(value).__name__}, which can be neither described nor pickled "
            f"({error}); hand over plain values"
        ) from error


def _few(values: list[Any]) -> str:
    return _short(f"{values[:8]}"[:-1] + (", …]" if len(values) > 8 else "]"))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
