"""When each shard is needed next: what a cache must know to give up the one that is needed last.

A piece of a lane is used in a run of rows that its shuffle bounds, so a few numbers for each piece of a pass say
where its shard's uses begin and end. Exact to a block's first rows; nothing is computed for single samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamshard.order.epoch import Order
from streamshard.order.fixed import FixedWalk
from streamshard.order.stream_walk import StreamWalk
from streamshard.order.timeline import Segment
from streamshard.order.walk import Walk


@dataclass(frozen=True, slots=True)
class _Span:
    """The uses of a stream's shards in one pass: places [begin, end) of shard ``shards[i]``, relative to a pass."""

    shards: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


class NextUses:
    """How far away the next use of each shard is, as seen from a position of an epoch. Thread-safe.

    Args:
        order: the order.
        part: share of the lanes, [begin, end) in [0, 1], that this node reads. A lane beside it still counts.
        slack: positions for which a shard counts as used after its last use: other readers of the node may lag.
    """

    def __init__(self, order: Order, *, part: tuple[float, float] = (0.0, 1.0), slack: int = 0) -> None:
        self._order = order
        self._part = part
        self._slack = slack
        # The spans of a stream's passes by pass: a pass is asked for until it is over, and so is the next one.
        self._known: list[dict[int, _Span]] = [{} for _ in order.walks]

    def distances(self, epoch: int, start: int, position: int) -> list[NDArray[np.float64]]:
        """Give, for each stream, the positions until each of its shards is used next, shape (shards,).

        What is in use has less than 1, the less the longer it stays so; what the node does not need again, inf.

        Args:
            epoch: the epoch.
            start: where in it the iteration began.
            position: where in it it is, from ``start`` to the epoch's end.
        """
        segments = self._order.segments(epoch, start)
        segment = next((each for each in segments if position < each.end), segments[-1])
        return [
            self._of_stream(number, walk, segment, position) for number, walk in enumerate(self._order.walks)
        ]

    def _of_stream(
        self, number: int, walk: StreamWalk, segment: Segment, position: int
    ) -> NDArray[np.float64]:
        share = segment.samples[number] / max(1, segment.end - segment.begin)
        if not share:
            return np.full(_shards_of(walk).size, np.inf)
        cursor = segment.cursors[number] + int((position - segment.begin) * share)
        slack = int(self._slack * share)
        found = np.full(_shards_of(walk).size, np.inf)
        for base, span in self._spans(number, walk, max(0, cursor - slack)):
            # From the passes to come to the present one: the nearer use counts.
            begins, ends = span.begins + (base - cursor), span.ends + (base - cursor)
            ahead = np.where(
                begins > 0,
                1 + begins / share,
                1 / (2 + np.maximum(ends, 0) / share),
            )
            here = ends + slack > 0
            np.minimum.at(found, span.shards[here], ahead[here])
        return found

    def _spans(self, number: int, walk: StreamWalk, index: int) -> list[tuple[int, _Span]]:
        """The spans of the pass that an index lies in and of the next ones, until each shard has come up."""
        known = self._known[number]
        found: list[tuple[int, _Span]] = []
        kept: dict[int, _Span] = {}
        begin = index
        for _ in range(2 if isinstance(walk, Walk) else 3):
            begin, size = walk.pass_of(begin)
            kept[begin] = known.get(begin) or self._span(walk, begin)
            found.append((begin, kept[begin]))
            begin += size
        self._known[number] = kept
        return found

    def _span(self, walk: StreamWalk, begin: int) -> _Span:
        if isinstance(walk, FixedWalk):
            inner, turn = walk.inner_pass(begin)
            return _pass_span(inner, turn, self._part)
        if not isinstance(walk, Walk):
            raise TypeError(f"{type(walk).__name__}: not known when its shards are used")
        return _pass_span(walk, begin // walk.num_samples, self._part)


def _shards_of(walk: StreamWalk) -> NDArray[np.int64]:
    sizes: NDArray[np.int64] = walk.samples_per_shard
    return sizes


def _pass_span(walk: Walk, turn: int, part: tuple[float, float]) -> _Span:
    sizes = walk.samples_per_shard
    ends = np.cumsum(sizes)
    used = np.flatnonzero(sizes)
    if walk.shuffle == "none":
        return _Span(used, (ends - sizes)[used], ends[used])
    if walk.shuffle == "full":
        return _Span(used, np.zeros(used.size, dtype=np.int64), np.full(used.size, walk.num_samples))
    low, high = part
    shards, begins, stops = [], [], []
    for lane in range(walk.lanes):
        # A lane beside the node's own is met now and then: a batch holds the lanes in their share to within one.
        if walk.lanes > 1 and not (lane + 2 > low * walk.lanes and lane - 1 < high * walk.lanes):
            continue
        samples, first, last = walk.piece_rows(turn, lane)
        shards.append(np.searchsorted(ends, samples, side="right"))
        begins.append(first * walk.lanes)
        stops.append(last * walk.lanes)
    return _Span(np.concatenate(shards), np.concatenate(begins), np.concatenate(stops))


def live_shards(order: Order, *, parts: int = 1) -> int:
    """Give the shards that one of so many equal parts of each batch needs at once, over all streams in use."""
    wanted = zip(order.walks, order.samples_per_epoch, strict=True)
    return sum(walk.live_shards(parts) for walk, samples in wanted if samples)


def live_nbytes(order: Order, mean_shard_nbytes: Sequence[float], *, num_nodes: int = 1) -> int:
    """Give the bytes of shards that a node is expected to need at once, over all streams that the order uses."""
    wanted = zip(order.walks, order.samples_per_epoch, mean_shard_nbytes, strict=True)
    return int(sum(walk.live_shards(num_nodes) * mean for walk, samples, mean in wanted if samples))
