"""Lanes: the fixed parts of a stream that are walked side by side, and the order in which they take turns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamshard.order.keys import LANE_ORDER, SHARD_ORDER, Key
from streamshard.order.permutation import permutation, permutations

MAX_DEFAULT_LANES = 64
MAX_LANES = 1 << 16
LIVE_LANES = 1024  # lanes wanted at most over all streams of a job
MAX_SCATTERED_WINDOW = 8  # a scattered pass has a table of so many entries a piece
LIVE_SHARDS = 128  # shards wanted live at once over the whole job; 8 GiB at 64 MiB each


def default_lanes(num_shards: int, samples: int = 1, all_samples: int = 1) -> int:
    """Give the number of lanes of a stream that has ``samples`` of ``all_samples`` an epoch.

    It is the largest power of two <= min(64, shards / 2, 1024 · share), at least 1. The last bound is met only by
    streams of less than a sixteenth: each lane keeps at least one shard live, and lanes of very many streams would
    keep nearly every shard so.
    """
    most = min(MAX_DEFAULT_LANES, num_shards // 2, LIVE_LANES * samples // max(1, all_samples))
    return 1 << (most.bit_length() - 1) if most else 1


def default_window(lanes: int, samples: int = 1, all_samples: int = 1, *, is_mixed: bool = False) -> int:
    """Give the shards live at once in a lane of a stream that has ``samples`` of ``all_samples`` an epoch.

    ``is_mixed``: each batch is of all streams. One shard a lane is then enough for streams of a small share, which
    together keep up to a thousand live.
    """
    least = 1 if is_mixed and is_scattered_by_default(samples, all_samples) else 2
    return max(least, LIVE_SHARDS * samples // (max(1, all_samples) * lanes))


def is_scattered_by_default(samples: int, all_samples: int) -> bool:
    """Whether samples of a stream with ``samples`` of ``all_samples`` an epoch are best computed one by one.

    It is so for streams of less than a sixteenth, the same that have fewer lanes.
    """
    return LIVE_LANES * samples < MAX_DEFAULT_LANES * all_samples


@dataclass(frozen=True, slots=True)
class Lanes:
    """The pieces of a stream, lane by lane in run order: shards and, at borders of lanes, parts of shards.

    Attributes:
        num_samples: N, samples of the stream.
        count: C, number of lanes.
        piece_begins: first sample id of each piece, in file order numbering, shape (pieces,).
        piece_counts: samples of each piece, all > 0, shape (pieces,).
        lane_pieces: pieces of lane c are lane_pieces[c] … lane_pieces[c+1]-1, shape (C+1,).
        border_cuts: whether the border at which lane c begins cuts a shard, and False for the end, shape (C+1,).
    """

    num_samples: int
    count: int
    piece_begins: NDArray[np.int64]
    piece_counts: NDArray[np.int64]
    lane_pieces: NDArray[np.int64]
    border_cuts: NDArray[np.bool_]

    @property
    def full_rows(self) -> int:
        """Rows that visit every lane: ⌊N/C⌋."""
        return self.num_samples // self.count

    @property
    def extra(self) -> int:
        """Places of the last, shorter row: N mod C."""
        return self.num_samples % self.count

    def size(self, lane: int) -> int:
        """Samples of one lane."""
        return lane_border(self.num_samples, self.count, lane + 1) - lane_border(
            self.num_samples, self.count, lane
        )


_UNCUT = np.zeros(2, dtype=np.bool_)


def lane_border(num_samples: int, count: int, lane: int) -> int:
    """Give ⌊cN/C⌋, where lane c begins in run order. Python integers: the product may pass 2**63."""
    return lane * num_samples // count


def cut_lanes(samples_per_shard: NDArray[np.int64], count: int, *, seed: int, stream: int) -> Lanes:
    """Permute a stream's shards, once per run, and cut them into ``count`` lanes; empty shards vanish."""
    num_shards = samples_per_shard.size
    if count == 1 and num_shards:
        # What follows comes to the same; this is a tenth of the work, and there may be a thousand streams.
        return single_lanes([samples_per_shard], [stream], seed=seed)[0]
    order = permutation(Key(SHARD_ORDER, seed, stream), num_shards)
    shard_begins = np.cumsum(samples_per_shard) - samples_per_shard
    run_ends = np.cumsum(samples_per_shard[order])
    num_samples = int(run_ends[-1]) if num_shards else 0
    borders = np.array([lane_border(num_samples, count, lane) for lane in range(count + 1)], dtype=np.int64)
    cuts = np.concatenate((run_ends, borders))
    cuts.sort(
        kind="stable"
    )  # merges two sorted runs; np.unique would hash them, at some twenty times the cost
    cuts = cuts[np.diff(cuts, prepend=-1) > 0]
    begins = cuts[:-1]
    slot = np.searchsorted(run_ends, begins, side="right")
    shard = order[slot]
    run_begin = run_ends[slot] - samples_per_shard[shard]
    return Lanes(
        num_samples=num_samples,
        count=count,
        piece_begins=shard_begins[shard] + (begins - run_begin),
        piece_counts=np.diff(cuts),
        lane_pieces=np.searchsorted(cuts, borders).astype(np.int64),
        border_cuts=_cuts(run_ends, borders),
    )


