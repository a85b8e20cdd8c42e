"""Where a run stands, as a small JSON object that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from streamshard.errors import StateError
from streamshard.order.batches import MAX_BATCH, BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.lineup import Unit
from streamshard.order.stream_state import (
    KINDS,
    MAX_EPOCH,
    SCATTERED,
    StreamState,
    columns_of,
    common_of,
    fitted,
    integer,
    json_object,
    read_common,
    row_of,
    shortened,
    shown,
    stream_of_row,
)
from streamshard.order.walk_arguments import MAX_SAMPLES

VERSION = 2

Setting: TypeAlias = "str | int | bool | None"

_MAX_SEED = (1 << 64) - 1
_MAX_POSITION = 1 << 62  # a position and an epoch after it are 64-bit integers
_MOSAIC_KEYS = frozenset(
    {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"}
)
_STATE_KEYS = frozenset(
    {"version", "epoch", "position", "seed", "settings", "mixture", "segment", "columns", "streams"}
)
_SEGMENT_KEYS = frozenset({"begin", "unit"})
# What all streams of a state have in common stands there once, where they are many, or have many digests.
_COMMON = "common"
_MANY = 32
_MANY_KINDS = 3
_GONE = "gone"


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
                fitted(shortened(prints)),
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
        streams = (*self.streams, *self.gone)
        columns = columns_of(self.begin, any(stream.scattered for stream in streams))
        is_long = len(streams) >= _MANY or any(len(each.fingerprints) >= _MANY_KINDS for each in streams)
        common = common_of(streams, columns) if is_long else {}
        columns = tuple(column for column in columns if column not in common)
        document: dict[str, Any] = {
            "version": self.version,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "settings": dict(self.settings),
            "mixture": self.mixture,
            "segment": {"begin": self.begin, "unit": None if self.unit is None else list(self.unit)},
            **({_COMMON: common} if common else {}),
            "columns": list(columns),
            "streams": [row_of(stream, columns, KINDS in common) for stream in self.streams],
        }
        if self.gone:
            document[_GONE] = [row_of(stream, columns, KINDS in common) for stream in self.gone]
        return document

    @classmethod
    def from_dict(cls, document: object) -> State:
        """Read what :meth:`to_dict` gave, trusting nothing.

        Raises:
            StateError: not such an object, another version, or numbers that contradict each other.
        """
        fields = json_object(document, "state")
        if "sample_in_epoch" in fields and set(fields) <= _MOSAIC_KEYS:
            raise StateError(
                "this state was saved by mosaicml-streaming, whose sample order is another one: a position "
                "in it means nothing here; finish the epoch there, or begin one here with set_epoch()"
            )
        if "version" not in fields:
            raise StateError("state: 'version' is missing; expected a state saved by streamshard")
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise StateError(
                f"state: version {shown(fields['version'])}, but this streamshard reads version {VERSION}; "
                "load it with the release that saved it"
            )
        gone = fields.pop(_GONE, [])
        common = read_common(fields.pop(_COMMON, {}))
        _exact_keys(fields, _STATE_KEYS, "state")
        segment = json_object(fields["segment"], "state: 'segment'")
        _exact_keys(segment, _SEGMENT_KEYS, "state: 'segment'")
        streams = fields["streams"]
        if not isinstance(streams, (list, tuple)) or not streams:
            raise StateError(f"state: 'streams' is {shown(streams)}, expected a list of at least one stream")
        if not isinstance(gone, (list, tuple)):
            raise StateError(f"state: {_GONE!r} is {shown(gone)}, expected a list of streams")
        most = min(len(streams) * MAX_SAMPLES, _MAX_POSITION)
        begin = integer(segment, "begin", 0, most, "state: 'segment'")
        known = [
            tuple(column for column in columns_of(begin, is_any_scattered) if column not in common)
            for is_any_scattered in (False, True)
        ]
        columns = next((each for each in known if fields["columns"] in (list(each), each)), None)
        if columns is None:
            raise StateError(
                f"state: 'columns' is {shown(fields['columns'])}, expected {list(known[0])}, or with {SCATTERED!r}"
            )
        if not isinstance(fields["mixture"], str):
            raise StateError(f"state: 'mixture' is {shown(fields['mixture'])}, expected a string")
        state = cls(
            epoch=integer(fields, "epoch", 0, MAX_EPOCH, "state"),
            position=integer(fields, "position", 0, most, "state"),
            seed=integer(fields, "seed", 0, _MAX_SEED, "state"),
            settings=_settings(fields["settings"]),
            mixture=fields["mixture"],
            begin=begin,
            unit=_unit(segment["unit"]),
            streams=tuple(
                stream_of_row(item, columns, common, f"state: stream {n}") for n, item in enumerate(streams)
            ),
            gone=tuple(
                stream_of_row(item, columns, common, f"state: {_GONE} stream {n}")
                for n, item in enumerate(gone)
            ),
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
            raise StateError(f"state: the streams have the keys {shown(keys)}, expected different ones")
        if sum(stream.taken for stream in self.streams) > self.position:
            raise StateError(
                f"state: the streams have given more samples to the epoch than its position {self.position}"
            )


def _unit(document: object) -> Unit | None:
    if document is None:
        return None
    if not isinstance(document, (list, tuple)) or len(document) != 2:
        raise StateError(f"state: 'unit' is {shown(document)}, expected null or two numbers of samples")
    pair = {"batch": document[0], "unit": document[1]}
    batch = integer(pair, "batch", 1, MAX_BATCH, "state: 'segment'")
    unit = integer(pair, "unit", 1, batch, "state: 'segment'")
    if batch % unit:
        raise StateError(f"state: 'unit' is {shown(document)}, expected a multiple and its divisor")
    return batch, unit


def _exact_keys(fields: Mapping[str, Any], keys: frozenset[str], where: str) -> None:
    missing, unknown = sorted(keys - fields.keys()), sorted(fields.keys() - keys)
    if missing or unknown:
        raise StateError(f"{where}: missing keys {shown(missing)}, unknown keys {shown(unknown)}")


def _settings(document: object) -> dict[str, Setting]:
    fields = json_object(document, "state: 'settings'")
    for name, value in fields.items():
        is_short = not isinstance(value, int) or value.bit_length() <= 64
        if not is_short or not (value is None or isinstance(value, (str, int))):
            raise StateError(
                f"state: setting {shown(name)} is {shown(value)}, expected a string, null or an integer of at "
                "most 64 bits"
            )
    return fields
