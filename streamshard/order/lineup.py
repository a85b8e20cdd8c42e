"""Which stream stands at each position of an epoch, and at which index of its walk: the batching methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan
from streamshard.order.mixing import Labels, SampleLabels, UnitLabels
from streamshard.order.timeline import Quotas, Segment, Splice, Timeline

BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")

_LISTED = 20

Unit = tuple[int, int]
"""Samples of a global batch, and of those in it that are of one stream."""


class Standing(NamedTuple):
    """Where the streams stand at a position of an epoch.

    Attributes:
        segment: the segment that the position lies in; at the end of an epoch the last one.
        cursors: each stream's next walk index.
        taken: what each stream has given to the epoch.
    """

    segment: Segment
    cursors: tuple[int, ...]
    taken: tuple[int, ...]


class Part(NamedTuple):
    """A segment as it is read: its labels (None for one stream), and what was taken of the epoch before it."""

    segment: Segment
    labels: Labels | None
    taken: tuple[int, ...]


class Lineup:
    """The streams' turns in every epoch. Arguments as those of ``Order``; raises ValueError as it does."""

    def __init__(self, quotas: Quotas, *, batching: str, seed: int, splice: Splice | None) -> None:
        if batching not in BATCHINGS:
            raise ValueError(f"batching_method={batching!r}: expected one of {', '.join(BATCHINGS)}")
        self.is_single = len(quotas.per_epoch) == 1
        self.batching = batching
        self.timeline = Timeline(quotas, splice)
        self._by_unit = not self.is_single and batching in ("per_stream", "device_per_stream")
        self._seed = seed
        self._held: tuple[object, tuple[Part, ...]] | None = None
        inside = quotas.changes_inside_epochs() if self._by_unit else []
        if inside:
            more = f" and {len(inside) - _LISTED} more" if len(inside) > _LISTED else ""
            raise ValueError(
                f"batching_method={batching!r}: weights can change where an epoch begins, not at the positions "
                f"{inside[:_LISTED]}{more} of epochs of {quotas.num_samples} samples, where a batch may not end; move "
                "them to multiples of the epoch's size, or use 'random' or 'stratified'"
            )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": None}

    def unit(self, global_batch_size: int, ranks: int) -> Unit | None:
        """Give the size of what is of one stream in each global batch; None where samples take turns."""
        if not self._by_unit:
            return None
        unit = global_batch_size if self.batching == "per_stream" else global_batch_size // ranks
        return global_batch_size, unit

    def runs(self, ranks: int) -> int:
        """Give the runs of one stream each that a full batch is made of; 1: it is sorted as a whole."""
        return ranks if self._by_unit and self.batching == "device_per_stream" else 1

    def plan(
        self, epoch: int, start: int, *, global_batch_size: int, ranks: int = 1, remainder: str = "pad"
    ) -> BatchPlan:
        """Give the batches of an epoch for an iteration that begins at position ``start`` of it.

        Raises:
            TopologyError, ValueError: as :class:`BatchPlan`; or batches of ranks that are not equal, where each
                of them must be of one stream.
        """
        size = self.timeline.size(epoch, start)
        plan = BatchPlan(size, global_batch_size, ranks, start, remainder if not self._by_unit else "pad")
        if not self._by_unit:
            return plan
        if self.batching == "device_per_stream" and global_batch_size % ranks:
            raise TopologyError(
                f"batching_method='device_per_stream' needs ranks with equal batches: {ranks} ranks do not divide "
                f"global_batch_size={global_batch_size}; use 'per_stream' or another size"
            )
        part = self._parts(epoch, start, self.unit(global_batch_size, ranks), ranks)[0]
        short: tuple[int, ...] = ()
        if isinstance(part.labels, UnitLabels):
            short = part.labels.rest(start - part.segment.begin)
        return BatchPlan(size, global_batch_size, ranks, start, remainder, short, is_by_stream=True)

    def standing(self, plan: BatchPlan, epoch: int, position: int) -> Standing:
        """Tell where the streams stand at a position >= ``plan.start`` of an epoch that is read by a plan."""
        parts = self.parts(plan, epoch)
        part = next((each for each in parts if position < each.segment.end), parts[-1])
        inside = position - part.segment.begin
        given = (inside,) if part.labels is None else part.labels.before(epoch, inside)
        return Standing(part.segment, _sum(part.segment.cursors, given), _sum(part.taken, given))

    def parts(self, plan: BatchPlan, epoch: int) -> tuple[Part, ...]:
        """Give the segments of an epoch as an iteration reads them that follows a plan."""
        return self._parts(epoch, plan.start, self.unit(plan.global_batch_size, plan.ranks), plan.ranks)

    def at(self, plan: BatchPlan, epoch: int, position: int) -> tuple[int, int]:
        """Give stream and walk index of a position of the epoch."""
        parts = self.parts(plan, epoch)
        first = parts[0].segment
        labelled = self.labelled(parts, epoch, position, np.zeros(1, dtype=np.int64))
        if labelled is None:
            return 0, first.cursors[0] + position - first.begin
        stream = int(labelled[0][0])
        return stream, first.cursors[stream] + int(labelled[1][0])

    def labelled(
        self, parts: Sequence[Part], epoch: int, position: int, offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Give streams and ranks of position + offsets, each of shape (n,); None where there is one stream.

        ``offsets`` ascend. Ranks count from the cursors of the first part.
        """
        if self.is_single:
            return None
        found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        base = parts[0].segment.cursors
        for segment, labels, _ in parts:
            low, high = np.searchsorted(offsets, [segment.begin - position, segment.end - position]).tolist()
            if low == high or labels is None:
                continue
            streams, ranks = labels.at(epoch, position - segment.begin, offsets[low:high])
            if segment.cursors != base:
                more = np.array([b - a for a, b in zip(base, segment.cursors, strict=True)], dtype=np.int64)
                ranks = ranks + more[streams]
            found.append((streams, ranks))
        if len(found) == 1:
            return found[0]
        return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])

    def _parts(self, epoch: int, start: int, unit: Unit | None, ranks: int) -> tuple[Part, ...]:
        key = (epoch, start, unit, ranks)
        if self._held is not None and self._held[0] == key:
            return self._held[1]
        splice = self.timeline.splice
        taken = (0,) * len(self.timeline.quotas.per_epoch)
        if splice is not None and epoch == splice.epoch and start >= splice.begin:
            taken = splice.taken
        parts: list[Part] = []
        for segment in self.timeline.segments(epoch, start):
            part = Part(segment, self._labels(segment, segment.unit or unit), taken)
            if unit is not None:
                part = self._counted_off(part, epoch, start, unit, ranks)
            parts.append(part)
            taken = _sum(part.taken, part.segment.samples)
        self._held = (key, tuple(parts))
        return self._held[1]

    def _labels(self, segment: Segment, unit: Unit | None) -> Labels | None:
        if self.is_single:
            return None
        return labels_of(
            segment.samples, batching=self.batching, seed=self._seed, place=segment.begin, unit=unit
        )

    def _counted_off(self, part: Part, epoch: int, start: int, unit: Unit, ranks: int) -> Part:
        """Begin a segment anew at ``start`` where its batches were of another size, or none can go on there.

        Amid a shorter batch one can if all that follow are of fewer samples than ranks: ``exact`` deals them on.
        """
        segment, labels = part.segment, part.labels
        inside = start - segment.begin
        if inside <= 0 or not isinstance(labels, UnitLabels):
            return part if segment.unit in (None, unit) else part._replace(labels=self._labels(segment, unit))
        is_dealt = (
            inside >= labels.full_batches * labels.batch and max(labels.rest(inside), default=0) < ranks
        )
        if segment.unit in (None, unit) and (is_dealt or labels.is_border(inside)):
            return part
        given = labels.before(epoch, inside)
        rest = tuple(a - b for a, b in zip(segment.samples, given, strict=True))
        if not any(rest):  # the end of the epoch
            return part
        anew = Segment(start, rest, _sum(segment.cursors, given), unit)
        return Part(anew, self._labels(anew, unit), _sum(part.taken, given))


def labels_of(samples: Sequence[int], *, batching: str, seed: int, place: int, unit: Unit | None) -> Labels:
    """Make the labels of a segment of several streams that begins at position ``place`` of its epoch."""
    if unit is not None:
        return UnitLabels(samples, unit=unit[1], units_per_batch=unit[0] // unit[1])
    return SampleLabels(samples, seed=seed, permuted=batching == "random", place=place)


def _sum(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))
