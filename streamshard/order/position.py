"""Where a run stands, as a small JSON object, and whether a saved one fits the run that loads it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from streamshard.errors import StateError
from streamshard.order.epoch import Order
from streamshard.order.lanes import MAX_LANES
from streamshard.order.shuffle import SHUFFLES
from streamshard.order.walk import MAX_SAMPLES

VERSION = 1

Setting: TypeAlias = "str | int | bool | None"

_MAX_EPOCH = (1 << 53) - 1
_MAX_SEED = (1 << 64) - 1
_MOSAIC_KEYS = frozenset(
    {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"}
)
_STATE_KEYS = frozenset({"version", "epoch", "position", "seed", "settings", "streams"})
_STREAM_KEYS = frozenset(
    {"name", "num_samples", "samples_per_epoch", "shuffle", "lanes", "window", "cursor", "fingerprints"}
)


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream of a saved run.

    Attributes:
        name: what the user calls it, or None: then its ordinal and fingerprints are its identity.
        num_samples, samples_per_epoch, shuffle, lanes, window: those of its walk.
        cursor: its next index, counted from the start of the run.
        fingerprints: what its data is, opaque here, by kind ("layout", "xxh64", …). Two streams are the same
            where every kind that both know agrees, and they share at least one.
    """

    name: str | None
    num_samples: int
    samples_per_epoch: int
    shuffle: str
    lanes: int
    window: int
    cursor: int
    fingerprints: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class State:
    """A position in a run and all that the order depends on, which neither world nor batch size is part of.

    Attributes:
        epoch: from 0.
        position: samples of the epoch that were delivered, padding not counted; below the epoch's number.
        seed: the order's.
        settings: order settings that belong to no single stream, by name.
        streams: in their order.
    """

    epoch: int
    position: int
    seed: int
    settings: Mapping[str, Setting]
    streams: tuple[StreamState, ...]
    version: int = VERSION

    @classmethod
    def of(
        cls,
        order: Order,
        epoch: int,
        position: int,
        *,
        settings: Mapping[str, Setting],
        names: Sequence[str | None],
        fingerprints: Sequence[Mapping[str, str]],
    ) -> State:
        """Describe a position; the end of an epoch is the next epoch at 0.

        ``names`` and ``fingerprints`` have one item for each stream.

        Raises:
            ValueError: a position outside the epoch, or lists of another length.
        """
        if epoch < 0 or not 0 <= position <= order.num_samples:
            raise ValueError(
                f"epoch={epoch} position={position}: expected a position from 0 to {order.num_samples}"
            )
        if position == order.num_samples:
            epoch, position = epoch + 1, 0
        rows = zip(
            order.walks,
            order.samples_per_epoch,
            order.cursors(epoch, position),
            names,
            fingerprints,
            strict=True,
        )
        streams = tuple(
            StreamState(
                name, walk.num_samples, samples, walk.shuffle, walk.lanes, walk.window, cursor, dict(prints)
            )
            for walk, samples, cursor, name, prints in rows
        )
        return cls(epoch, position, order.walks[0].seed, dict(settings), streams)

    def to_dict(self) -> dict[str, Any]:
        """Give the plain JSON object: dicts, lists, strings, integers, booleans and None."""
        return {
            "version": self.version,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "settings": dict(self.settings),
            "streams": [
                {**asdict(stream), "fingerprints": dict(stream.fingerprints)} for stream in self.streams
            ],
        }

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
        _exact_keys(fields, _STATE_KEYS, "state")
        streams = fields["streams"]
        if not isinstance(streams, (list, tuple)) or not streams:
            raise StateError(f"state: 'streams' is {_shown(streams)}, expected a list of at least one stream")
        state = cls(
            epoch=_integer(fields, "epoch", 0, _MAX_EPOCH, "state"),
            position=_integer(fields, "position", 0, len(streams) * MAX_SAMPLES, "state"),
            seed=_integer(fields, "seed", 0, _MAX_SEED, "state"),
            settings=_settings(fields["settings"]),
            streams=tuple(_stream(item, f"state: stream {number}") for number, item in enumerate(streams)),
        )
        return state._consistent()

    def check_fits(self, current: State) -> None:
        """Refuse to go on from this saved state in a run that ``current`` describes, at whatever position.

        Raises:
            StateError: other data, seed or order settings; the message lists every difference.
        """
        found = list(_differences("seed", self.seed, current.seed))
        for name in sorted({*self.settings, *current.settings}):
            absent = "nothing"
            found += _differences(name, self.settings.get(name, absent), current.settings.get(name, absent))
        if len(self.streams) != len(current.streams):
            found += _differences("number of streams", len(self.streams), len(current.streams))
        else:
            for number, (saved, here) in enumerate(zip(self.streams, current.streams, strict=True)):
                found += _stream_differences(number, saved, here)
        if found:
            raise StateError(
                "this state does not fit the dataset, so its position would mean other samples: "
                + "; ".join(found)
                + ". Construct the dataset as in the run that saved the state, or start a new run without it"
            )

    def _consistent(self) -> State:
        """Check the numbers against each other; turn the end of an epoch into the start of the next."""
        total = sum(stream.samples_per_epoch for stream in self.streams)
        if not total or self.position > total:
            raise StateError(f"state: position {self.position} is past the epoch's {total} samples")
        taken = [stream.cursor - self.epoch * stream.samples_per_epoch for stream in self.streams]
        for number, (stream, count) in enumerate(zip(self.streams, taken, strict=True)):
            if not 0 <= count <= stream.samples_per_epoch:
                raise StateError(
                    f"state: stream {number}: cursor {stream.cursor} is not in epoch {self.epoch} of "
                    f"{stream.samples_per_epoch} samples"
                )
        if sum(taken) != self.position:
            raise StateError(
                f"state: the streams' cursors add up to position {sum(taken)}, not {self.position}"
            )
        if self.position < total:
            return self
        return State(self.epoch + 1, 0, self.seed, self.settings, self.streams)


