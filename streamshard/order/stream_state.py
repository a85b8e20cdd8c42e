"""One stream's row in a saved state, and what the rows of many streams have in common."""

from __future__ import annotations

import base64
import hashlib
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamshard.errors import StateError
from streamshard.order.lanes import MAX_LANES, MAX_SCATTERED_WINDOW
from streamshard.order.walk_arguments import MAX_SAMPLES, MAX_WINDOW

MAX_EPOCH = (1 << 53) - 1

_MAX_KEY = (1 << 31) - 1
_MAX_CURSOR = (MAX_EPOCH + 1) * MAX_SAMPLES
_MAX_PASSES = 1 << 63  # the random words of a pass depend on 64 bits of its number
_COLUMNS = ("name", "key", "samples", "lanes", "window", "cursor", "share", "data")
# The streams of a segment that does not begin with the epoch say what they had given to it before.
_TAKEN = "taken"
# Only where some stream is.
SCATTERED = "scattered"
KINDS = "kinds"
_HOISTED = ("lanes", "window", SCATTERED)
_MAX_KINDS = 32
_PRINT_NBYTES = 8
_PRINT_LENGTH = 11  # of that many bytes in base64
_PRINTS_LENGTH = 2 * _PRINT_LENGTH  # of all digests of a stream together
_LEAST_PRINT_LENGTH = 3
_PRINT_TEXT = re.compile(r"[A-Za-z0-9_.:+-]{1,40}=[^,=\s]{1,40}")


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream of a saved run.

    Attributes:
        name: what the user calls it, or None: then its data and its place are its identity.
        key: the number that its walk's random words depend on; it stays when streams are added or removed.
        num_samples, lanes, window: those of its walk.
        cursor: its next index, counted from the start of the run.
        share: its samples in the segment.
        fingerprints: what its data is, opaque here, by kind ("layout", "xxh64", …), shortened. Two streams are
            the same where every kind that both know agrees, and they share at least one.
        taken: what it has given to the epoch; 0 where the segment begins with the epoch and that follows.
        scattered: that of its walk.
    """

    name: str | None
    key: int
    num_samples: int
    lanes: int
    window: int
    cursor: int
    share: int
    fingerprints: Mapping[str, str]
    taken: int = 0
    scattered: bool = False

    def is_same_data(self, prints: Mapping[str, str]) -> bool:
        """Whether some (shortened) fingerprints are those of this stream's data."""
        shared = self.fingerprints.keys() & prints.keys()
        return bool(shared) and all(is_same_print(self.fingerprints[kind], prints[kind]) for kind in shared)


def columns_of(begin: int, is_any_scattered: bool) -> tuple[str, ...]:
    """Name the fields of a row in a segment that begins at a position of its epoch."""
    columns = (*_COLUMNS, _TAKEN) if begin else _COLUMNS
    return (*columns, SCATTERED) if is_any_scattered else columns


def shortened(prints: Mapping[str, str]) -> dict[str, str]:
    """Shorten fingerprints to 64 bits each: enough to notice other data, and a state stays small."""
    return {kind: _short_print(value) for kind, value in prints.items()}


