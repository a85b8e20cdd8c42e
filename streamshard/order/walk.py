"""The infinite walk of one stream: pass after pass, each a complete shuffled visit of all samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import TopologyError
from streamshard.order.keys import WHOLE_PASS, Key
from streamshard.order.lane import LanePass
from streamshard.order.lanes import (
    MAX_LANES,
    MAX_SCATTERED_WINDOW,
    Lanes,
    cut_lanes,
    default_lanes,
    default_window,
    lane_order,
)
from streamshard.order.live import live_in_lanes, most_pieces
from streamshard.order.passes import Passes, Scattered
from streamshard.order.permutation import SLICED_FROM, Bijection, permutation
from streamshard.order.shuffle import lane_pass, live_blocks, parse_shuffle
from streamshard.order.stream_walk import Spots
from streamshard.order.tracks import step_rows
from streamshard.order.walk_arguments import MAX_SAMPLES, MAX_WINDOW, checked_sizes, whole

ROW_HASH = np.uint64(2654435769)  # 2**32 / golden ratio: neighbouring rows land far apart
_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class _Turn:
    """What is remembered of one pass: the lanes' order and the lanes that were read."""

    def __init__(self, number: int, order: NDArray[np.int64], extra: NDArray[np.int64]) -> None:
        self.number = number
        self.order = order
        self.extra = extra
        # Place of each lane in `order`, and in `extra`, where absence is a place past the end.
        self.place = np.argsort(order, kind="stable")
        self.extra_place = np.full(order.size, order.size, dtype=np.int64)
        self.extra_place[extra] = np.arange(extra.size)
        self.lanes: dict[int, LanePass] = {}
        self.whole: Bijection | NDArray[np.int64] | None = None
        self.passes: Passes | None = None