def single_lanes(
    samples_per_shard: Sequence[NDArray[np.int64]], streams: Sequence[int], *, seed: int
) -> list[Lanes]:
    """Do what ``cut_lanes`` does for streams of one or more shards and one lane each, in a third of the time."""
    sizes = np.concatenate(samples_per_shard)
    counts = [each.size for each in samples_per_shard]
    ends = np.cumsum(counts)
    shard_begins = np.cumsum(sizes) - sizes
    first_shards = ends - counts
    first_samples = shard_begins[first_shards]
    order = np.empty_like(sizes)
    for count in set(counts):
        those = [number for number, each in enumerate(counts) if each == count]
        found = permutations([Key(SHARD_ORDER, seed, streams[number]) for number in those], count)
        first = first_shards[those][:, None]
        order[first + np.arange(count)] = found + first
    if not sizes.all():
        order = order[sizes[order] > 0]
        ends = np.cumsum([np.count_nonzero(each) for each in samples_per_shard])
    piece_counts = sizes[order]
    piece_begins = shard_begins[order] - np.repeat(first_samples, np.diff(ends, prepend=0))
    num_samples = np.diff(first_samples, append=shard_begins[-1] + sizes[-1]).tolist()
    bounds = itertools.pairwise([0, *ends.tolist()])
    return [
        Lanes(
            num_samples=total,
            count=1,
            piece_begins=piece_begins[begin:end],
            piece_counts=piece_counts[begin:end],
            lane_pieces=np.array((0, end - begin)),
            border_cuts=_UNCUT,
        )
        for total, (begin, end) in zip(num_samples, bounds, strict=True)
    ]


def _cuts(run_ends: NDArray[np.int64], borders: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say which borders lie inside a shard."""
    if not run_ends.size:
        return np.zeros(borders.size, dtype=np.bool_)
    slot = np.minimum(np.searchsorted(run_ends, borders), run_ends.size - 1)
    inside: NDArray[np.bool_] = (borders > 0) & (run_ends[slot] != borders)
    return inside


def interleave(first: int, total: int, offset: int) -> NDArray[np.bool_]:
    """Say which of ``total`` positions belong to the first of two parts, which has ``first`` of them.

    Position p does iff ⌊((p+1)·first + offset)/total⌋ > ⌊(p·first + offset)/total⌋, offset in [0, total). Any
    run of positions then holds the first part's share of them to within one. Shape (total,).
    """
    steps = (np.arange(total + 1, dtype=np.int64) * first + offset) // total
    return steps[1:] > steps[:-1]


def lane_order(count: int, *, seed: int, stream: int, turn: int) -> NDArray[np.int64]:
    """Give λ: the lanes in the order in which each row of pass ``turn`` visits them, shape (count,).

    λ of a range of lanes is λ of its first half and λ of the rest, interleaved; the offsets are keyed random
    words, drawn in the order range, first half, rest. So every run of places holds every half, quarter … of
    the lanes in its share.
    """
    words = iter(Key(LANE_ORDER, seed, stream, turn).words(max(0, count - 1)).tolist())

    def order(begin: int, end: int) -> NDArray[np.int64]:
        total = end - begin
        if total == 1:
            return np.array([begin], dtype=np.int64)
        half = total // 2
        chosen = interleave(half, total, next(words) % total)
        merged = np.empty(total, dtype=np.int64)
        merged[chosen] = order(begin, begin + half)
        merged[~chosen] = order(begin + half, end)
        return merged

    return order(0, count)


def bit_reversed(lane: int, count: int) -> tuple[int, int]:
    """Give bitrev(lane) / 2**bits as (numerator, denominator), where ``bits`` is that of ``count`` lanes.

    For a power of two this is bitrev(c)/C; for other counts the same sequence, which stays below 1.
    """
    bits = (count - 1).bit_length()
    return int(f"{lane:0{bits}b}"[::-1], 2) if bits else 0, 1 << bits