def _stream(document: object, where: str) -> StreamState:
    fields = _object(document, where)
    _exact_keys(fields, _STREAM_KEYS, where)
    name, shuffle, prints = fields["name"], fields["shuffle"], fields["fingerprints"]
    if name is not None and not isinstance(name, str):
        raise StateError(f"{where}: 'name' is {_shown(name)}, expected a string or null")
    if not isinstance(shuffle, str) or shuffle not in SHUFFLES:
        raise StateError(f"{where}: 'shuffle' is {_shown(shuffle)}, expected one of {', '.join(SHUFFLES)}")
    if not isinstance(prints, Mapping) or not all(
        isinstance(kind, str) and isinstance(value, str) for kind, value in prints.items()
    ):
        raise StateError(f"{where}: 'fingerprints' is {_shown(prints)}, expected an object of strings")
    return StreamState(
        name=name,
        num_samples=_integer(fields, "num_samples", 1, MAX_SAMPLES, where),
        samples_per_epoch=_integer(fields, "samples_per_epoch", 0, MAX_SAMPLES, where),
        shuffle=shuffle,
        lanes=_integer(fields, "lanes", 1, MAX_LANES, where),
        window=_integer(fields, "window", 1, MAX_SAMPLES, where),
        cursor=_integer(fields, "cursor", 0, (_MAX_EPOCH + 1) * MAX_SAMPLES, where),
        fingerprints=dict(prints),
    )


def _stream_differences(number: int, saved: StreamState, here: StreamState) -> list[str]:
    where = f"stream {number}" + (f" ({saved.name})" if saved.name is not None else "")
    found = list(_differences(f"{where} name", saved.name, here.name))
    for field in ("num_samples", "samples_per_epoch", "shuffle", "lanes", "window"):
        found += _differences(f"{where} {field}", getattr(saved, field), getattr(here, field))
    shared = sorted(saved.fingerprints.keys() & here.fingerprints.keys())
    if not shared:
        found += _differences(
            f"{where} fingerprint kinds", sorted(saved.fingerprints), sorted(here.fingerprints)
        )
    for kind in shared:
        found += _differences(f"{where} data ({kind})", saved.fingerprints[kind], here.fingerprints[kind])
    return found


def _differences(name: str, saved: object, here: object) -> list[str]:
    if saved == here and isinstance(saved, bool) == isinstance(here, bool):
        return []
    return [f"{name} was {_shown(saved)} and is {_shown(here)}"]


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
        if value is not None and not isinstance(value, (str, int)):
            raise StateError(
                f"state: setting {_shown(name)} is {_shown(value)}, expected a string, integer or null"
            )
    return fields


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"<integer of {x.bit_length()} bits>"


def _shown(value: object) -> str:
    # Documents come from outside: a message stays short whatever is in them.
    return _Short().repr(value)
