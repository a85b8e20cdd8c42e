"""Very many scattered streams at once: one look-up for the samples of all, in place of one for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.order.passes import Passes, joined
from streamshard.order.walk import ROW_HASH, Walk

# An epoch that newly meets one in so many streams soon meets all: their tables are made together.
_ALL_FROM = 16
_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class CrowdSpots:
    """Where some positions lie; all arrays of shape (n,).

    Attributes:
        passes: the passes that they lie in.
        number: each one's pass.
        lane, row: as in ``Spots``.
        lanes: lanes of each one's stream.
    """

    passes: Passes
    number: NDArray[np.int64]
    lane: NDArray[np.int64]
    row: NDArray[np.int64]
    lanes: NDArray[np.int64]


class Crowd:
    """Some scattered walks of one order. Gives the same samples as each walk by itself.

    Holds the tables of the passes that were read last. Pickles without them.

    Args:
        walks: scattered ones.
        numbers: the stream numbers that labels have for them, ascending.
        first_ids: what is added to each one's sample ids.
        streams: of the order, walks outside the crowd included.
    """

    def __init__(
        self, walks: Sequence[Walk], numbers: Sequence[int], first_ids: Sequence[int], streams: int
    ) -> None:
        self._walks = tuple(walks)
        self._numbers = tuple(numbers)
        self._first_ids = tuple(first_ids)
        # By number of stream, so that labels need no translation; entries of other streams are never looked at.
        self._walk_of = np.zeros(streams, dtype=np.int64)
        self._walk_of[list(numbers)] = np.arange(len(walks))
        self._sizes = np.ones(streams, dtype=np.int64)
        self._sizes[list(numbers)] = [walk.num_samples for walk in walks]
        self._lanes = np.ones(streams, dtype=np.int64)
        self._lanes[list(numbers)] = [walk.lanes for walk in walks]
        self._one_lane = all(walk.lanes == 1 for walk in walks)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("_cursors", "_turns", "_places", "_passes", "_held", "_number_of")
        return {key: value for key, value in self.__dict__.items() if key not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._cursors: Sequence[int] | None = None
        self._turns: list[int] = []
        self._places = np.zeros(self._sizes.size, dtype=np.int64)
        self._passes: Passes | None = None
        # Stream and turn of each pass in the tables, in their order; and by turns after a cursor's, its number.
        self._held: list[tuple[int, int]] = []
        self._number_of: dict[int, NDArray[np.int64]] = {}

    def spots(
        self, cursors: Sequence[int], streams: NDArray[np.int64], ranks: NDArray[np.int64]
    ) -> CrowdSpots:
        """Find the indices ``cursors[stream] + rank`` of walks.

        Args:
            cursors: a walk index for each stream of the order; Python integers of any size. The same tuple, not an
                equal one, saves work.
            streams: numbers of streams of the crowd, shape (n,).
            ranks: each at least 0, below 2**62.
        """
        self._begin_at(cursors)
        places = self._places[streams]
        places += ranks
        sizes = self._sizes[streams]
        chosen: list[tuple[int, slice | NDArray[np.int64]]] = [(0, slice(None))]
        if (places >= sizes).any():
            turn = places // sizes
            places -= turn * sizes
            by_turn = np.argsort(turn, kind="stable")
            turn = turn[by_turn]
            borders = np.flatnonzero(turn[1:] != turn[:-1]) + 1
            chosen = list(zip(turn[[0, *borders]].tolist(), np.split(by_turn, borders), strict=True))
        self._hold([(n, streams[here]) for n, here in chosen])
        number = np.empty(places.size, dtype=np.int64)
        for n, here in chosen:
            number[here] = self._numbers_of(n)[streams[here]]
        passes = self._tables()
        if self._one_lane:
            lanes = np.broadcast_to(np.int64(1), places.shape)
            return CrowdSpots(passes, number, np.zeros_like(places), places, lanes)
        lanes = self._lanes[streams]
        row = places // lanes
        visit = places - row * lanes + passes.firsts[number, 1]
        lane = np.where(row < sizes // lanes, passes.lane_orders[visit], passes.longer[visit])
        return CrowdSpots(passes, number, lane, row, lanes)

    def sort_keys(self, spots: CrowdSpots) -> NDArray[np.uint64]:
        """As :meth:`Walk.sort_keys`."""
        keys = spots.row.astype(np.uint64)
        keys &= _LOW
        keys *= ROW_HASH
        keys &= _LOW
        if not self._one_lane:
            keys |= spots.lane.astype(np.uint64) << _WORD
            keys //= spots.lanes.astype(np.uint64)
        return keys

    def samples(self, spots: CrowdSpots, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Give the order's sample ids at ``spots``, or at the numbers ``chosen`` of them in that order."""
        if chosen is None:
            return spots.passes.find(spots.number, spots.lane, spots.row)
        return spots.passes.find(spots.number[chosen], spots.lane[chosen], spots.row[chosen])

    def _begin_at(self, cursors: Sequence[int]) -> None:
        if cursors is self._cursors:
            return
        pairs = [
            divmod(cursors[number], walk.num_samples)
            for number, walk in zip(self._numbers, self._walks, strict=True)
        ]
        self._turns = [turn for turn, _ in pairs]
        self._places[list(self._numbers)] = [place for _, place in pairs]
        self._cursors = cursors
        self._number()

    def _tables(self) -> Passes:
        if self._passes is None:
            raise ValueError("no pass was begun")
        return self._passes

    def _hold(self, met: Sequence[tuple[int, NDArray[np.int64]]]) -> None:
        """Have the tables of passes: so many turns after the cursors', and which streams are met there."""
        missing: list[tuple[int, int]] = []
        for after, streams in met:
            numbers = self._numbers_of(after)
            if (numbers[streams] < 0).any():
                flags = np.zeros(numbers.size, dtype=bool)
                flags[streams] = True
                flags &= numbers < 0
                if not after and len(met) == 1 and _ALL_FROM * int(flags.sum()) >= len(self._walks):
                    flags[list(self._numbers)] = True
                    flags &= numbers < 0
                walks = self._walk_of[np.flatnonzero(flags)].tolist()
                missing += [(walk, self._turns[walk] + after) for walk in walks]
        if not missing:
            return
        # Of the streams that are met, only the passes that they are in are kept.
        lowest: dict[int, int] = {}
        for after, streams in met:
            for walk in self._walk_of[np.flatnonzero(np.bincount(streams))].tolist():
                lowest.setdefault(walk, self._turns[walk] + after)
        for walk, turn in missing:
            lowest.setdefault(walk, turn)
        kept = [
            place
            for place, (walk, turn) in enumerate(self._held)
            if walk not in lowest or 0 <= turn - lowest[walk] <= met[-1][0]
        ]
        given = [self._walks[walk].scattered_pass(turn, self._first_ids[walk]) for walk, turn in missing]
        parts = [] if self._passes is None else [self._passes.part(*run) for run in _runs(kept)]
        self._passes = joined([*parts, Passes.of(given)])
        self._held = [*(self._held[place] for place in kept), *missing]
        self._number()

    def _number(self) -> None:
        self._number_of = {}
        for number, (walk, turn) in enumerate(self._held):
            after = turn - self._turns[walk]
            if after not in self._number_of:
                self._number_of[after] = np.full(self._sizes.size, -1, dtype=np.int64)
            self._number_of[after][self._numbers[walk]] = number

    def _numbers_of(self, after: int) -> NDArray[np.int64]:
        """Give, by number of stream, the number of its pass so many turns after its cursor; -1: not in the tables."""
        found = self._number_of.get(after)
        return np.full(self._sizes.size, -1, dtype=np.int64) if found is None else found


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Cut ascending numbers into runs [begin, end) of neighbours."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs
