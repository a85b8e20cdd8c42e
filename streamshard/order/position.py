"""Where a run stands, as a small JSON object that a person can read."""

from __future__ import annotations

import base64
import hashlib
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from streamshard.errors import StateError
from streamshard.order.batches import MAX_BATCH, BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.lanes import MAX_LANES, MAX_SCATTERED_WINDOW
from streamshard.order.lineup import Unit
from streamshard.order.walk import MAX_SAMPLES, MAX_WINDOW

VERSION = 2

Setting: TypeAlias = "str | int | bool | None"

_MAX_EPOCH = (1 << 53) - 1
_MAX_SEED = (1 << 64) - 1
_MAX_KEY = (1 << 31) - 1
_MAX_CURSOR = (_MAX_EPOCH + 1) * MAX_SAMPLES
_MAX_PASSES = 1 << 63  # the random words of a pass depend on 64 bits of its number
_MAX_POSITION = 1 << 62  # a position and an epoch after it are 64-bit integers
_MOSAIC_KEYS = frozenset(
    {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"}
)
_STATE_KEYS = frozenset(
    {"version", "epoch", "position", "seed", "settings", "mixture", "segment", "columns", "streams"}
)
_SEGMENT_KEYS = frozenset({"begin", "unit"})
_COLUMNS = ("name", "key", "samples", "lanes", "window", "cursor", "share", "data")
# The streams of a segment that does not begin with the epoch say what they had given to it before.
_TAKEN = "taken"
# Only where some stream is.
_SCATTERED = "scattered"
_GONE = "gone"
_PRINT_NBYTES = 8
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
        return bool(shared) and all(self.fingerprints[kind] == prints[kind] for kind in shared)


@dataclass(frozen=True, slots=True)
class State:
    """A position in a run and all that the order depends on, which neither world nor batch size is part of.

    Attributes:
        epoch: from 0.
        position: samples of the epoch that were delivered, padding not counted; below the epoch's number.
        seed: the order's.
        settings: order settings that belong to no single stream, by name.
        mixture: digest of what epochs take of which stream; where it is the same, segments are cut alike.
        begin: first position of the segment that ``position`` lies in.
        unit: samples of a global batch and of those in it that are of one stream; None where samples take turns.
        streams: in their order.
        gone: streams that the run had once; they go on where they stopped if they come back.
    """

    epoch: int
    position: int
    seed: int
    settings: Mapping[str, Setting]
    mixture: str
    begin: int
    unit: Unit | None
    streams: tuple[StreamState, ...]
    gone: tuple[StreamState, ...] = ()
    version: int = field(default=VERSION)

    @classmethod
    def of(
        cls,
        order: Order,
        plan: BatchPlan,
        epoch: int,
        position: int,
        *,
        settings: Mapping[str, Setting],
        names: Sequence[str | None],
        fingerprints: Sequence[Mapping[str, str]],
        gone: Sequence[StreamState] = (),
    ) -> State:
        """Describe a position at or after ``plan.start``; the end of an epoch is the next epoch at 0.

        ``names`` and ``fingerprints`` have one item for each stream.

        Raises:
            ValueError: a position outside the epoch, or lists of another length.
        """
        size = order.size(epoch, plan.start)
        if epoch < 0 or not plan.start <= position <= size:
            raise ValueError(
                f"epoch={epoch} position={position}: expected a position from {plan.start} to {size}"
            )
        if position == size:
            epoch, position = epoch + 1, 0
            plan = order.plan(epoch, 0, global_batch_size=plan.global_batch_size, ranks=plan.ranks)
        standing = order.standing(plan, epoch, position)
        begin = standing.segment.begin
        rows = zip(
            order.walks,
            standing.cursors,
            standing.segment.samples,
            standing.taken,
            names,
            fingerprints,
            strict=True,
        )
        streams = tuple(
            StreamState(
                name,
                walk.stream,
                walk.num_samples,
                walk.lanes,
                walk.window,
                cursor,
                share,
                shortened(prints),
                taken if begin else 0,
                walk.scattered,
            )
            for walk, cursor, share, taken, name, prints in rows
        )
        return cls(
            epoch,
            position,
            order.walks[0].seed,
            {**settings, "shuffle": order.walks[0].shuffle},
            order.signature,
            begin,
            order.unit(plan),
            streams,
            tuple(gone),
        )

    def to_dict(self) -> dict[str, Any]:
        """Give the plain JSON object: dicts, lists, strings, integers, booleans and None."""
        is_any_scattered = any(stream.scattered for stream in (*self.streams, *self.gone))
        columns = _columns(self.begin, is_any_scattered)
        document: dict[str, Any] = {
            "version": self.version,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "settings": dict(self.settings),
            "mixture": self.mixture,
            "segment": {"begin": self.begin, "unit": None if self.unit is None else list(self.unit)},
            "columns": list(columns),
            "streams": [_row(stream, columns) for stream in self.streams],
        }
        if self.gone:
            document[_GONE] = [_row(stream, columns) for stream in self.gone]
        return document

    @classmethod
    def from_dict(cls, document: object) -> State:
        """Read what :meth:`to_dict` gave, trusting nothing.

        Raises:
            StateError: not such an object, another version, or numbers that contradict each other.
        """
        fields = _object(document, "state")
        if "sample_in_epoch" in fields and set(fields) <= _MOSAIC_KEYS:
            raise StateError(
                "this state was saved by mosaicml-streaming, whose sample order is another one: a position "
                "in it means nothing here; finish the epoch there, or begin one here with set_epoch()"
            )
        if "version" not in fields:
            raise StateError("state: 'version' is missing; expected a state saved by streamshard")
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise StateError(
                f"state: version {_shown(fields['version'])}, but this streamshard reads version {VERSION}; "
                "load it with the release that saved it"
            )
        gone = fields.pop(_GONE, [])
        _exact_keys(fields, _STATE_KEYS, "state")
        segment = _object(fields["segment"], "state: 'segment'")
        _exact_keys(segment, _SEGMENT_KEYS, "state: 'segment'")
        streams = fields["streams"]
        if not isinstance(streams, (list, tuple)) or not streams:
            raise StateError(f"state: 'streams' is {_shown(streams)}, expected a list of at least one stream")
        if not isinstance(gone, (list, tuple)):
            raise StateError(f"state: {_GONE!r} is {_shown(gone)}, expected a list of streams")
        most = min(len(streams) * MAX_SAMPLES, _MAX_POSITION)
        begin = _integer(segment, "begin", 0, most, "state: 'segment'")
        known = [_columns(begin, is_any_scattered) for is_any_scattered in (False, True)]
        columns = next((each for each in known if fields["columns"] in (list(each), each)), None)
        if columns is None:
            raise StateError(
                f"state: 'columns' is {_shown(fields['columns'])}, expected {list(known[0])}, or with {_SCATTERED!r}"
            )
        if not isinstance(fields["mixture"], str):
            raise StateError(f"state: 'mixture' is {_shown(fields['mixture'])}, expected a string")
        state = cls(
            epoch=_integer(fields, "epoch", 0, _MAX_EPOCH, "state"),
            position=_integer(fields, "position", 0, most, "state"),
            seed=_integer(fields, "seed", 0, _MAX_SEED, "state"),
            settings=_settings(fields["settings"]),
            mixture=fields["mixture"],
            begin=begin,
            unit=_unit(segment["unit"]),
            streams=tuple(_stream(item, columns, f"state: stream {n}") for n, item in enumerate(streams)),
            gone=tuple(_stream(item, columns, f"state: {_GONE} stream {n}") for n, item in enumerate(gone)),
        )
        state._check()
        return state

    def _check(self) -> None:
        """Check the numbers against each other."""
        total = sum(stream.share for stream in self.streams)
        if not 0 < total <= MAX_SAMPLES or not self.begin <= self.position <= self.begin + total:
            raise StateError(
                f"state: position {self.position} is not in its segment, which has {total} samples from position "
                f"{self.begin} on"
            )
        keys = [stream.key for stream in (*self.streams, *self.gone)]
        if len(set(keys)) < len(keys):
            raise StateError(f"state: the streams have the keys {_shown(keys)}, expected different ones")
        if sum(stream.taken for stream in self.streams) > self.position:
            raise StateError(
                f"state: the streams have given more samples to the epoch than its position {self.position}"
            )


def _columns(begin: int, is_any_scattered: bool) -> tuple[str, ...]:
    columns = (*_COLUMNS, _TAKEN) if begin else _COLUMNS
    return (*columns, _SCATTERED) if is_any_scattered else columns


def shortened(prints: Mapping[str, str]) -> dict[str, str]:
    """Shorten fingerprints to 64 bits each: enough to notice other data, and a state stays small."""
    return {kind: _short_print(value) for kind, value in prints.items()}


def _short_print(value: str) -> str:
    if len(value) <= 11:
        return value
    digest = hashlib.blake2b(value.encode(), digest_size=_PRINT_NBYTES).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _row(stream: StreamState, columns: Sequence[str]) -> list[Any]:
    fields: dict[str, Any] = {
        "name": stream.name,
        "key": stream.key,
        "samples": stream.num_samples,
        "lanes": stream.lanes,
        "window": stream.window,
        "cursor": stream.cursor,
        "share": stream.share,
        "data": ",".join(f"{kind}={value}" for kind, value in sorted(stream.fingerprints.items())),
        _TAKEN: stream.taken,
        _SCATTERED: int(stream.scattered),
    }
    return [fields[column] for column in columns]


def _stream(document: object, columns: Sequence[str], where: str) -> StreamState:
    if not isinstance(document, (list, tuple)) or len(document) != len(columns):
        raise StateError(f"{where} is {_shown(document)}, expected a list of {', '.join(columns)}")
    fields = dict(zip(columns, document, strict=True))
    name, data = fields["name"], fields["data"]
    if name is not None and not isinstance(name, str):
        raise StateError(f"{where}: 'name' is {_shown(name)}, expected a string or null")
    texts = data.split(",") if isinstance(data, str) else []
    if not texts or len(texts) > 32 or not all(_PRINT_TEXT.fullmatch(text) for text in texts):
        raise StateError(f"{where}: 'data' is {_shown(data)}, expected digests such as 'layout=…,xxh64=…'")
    samples = _integer(fields, "samples", 1, MAX_SAMPLES, where)
    scattered = _SCATTERED in fields and bool(_integer(fields, _SCATTERED, 0, 1, where))
    return StreamState(
        name=name,
        key=_integer(fields, "key", 0, _MAX_KEY, where),
        num_samples=samples,
        lanes=_integer(fields, "lanes", 1, MAX_LANES, where),
        window=_integer(fields, "window", 1, MAX_SCATTERED_WINDOW if scattered else MAX_WINDOW, where),
        cursor=_integer(fields, "cursor", 0, min(_MAX_CURSOR, _MAX_PASSES * samples), where),
        share=_integer(fields, "share", 0, MAX_SAMPLES, where),
        fingerprints=dict(text.split("=") for text in texts),
        taken=_integer(fields, _TAKEN, 0, 2 * MAX_SAMPLES, where) if _TAKEN in fields else 0,
        scattered=scattered,
    )


def _unit(document: object) -> Unit | None:
    if document is None:
        return None
    if not isinstance(document, (list, tuple)) or len(document) != 2:
        raise StateError(f"state: 'unit' is {_shown(document)}, expected null or two numbers of samples")
    pair = {"batch": document[0], "unit": document[1]}
    batch = _integer(pair, "batch", 1, MAX_BATCH, "state: 'segment'")
    unit = _integer(pair, "unit", 1, batch, "state: 'segment'")
    if batch % unit:
        raise StateError(f"state: 'unit' is {_shown(document)}, expected a multiple and its divisor")
    return batch, unit


def _object(document: object, where: str) -> dict[str, Any]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise StateError(f"{where} is {_shown(document)}, expected a JSON object")
    return dict(document)


def _exact_keys(fields: Mapping[str, Any], keys: frozenset[str], where: str) -> None:
    missing, unknown = sorted(keys - fields.keys()), sorted(fields.keys() - keys)
    if missing or unknown:
        raise StateError(f"{where}: missing keys {_shown(missing)}, unknown keys {_shown(unknown)}")


def _integer(fields: Mapping[str, Any], key: str, least: int, most: int, where: str) -> int:
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise StateError(f"{where}: {key!r} is {_shown(value)}, expected an integer from {least} to {most}")
    return value


def _settings(document: object) -> dict[str, Setting]:
    fields = _object(document, "state: 'settings'")
    for name, value in fields.items():
        is_short = not isinstance(value, int) or value.bit_length() <= 64
        if not is_short or not (value is None or isinstance(value, (str, int))):
            raise StateError(
                f"state: setting {_shown(name)} is {_shown(value)}, expected a string, null or an integer of at "
                "most 64 bits"
            )
    return fields


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"<integer of {x.bit_length()} bits>"


def _shown(value: object) -> str:
    # Documents come from outside: a message stays short whatever is in them.
    return _Short().repr(value)
