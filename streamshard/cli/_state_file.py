"""A file that holds a training state, read with suspicion: size, nesting and every value are somebody else's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from streamshard.errors import StateError

if TYPE_CHECKING:
    from streamshard.order.position import State

MAX_NBYTES = 16 << 20
"""Far more than any state; a checkpoint that is JSON holds other things, too."""

# What loaders and worker processes add to a state; the order does not depend on it.
BESIDE = ("progress", "left_out")

_STATE_LIKE = frozenset({"epoch", "position", "streams"})
_MOSAIC_LIKE = frozenset({"epoch", "sample_in_epoch"})
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A state in a file.

    Attributes:
        source: name of the file, for messages.
        key: where in it the state was, as ``loader`` or ``states[0].train``; "" for the file's own object.
        document: the state as it was saved.
        state: what the order makes of it.
        beside: what was saved beside it, see ``BESIDE``.
    """

    source: str
    key: str
    document: dict[str, Any]
    state: State
    beside: dict[str, Any]

    @property
    def label(self) -> str:
        """The file, and the key where there is one."""
        return f"{self.source} (key {self.key!r:.300})" if self.key else self.source


def read_state(path: str, key: str | None = None) -> Found:
    """Read the one state in a JSON file.

    Args:
        path: the file; ``-`` for the standard input.
        key: which state to take where there are several, as ``Found.key``.

    Raises:
        StateError: it is too large, no JSON, holds no state or several, or a malformed one; names the file.
        OSError: it cannot be read.
    """
    from streamshard.order.position import State

    source = "standard input" if path == "-" else path
    document = _parsed(_bytes_of(path, source), source)
    where, found = _chosen(list(_states_in(document)), source, document, key)
    beside = {name: found[name] for name in BESIDE if name in found}
    bare = {name: value for name, value in found.items() if name not in BESIDE}
    at = f"{source}, key {where!r:.300}" if where else source
    try:
        return Found(source, where, bare, State.from_dict(bare), beside)
    except StateError as error:
        raise StateError(f"{at}: {error}") from error


def _bytes_of(path: str, source: str) -> bytes:
    if path == "-":
        content = sys.stdin.buffer.read(MAX_NBYTES + 1)
    else:
        with Path(path).open("rb") as file:
            content = file.read(MAX_NBYTES + 1)
    if len(content) > MAX_NBYTES:
        raise StateError(
            f"{source}: has more than {MAX_NBYTES >> 20} MiB; expected a state of some KiB, or a checkpoint in JSON; "
            "save json.dumps(loader.state_dict()) to a file of its own"
        )
    return content


def _parsed(content: bytes, source: str) -> Any:
    if content.startswith(_PICKLES):
        raise StateError(
            f"{source}: is no JSON but looks like a file of torch.save or pickle, which can run code when it is read: "
            "load it where you trust it, and save json.dumps(checkpoint[...]) of the loader's state"
        )
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise StateError(f"{source}: is nested too deep for a state or a checkpoint in JSON") from None
    except ValueError as error:
        raise StateError(f"{source}: is no JSON ({error}); expected a state saved with json.dump") from error


# Where something is: what it is in, and its key or number there; None for the whole. A text is made of it only where
# one is needed, since a hostile file can have very long ones very often.
_Place: TypeAlias = "tuple[_Place, str | int] | None"


def _states_in(document: Any) -> Iterator[tuple[_Place, dict[str, Any]]]:
    """Yield each object that looks like a state, with its place."""
    # One iterator a level, so that a file of very many small lists costs no more than it has to.
    levels: list[Iterator[tuple[_Place, Any]]] = [iter([(None, document)])]
    while levels:
        found = next(levels[-1], None)
        if found is None:
            levels.pop()
        elif isinstance(found[1], dict) and any(
            found[1].keys() >= keys for keys in (_STATE_LIKE, _MOSAIC_LIKE)
        ):
            yield found
        else:
            levels.append(_inside(*found))


def _inside(place: _Place, value: Any) -> Iterator[tuple[_Place, Any]]:
    """Yield the objects and lists directly in one, with their places."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        if isinstance(each, (dict, list)):
            yield (place, key), each


def _text(place: _Place) -> str:
    parts: list[str] = []
    while place is not None:
        place, key = place
        parts.append(f"[{key}]" if isinstance(key, int) else f".{key:.100}")
    return "".join(reversed(parts)).removeprefix(".")


def _chosen(
    found: list[tuple[_Place, dict[str, Any]]], source: str, document: Any, key: str | None
) -> tuple[str, dict[str, Any]]:
    if key is not None:
        for place, state in found:
            if _text(place) == key:
                return key, state
        raise StateError(f"{source}: no state under the key {key!r:.200}; {_listed(found)}")
    if not found:
        if isinstance(document, dict):
            what = f"an object with the keys {', '.join(map(repr, list(document)[:_MAX_LISTED]))!s:.300}"
        else:
            what = f"a JSON {type(document).__name__}"
        raise StateError(
            f"{source}: no training state found in {what}; expected the object that state_dict() of a "
            "StreamingDataLoader gives, alone or under some key"
        )
    if any(state != found[0][1] for _, state in found):
        raise StateError(
            f"{source}: {len(found)} different states; {_listed(found)}; say which one with --key"
        )
    return _text(found[0][0]), found[0][1]


def _listed(found: list[tuple[_Place, dict[str, Any]]]) -> str:
    if not found:
        return "there is none in the file"
    places = ", ".join(repr(_text(place))[:200] for place, _ in found[:_MAX_LISTED])
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    return f"there are states under {places}{more}"
