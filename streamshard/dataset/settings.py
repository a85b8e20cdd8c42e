"""The arguments of ``StreamingDataset``: checked, and turned into walks and sizes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamshard._sizes import as_integer, shown
from streamshard.dataset.stream import Stream
from streamshard.errors import TopologyError
from streamshard.order.fixed import walk_of
from streamshard.order.lanes import (
    MAX_LANES,
    default_lanes,
    default_window,
    is_scattered_by_default,
    single_lanes,
)
from streamshard.order.shuffle import parse_shuffle
from streamshard.order.stream_walk import StreamWalk
from streamshard.order.walk_arguments import whole as whole_from

if TYPE_CHECKING:
    from streamshard.dataset.source import OpenStream

# Arguments of mosaicml-streaming that have no meaning here, and what takes their place.
_WITHOUT_MEANING = {
    "partition_algo": "the order never depends on the number of nodes",
    "sampling_granularity": "streams are sampled evenly, sample by sample",
    "stream_name": "pass Stream objects in streams=",
    "stream_config": "pass Stream objects in streams=",
}


def refuse_unknown(arguments: Mapping[str, Any]) -> None:
    """Warn once about each argument that only mosaicml-streaming has; refuse all others.

    Raises:
        TypeError: an argument that neither library has.
    """
    for name in arguments:
        if name not in _WITHOUT_MEANING:
            raise TypeError(f"StreamingDataset has no argument {name!r}")
        warnings.warn(
            f"StreamingDataset({name}=...) has no effect: {_WITHOUT_MEANING[name]}",
            FutureWarning,
            stacklevel=3,
        )


def only(name: str, value: str, *known: str) -> None:
    """Refuse every value of an argument but those that this version has."""
    if value not in known:
        raise ValueError(f"{name}={value!r}: this version has {' and '.join(map(repr, known))}")


def whole(name: str, value: Any, most: int | None = None) -> int:
    """Return a whole number from 0 to ``most`` as an int; ValueError for anything else."""
    number = as_integer(value)
    if number is None or number < 0 or (most is not None and number > most):
        end = "" if most is None else f" to {most}"
        raise ValueError(f"{name}={shown(value)}: expected a whole number from 0{end}")
    return number


def positive(name: str, value: Any) -> int | None:
    """Return a whole number of at least 1 as an int, or None; ValueError for anything else."""
    if value is None:
        return None
    number = as_integer(value)
    if number is None or number < 1:
        raise ValueError(f"{name}={shown(value)}: expected a whole number of at least 1")
    return number


def streams_of(
    streams: Sequence[Stream] | None,
    remote: str | os.PathLike[str] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
) -> tuple[Stream, ...]:
    """Return the dataset's streams, given one way or the other.

    Raises:
        ValueError: both ways, or neither.
        TypeError: an item that is no ``Stream``.
    """
    if streams is None:
        if remote is None and local is None:
            raise ValueError(
                "StreamingDataset: give remote= or local= (a directory or URL with index.json), or streams="
            )
        return (Stream(remote=remote, local=local, split=split),)
    if remote is not None or local is not None or split is not None:
        raise ValueError(
            "StreamingDataset: streams= excludes remote=, local= and split=; put them into the streams"
        )
    found = (streams,) if isinstance(streams, Stream) else tuple(streams)
    if not found:
        raise ValueError("StreamingDataset: streams=[] holds no stream")
    for stream in found:
        if not isinstance(stream, Stream):
            raise TypeError(f"StreamingDataset: streams= holds {stream!r}, expected streamshard.Stream")
    _refuse_equal_names(found)
    return found


def _refuse_equal_names(streams: Sequence[Stream]) -> None:
    """A name says in a training state which stream is meant, so no two may have the same."""
    seen: dict[str, Stream] = {}
    for stream in streams:
        if stream.name is None:
            continue
        if stream.name in seen:
            raise ValueError(
                f"two streams have the name {stream.name!r}, those of {seen[stream.name].place!r} and of "
                f"{stream.place!r}: a training state tells streams apart by their names, so give each its own"
            )
        seen[stream.name] = stream


def walks_of(
    streams: Sequence[OpenStream],
    samples: Sequence[int],
    *,
    fixed: Sequence[int] | None,
    shuffle: str | None,
    seed: int,
    lanes: int | None,
    block_size: int | None,
    batching: str = "random",
) -> list[StreamWalk]:
    """Make the walk over each opened stream, of which an epoch takes at most ``samples``.

    With ``fixed``, it takes these numbers of them, the same ones in every epoch. ``batching`` says whether batches are
    of all streams.

    Raises:
        ValueError, TopologyError: an argument that ``Walk`` refuses, with the stream's name.
    """
    total = sum(samples)
    name = parse_shuffle(shuffle)
    if lanes is not None:
        lanes = whole_from("num_canonical_nodes", lanes, 1, MAX_LANES, TopologyError)
    is_mixed = batching in ("random", "stratified") and name == "sliding"
    found: list[tuple[NDArray[np.int64], dict[str, Any]]] = []
    for number, (opened, taken) in enumerate(zip(streams, samples, strict=True)):
        sizes = opened.index.samples_per_shard
        own: dict[str, Any] = {"lanes": lanes, "block_size": block_size}
        if len(streams) > 1:
            # All streams together have about as many shards live as one stream would have.
            if lanes is None:
                own["lanes"] = default_lanes(int(np.count_nonzero(sizes)), taken, total)
            if block_size is None:
                own["window"] = default_window(own["lanes"], taken, total, is_mixed=is_mixed)
                own["scattered"] = is_scattered_by_default(taken, total)
        found.append((sizes, {"seed": seed, "stream": number, "shuffle": shuffle, **own}))
    if fixed is None and name not in ("full", "none"):
        _cut_together(found, seed)
    walks: list[StreamWalk] = []
    for number, (sizes, arguments) in enumerate(found):
        try:
            walks.append(walk_of(sizes, None if fixed is None else fixed[number], **arguments))
        except ValueError as error:
            raise type(error)(f"{streams[number].stream}: {error}") from error
    return walks


def _cut_together(walks: Sequence[tuple[NDArray[np.int64], dict[str, Any]]], seed: int) -> None:
    """Add to the arguments of walks of one lane what these would find out one by one."""
    single = [(sizes, arguments) for sizes, arguments in walks if arguments["lanes"] == 1]
    if len(single) > 1 and type(seed) is int and 0 <= seed < 1 << 64:  # else a walk says what is wrong
        numbers = [arguments["stream"] for _, arguments in single]
        cuts = single_lanes([sizes for sizes, _ in single], numbers, seed=seed)
        for (_, arguments), cut in zip(single, cuts, strict=True):
            arguments["cut"] = cut
