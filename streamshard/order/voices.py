"""The samples of labelled positions: each stream's by its walk, those of very many small streams together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamshard.order.crowd import Crowd
from streamshard.order.stream_walk import StreamWalk
from streamshard.order.walk import Walk

_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_FROM = 8  # scattered streams from which looking them up together pays
_REPLACEMENTS_AT_ONCE = 64

_Group: TypeAlias = "tuple[int, Any, NDArray[np.int64] | slice]"


@dataclass(frozen=True, slots=True)
class Found:
    """Where some positions lie.

    Attributes:
        count: how many positions.
        streams: the stream of each; None: all are of one and the same.
        groups: (number of a voice, its spots, the numbers of the positions that they are of).
    """

    count: int
    streams: NDArray[np.int64] | None
    groups: list[_Group]


class Voices:
    """Walks of all streams of an order.

    Args:
        walks: one for each stream.
        is_sorted: whether batches are sorted by the walks' keys.

    Attributes:
        first_ids: sample id of each stream's first sample.
    """

    def __init__(self, walks: Sequence[StreamWalk], *, is_sorted: bool) -> None:
        self._is_sorted = is_sorted
        self.first_ids: list[int] = []
        begin = 0
        for walk in walks:
            self.first_ids.append(begin)
            begin += walk.num_samples
        self._walks = tuple(walks)
        small = [number for number, walk in enumerate(walks) if walk.scattered and isinstance(walk, Walk)]
        self._crowd: Crowd | None = None
        self._in_crowd = np.zeros(len(walks), dtype=bool)
        if len(small) >= _FROM:
            self._in_crowd[small] = True
            together = [walk for walk in walks if walk.scattered and isinstance(walk, Walk)]
            self._crowd = Crowd(together, small, [self.first_ids[number] for number in small], len(walks))

    def of_one(self, index: int, offsets: NDArray[np.int64]) -> Found:
        """Find the indices ``index + offsets`` of the only walk."""
        return Found(offsets.size, None, [(0, self._walks[0].spots(index, offsets), slice(None))])

    def of_many(self, cursors: Sequence[int], streams: NDArray[np.int64], ranks: NDArray[np.int64]) -> Found:
        """Find index ``cursors[stream] + rank`` of each position's stream; ranks of a stream ascend."""
        groups: list[_Group] = []
        here = np.arange(streams.size)
        if self._crowd is not None:
            mine = self._in_crowd[streams]
            if mine.all():
                return Found(
                    streams.size, streams, [(-1, self._crowd.spots(cursors, streams, ranks), slice(None))]
                )
            together, here = np.flatnonzero(mine), np.flatnonzero(~mine)
            if together.size:
                spots = self._crowd.spots(cursors, streams[together], ranks[together])
                groups.append((-1, spots, together))
        order = here[np.argsort(streams[here], kind="stable")]
        met, begins = np.unique(streams[order], return_index=True)
        for stream, places in zip(met.tolist(), np.split(order, begins[1:]), strict=True):
            first = int(ranks[places[0]])
            spots = self._walks[stream].spots(cursors[stream] + first, ranks[places] - first)
            groups.append((stream, spots, places))
        return Found(streams.size, streams, groups)

    def ids(self, found: Found, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the sample ids at the chosen ones of some positions."""
        if len(found.groups) == 1:
            voice, spots, _ = found.groups[0]
            return self._samples(voice, spots, chosen)
        owner = np.empty(found.count, dtype=np.int64)
        number = np.empty(found.count, dtype=np.int64)
        for group, (_, spots, here) in enumerate(found.groups):
            owner[here] = group
            number[here] = np.arange(spots.row.size)
        owner, number = owner[chosen], number[chosen]
        samples = np.empty(chosen.size, dtype=np.int64)
        by_owner = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[by_owner], np.arange(len(found.groups)), side="right")
        for (voice, spots, _), mine in zip(found.groups, np.split(by_owner, ends[:-1]), strict=True):
            samples[mine] = self._samples(voice, spots, number[mine])
        return samples

    def chosen(self, found: Found, batches: int, part: slice, runs: int) -> NDArray[np.int64]:
        """Sort each of ``batches`` equal batches; give the numbers of the positions in a part of each.

        With ``runs`` > 1, a batch is made of that many equal runs of one stream each, which keep their places:
        what a stream has in all of its runs is sorted and cut into them.
        """
        numbers = np.arange(found.count, dtype=np.int64)
        if not self._is_sorted:
            return numbers.reshape(batches, -1)[:, part].ravel()
        if len(found.groups) == 1:
            keys = self._sort_keys(*found.groups[0][:2])
        else:
            keys = np.empty(found.count, dtype=np.uint64)
            for voice, spots, here in found.groups:
                keys[here] = self._sort_keys(voice, spots)
        if runs > 1 and found.streams is not None:
            return _in_runs(found.streams, keys, batches, runs)[:, part].ravel()
        keys <<= _WORD
        keys |= numbers.view(np.uint64)
        packed = keys.reshape(batches, -1)
        packed.sort(axis=1)
        ordered: NDArray[np.int64] = (packed[:, part] & _LOW).ravel().view(np.int64)
        return ordered

    def replacements(self, stream: int, index: int) -> Iterator[int]:
        """Yield the sample ids at the places before a walk's index, nearest first, round the pass that it lies in."""
        walk = self._walks[stream]
        begin, size = walk.pass_of(index)
        place = index - begin
        for first in range(1, size, _REPLACEMENTS_AT_ONCE):
            back = np.arange(first, min(size, first + _REPLACEMENTS_AT_ONCE), dtype=np.int64)
            places = (place - back) % size
            ascending = np.argsort(places)
            ids = np.empty(back.size, dtype=np.int64)
            ids[ascending] = walk.samples(walk.spots(begin, places[ascending]))
            yield from (ids + self.first_ids[stream]).tolist()

    def _samples(self, voice: int, spots: Any, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        if voice < 0 and self._crowd is not None:
            return self._crowd.samples(spots, chosen)
        samples = self._walks[voice].samples(spots, chosen)
        return samples + self.first_ids[voice] if voice else samples

    def _sort_keys(self, voice: int, spots: Any) -> NDArray[np.uint64]:
        if voice < 0 and self._crowd is not None:
            return self._crowd.sort_keys(spots)
        return self._walks[voice].sort_keys(spots)


def _in_runs(
    streams: NDArray[np.int64], keys: NDArray[np.uint64], batches: int, runs: int
) -> NDArray[np.int64]:
    batch = np.repeat(np.arange(batches, dtype=np.int64), keys.size // batches)
    ordered = np.lexsort((keys, streams, batch)).reshape(batches, runs, -1)
    # Run number i of a batch, counted stream by stream, lies where the stable order of labels says.
    places = np.argsort(streams.reshape(batches, runs, -1)[:, :, 0], axis=1, kind="stable")
    placed = np.empty_like(ordered)
    np.put_along_axis(placed, places[:, :, None], ordered, axis=1)
    return placed.reshape(batches, -1)