def fitted(prints: Mapping[str, str]) -> dict[str, str]:
    """Give of shortened fingerprints what a state has room for: two of them, or the beginnings of more."""
    length = max(_LEAST_PRINT_LENGTH, _PRINTS_LENGTH // max(2, len(prints)))
    return {kind: value[:length] for kind, value in prints.items()}


def is_same_print(saved: str, here: str) -> bool:
    """Whether a fingerprint of a state, perhaps only its beginning, is a shortened one."""
    is_beginning = len(here) == _PRINT_LENGTH and len(saved) >= _LEAST_PRINT_LENGTH and here.startswith(saved)
    return saved == here or is_beginning


def beginning_of(prints: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give what is the same of two fingerprints that are the same, by kind: to look some up among very many."""
    return [(kind, value[:_LEAST_PRINT_LENGTH]) for kind, value in prints.items()]


def _short_print(value: str) -> str:
    if len(value) <= _PRINT_LENGTH:
        return value
    digest = hashlib.blake2b(value.encode(), digest_size=_PRINT_NBYTES).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def common_of(streams: Sequence[StreamState], columns: Sequence[str]) -> dict[str, Any]:
    """Give what is the same in all rows: some numbers, and the kinds of digests."""
    rows = [dict(zip(columns, row_of(stream, columns), strict=True)) for stream in streams]
    common = {
        column: rows[0][column]
        for column in _HOISTED
        if column in columns and all(row[column] == rows[0][column] for row in rows)
    }
    kinds = sorted(streams[0].fingerprints)
    if all(sorted(stream.fingerprints) == kinds for stream in streams):
        common[KINDS] = kinds
    return common


def read_common(document: object) -> dict[str, Any]:
    """Read what :func:`common_of` gave; its numbers are checked with each row. Raises StateError."""
    common = json_object(document, "state: 'common'")
    unknown = sorted(common.keys() - {*_HOISTED, KINDS})
    if unknown:
        raise StateError(f"state: 'common': unknown keys {shown(unknown)}")
    kinds = common.get(KINDS)
    if KINDS in common and not (
        isinstance(kinds, (list, tuple))
        and 0 < len(kinds) <= _MAX_KINDS
        and all(isinstance(kind, str) for kind in kinds)
    ):
        raise StateError(f"state: 'common': {KINDS!r} is {shown(kinds)}, expected names of digests")
    return common


def row_of(stream: StreamState, columns: Sequence[str], is_bare: bool = False) -> list[Any]:
    """Give one stream's row; ``is_bare``: its digests without their kinds."""
    prints = sorted(stream.fingerprints.items())
    fields: dict[str, Any] = {
        "name": stream.name,
        "key": stream.key,
        "samples": stream.num_samples,
        "lanes": stream.lanes,
        "window": stream.window,
        "cursor": stream.cursor,
        "share": stream.share,
        "data": ",".join(value if is_bare else f"{kind}={value}" for kind, value in prints),
        _TAKEN: stream.taken,
        SCATTERED: int(stream.scattered),
    }
    return [fields[column] for column in columns]


def stream_of_row(
    document: object, columns: Sequence[str], common: Mapping[str, Any], where: str
) -> StreamState:
    """Read what :func:`row_of` gave, which misses what is in ``common``. Raises StateError."""
    if not isinstance(document, (list, tuple)) or len(document) != len(columns):
        raise StateError(f"{where} is {shown(document)}, expected a list of {', '.join(columns)}")
    fields = {**common, **dict(zip(columns, document, strict=True))}
    name, data = fields["name"], fields["data"]
    if name is not None and not isinstance(name, str):
        raise StateError(f"{where}: 'name' is {shown(name)}, expected a string or null")
    texts = data.split(",") if isinstance(data, str) else []
    kinds = common.get(KINDS)
    if kinds is not None and len(texts) == len(kinds):
        texts = [f"{kind}={value}" for kind, value in zip(kinds, texts, strict=True)]
    if not texts or len(texts) > _MAX_KINDS or not all(_PRINT_TEXT.fullmatch(text) for text in texts):
        raise StateError(f"{where}: 'data' is {shown(data)}, expected digests such as 'layout=…,xxh64=…'")
    samples = integer(fields, "samples", 1, MAX_SAMPLES, where)
    scattered = SCATTERED in fields and bool(integer(fields, SCATTERED, 0, 1, where))
    return StreamState(
        name=name,
        key=integer(fields, "key", 0, _MAX_KEY, where),
        num_samples=samples,
        lanes=integer(fields, "lanes", 1, MAX_LANES, where),
        window=integer(fields, "window", 1, MAX_SCATTERED_WINDOW if scattered else MAX_WINDOW, where),
        cursor=integer(fields, "cursor", 0, min(_MAX_CURSOR, _MAX_PASSES * samples), where),
        share=integer(fields, "share", 0, MAX_SAMPLES, where),
        fingerprints=dict(text.split("=") for text in texts),
        taken=integer(fields, _TAKEN, 0, 2 * MAX_SAMPLES, where) if _TAKEN in fields else 0,
        scattered=scattered,
    )


def json_object(document: object, where: str) -> dict[str, Any]:
    """Return a JSON object as a dict of its own; StateError for anything else."""
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise StateError(f"{where} is {shown(document)}, expected a JSON object")
    return dict(document)


def integer(fields: Mapping[str, Any], key: str, least: int, most: int, where: str) -> int:
    """Return an integer of a range from a field; StateError for anything else."""
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise StateError(f"{where}: {key!r} is {shown(value)}, expected an integer from {least} to {most}")
    return value


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"<integer of {x.bit_length()} bits>"


def shown(value: object) -> str:
    """Show a value of a document, which may be anything, in few words."""
    return _Short().repr(value)