class Walk:
    """One stream's samples in the order of its passes; index i is place i mod N of pass i ÷ N.

    Holds O(shards) numbers and, for each lane that is read, one block. Pickles without the blocks. Not
    thread-safe: one walk belongs to one reader.

    Args:
        samples_per_shard: samples of each shard in file order, shape (shards,), each >= 0.
        seed: in [0, 2**64).
        stream: ordinal of the stream in its job.
        shuffle: ``sliding``, ``block``, ``shard``, ``full``, ``none``, a name of mosaicml-streaming, or None.
        lanes: C, canonical lanes. Part of the order, so it never depends on the cluster. Default: the largest
            power of two <= min(64, shards / 2). ``full`` and ``none`` have one lane, whatever is given.
        window: k, shards that are mixed at once in a lane. Default: max(2, 128 ÷ C).
        block_size: the same in samples; k = max(1, round(block_size · shards / N)).
        scattered: find samples one by one, see :mod:`streamshard.order.passes`; for streams of a small share. Part of
            the order. Means nothing for ``block``, ``full`` and ``none``.
        cut: what ``single_lanes`` gives for these arguments, of sizes that are known to be good, with ``lanes`` 1.

    Raises:
        ValueError: an argument out of range, or a stream without samples.
        TopologyError: ``lanes`` out of range.
    """

    def __init__(
        self,
        samples_per_shard: NDArray[np.int64],
        *,
        seed: int,
        stream: int = 0,
        shuffle: str | None = "sliding",
        lanes: int | None = None,
        window: int | None = None,
        block_size: int | None = None,
        scattered: bool = False,
        cut: Lanes | None = None,
    ) -> None:
        if cut is None:
            sizes, self.num_samples = checked_sizes(samples_per_shard)
            self.num_shards = int(np.count_nonzero(sizes))
        else:
            sizes, self.num_samples, self.num_shards = (
                samples_per_shard,
                cut.num_samples,
                len(cut.piece_counts),
            )
        self.seed = whole("seed", seed, 0, (1 << 64) - 1)
        self.stream = whole("stream", stream, 0, (1 << 32) - 1)
        self.shuffle = parse_shuffle(shuffle)
        if lanes is not None:
            lanes = whole("lanes (num_canonical_nodes)", lanes, 1, MAX_LANES, TopologyError)
        if window is not None:
            window = whole("window", window, 1, MAX_WINDOW)
        if block_size is not None:
            block_size = whole("shuffle_block_size", block_size, 1, MAX_SAMPLES)
            if window is not None:
                raise ValueError(
                    "window and shuffle_block_size both given: they set the same thing, give one"
                )
        if self.shuffle in ("full", "none"):
            self.lanes, self.window = 1, 1
            self._cut = None
        else:
            self.lanes = default_lanes(self.num_shards) if lanes is None else lanes
            if window is not None:
                self.window = window
            elif block_size is not None:
                wanted = (2 * block_size * self.num_shards + self.num_samples) // (2 * self.num_samples)
                self.window = min(max(1, wanted), MAX_WINDOW)
            else:
                self.window = default_window(self.lanes)
            self._cut = (
                cut_lanes(sizes, self.lanes, seed=self.seed, stream=self.stream) if cut is None else cut
            )
        self.scattered = scattered and self.shuffle in ("sliding", "shard")
        if self.scattered and self.shuffle == "sliding" and self.window > MAX_SCATTERED_WINDOW:
            raise ValueError(
                f"window={self.window} of a scattered walk: expected at most {MAX_SCATTERED_WINDOW} shards"
            )
        self._sizes = sizes
        self._full_rows = self.num_samples // self.lanes
        self._turn: _Turn | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_turn": None}

    def spots(self, first: int, offsets: NDArray[np.int64]) -> Spots:
        """Find the indices ``first + offsets``; ``offsets`` ascend from >= 0 and stay below 2**62.

        ``first`` is a Python integer of any size, so that no product of epoch and samples leaves 64 bits.
        """
        turn, place = divmod(first, self.num_samples)
        places = offsets + place
        if not places.size:
            return Spots(places, places.copy(), [])
        turns: list[tuple[int, int, int]] = []
        lane = np.empty_like(places)
        row = np.empty_like(places)
        begin = 0
        while begin < places.size:
            passes = int(places[begin]) // self.num_samples
            border = (passes + 1) * self.num_samples
            end = places.size if places[-1] < border else int(np.searchsorted(places, border))
            here = places[begin:end] - passes * self.num_samples if passes else places[begin:end]
            self._place(turn + passes, here, lane[begin:end], row[begin:end])
            turns.append((turn + passes, begin, end))
            begin = end
        return Spots(lane, row, turns)

    def renewed(self, *, stream: int, lanes: int, window: int, scattered: bool = False) -> Walk:
        """Give the same walk with another stream number, lanes and window, scattered or not."""
        if (stream, lanes, window, scattered) == (self.stream, self.lanes, self.window, self.scattered):
            return self
        window = max(1, window) if self._cut is not None else 1
        return Walk(
            self._sizes,
            seed=self.seed,
            stream=stream,
            shuffle=self.shuffle,
            lanes=lanes,
            window=window,
            scattered=scattered,
        )

    def scattered_pass(self, turn: int, first_id: int = 0) -> Scattered:
        """Give what the tables of one pass of a scattered walk are made from."""
        if self._cut is None or not self.scattered:
            raise ValueError("this walk is not scattered")
        is_shard = self.shuffle == "shard"
        window = 1 if is_shard else self.window
        is_plain = window == 1 and not is_shard
        return Scattered(self._cut, window, self.seed, self.stream, turn, first_id, is_plain)

    def pass_of(self, index: int) -> tuple[int, int]:
        """Give the first index and the size of the pass that an index lies in."""
        return index // self.num_samples * self.num_samples, self.num_samples

    def pass_number(self, index: int) -> int:
        """Give the number of the pass that an index lies in, from 0."""
        return index // self.num_samples

    def visits(self, turn: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count how often each lane was visited before each place (0 to N) of a pass, shape (places, C)."""
        known = self._turn_of(turn)
        in_rows = self._full_rows * self.lanes
        rows, rest = np.divmod(np.minimum(places, in_rows), self.lanes)
        counts: NDArray[np.int64] = rows[:, None] + (known.place < rest[:, None])
        if places[-1] > in_rows:
            counts += known.extra_place < (places - in_rows)[:, None]
        return counts

    def sort_keys(self, spots: Spots) -> NDArray[np.uint64]:
        """Give the keys, below 2**32, by which positions are sorted inside a batch, shape (n,).

        Lane first, as a fraction of all lanes so that streams of unlike C compare, then a hash of the row.
        """
        keys = spots.row.astype(np.uint64)
        keys &= _LOW
        keys *= ROW_HASH
        keys &= _LOW
        if self.lanes == 1:
            return keys
        keys |= spots.lane.astype(np.uint64) << _WORD
        if self.lanes & (self.lanes - 1):
            keys //= np.uint64(self.lanes)
        else:
            keys >>= np.uint64(self.lanes.bit_length() - 1)
        return keys

    def samples(self, spots: Spots, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Give the stream's sample ids at ``spots``, or at the numbers ``chosen`` of them in that order."""
        lane = spots.lane if chosen is None else spots.lane[chosen]
        row = spots.row if chosen is None else spots.row[chosen]
        if self.shuffle == "none" or not row.size:
            return row
        if len(spots.turns) == 1:
            return self._gather(spots.turns[0][0], lane, row)
        ids = np.empty(row.size, dtype=np.int64)
        number = np.arange(row.size) if chosen is None else chosen
        for turn, begin, end in spots.turns:
            here = np.flatnonzero((number >= begin) & (number < end))
            if here.size:
                ids[here] = self._gather(turn, lane[here], row[here])
        return ids

    @property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """Samples of each shard in file order, shape (shards,)."""
        return self._sizes

    @property
    def block_rows(self) -> int:
        """Rows of a lane that a block holds, on the average; all where single places can be computed."""
        if self._cut is None or self.scattered:
            return self.num_samples
        if self.shuffle == "block":
            return max(1, self.window * self.num_samples // self.num_shards)
        tracks = 1 if self.shuffle == "shard" else min(self.window, most_pieces(self._cut))
        return max(1, min(self._full_rows, step_rows(tracks)))

    def live_shards(self, num_nodes: int = 1) -> int:
        """Give how many shards a node needs at once: of which some samples were given and some are to come."""
        if self._cut is None:
            return self.num_shards if self.shuffle == "full" else 1
        window = 1 if self.shuffle == "shard" else min(self.window, most_pieces(self._cut))
        lanes = -(-self.lanes // num_nodes)
        if self.scattered:
            # Each lane's first piece may be cut, and so may shards at its borders; they wait for their other parts.
            return min(self.num_shards, lanes * window + 2 * (lanes - 1))
        blocks = live_blocks(self._cut, self.window) if self.shuffle == "block" else None
        return live_in_lanes(self._cut, window, lanes, self.num_shards, blocks)

    def lane_of_pass(self, turn: int, lane: int) -> LanePass:
        """Give one lane's blocks in pass ``turn``; for ``sliding``, ``block`` and ``shard``."""
        if self._cut is None or self.scattered:
            what = "a scattered walk" if self.scattered else f"shuffle={self.shuffle!r}"
            raise ValueError(f"{what} has no lanes of blocks")
        return lane_pass(
            self._cut,
            lane,
            shuffle=self.shuffle,
            window=self.window,
            seed=self.seed,
            stream=self.stream,
            turn=turn,
        )

    def piece_rows(
        self, turn: int, lane: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Give for each piece of a lane in pass ``turn``: its first sample id, the rows [begin, end) of its uses."""
        if self.scattered:
            return Passes.of([self.scattered_pass(turn)]).piece_rows(lane)
        return self.lane_of_pass(turn, lane).piece_rows()

    def lane_samples(self, lane: int) -> NDArray[np.int64]:
        """Give the half-open spans of sample ids that a lane holds in every pass, shape (pieces, 2)."""
        if self._cut is None:
            return np.array([[0, self.num_samples]], dtype=np.int64)
        pieces = slice(int(self._cut.lane_pieces[lane]), int(self._cut.lane_pieces[lane + 1]))
        begins = self._cut.piece_begins[pieces]
        return np.stack((begins, begins + self._cut.piece_counts[pieces]), axis=1)

    def _turn_of(self, number: int) -> _Turn:
        if self._turn is None or self._turn.number != number:
            order = lane_order(self.lanes, seed=self.seed, stream=self.stream, turn=number)
            sizes = np.diff([lane * self.num_samples // self.lanes for lane in range(self.lanes + 1)])
            self._turn = _Turn(number, order, order[(sizes > self._full_rows)[order]])
        return self._turn

    def _place(
        self, turn: int, places: NDArray[np.int64], lane: NDArray[np.int64], row: NDArray[np.int64]
    ) -> None:
        """Write lane and row of each place of a pass."""
        if self.lanes == 1:
            lane[:] = 0
            row[:] = places
            return
        known = self._turn_of(turn)
        if self.lanes & (self.lanes - 1):
            np.floor_divide(places, self.lanes, out=row)
            lane[:] = known.order[places - row * self.lanes]
        else:
            np.right_shift(places, self.lanes.bit_length() - 1, out=row)
            lane[:] = known.order[places & (self.lanes - 1)]
        in_rows = self._full_rows * self.lanes
        if places[-1] >= in_rows:
            begin = int(np.searchsorted(places, in_rows))
            lane[begin:] = known.extra[places[begin:] - in_rows]
            row[begin:] = self._full_rows

    def _gather(self, turn: int, lane: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        known = self._turn_of(turn)
        if self.shuffle == "full":
            return self._whole_pass(known, row)
        if self.scattered:
            if known.passes is None:
                known.passes = Passes.of([self.scattered_pass(turn)])
            return known.passes.find(np.zeros(row.size, dtype=np.int64), lane, row)
        lowest = np.full(self.lanes, self.num_samples, dtype=np.int64)
        highest = np.full(self.lanes, -1, dtype=np.int64)
        np.minimum.at(lowest, lane, row)
        np.maximum.at(highest, lane, row)
        lanes = np.flatnonzero(highest >= 0)
        counts = highest[lanes] - lowest[lanes] + 1
        base = np.empty(self.lanes, dtype=np.int64)
        base[lanes] = np.cumsum(counts) - counts - lowest[lanes]
        parts: list[NDArray[np.int64]] = []
        spans = zip(lanes.tolist(), lowest[lanes].tolist(), highest[lanes].tolist(), strict=True)
        for number, low, high in spans:
            blocks = known.lanes.get(number)
            if blocks is None:
                blocks = known.lanes[number] = self.lane_of_pass(turn, number)
            parts += blocks.rows(low, high + 1)
        flat = np.concatenate(parts)
        ids: NDArray[np.int64] = flat[base[lane] + row]
        return ids

    def _whole_pass(self, known: _Turn, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if known.whole is None:
            key = Key(WHOLE_PASS, self.seed, self.stream, known.number)
            if self.num_samples >= SLICED_FROM:
                known.whole = Bijection(key, self.num_samples)
            else:
                known.whole = permutation(key, self.num_samples)
        return known.whole.at(places) if isinstance(known.whole, Bijection) else known.whole[places]
