"""An epoch's global order: which samples of which stream are in which batch of which rank."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan
from streamshard.order.fixed import FixedWalk
from streamshard.order.lineup import BATCHINGS, Lineup, Part, Standing, Unit
from streamshard.order.rank_batches import RankBatches
from streamshard.order.share import batches_at_once, has_shortcut, share
from streamshard.order.stream_walk import StreamWalk
from streamshard.order.timeline import Quotas, Segment, Splice
from streamshard.order.voices import Found, Voices
from streamshard.order.walk import Walk

__all__ = ["BATCHINGS", "Order"]

# Positions handled at once: temporaries of some tens of MiB at most, whatever is asked for in one call.
_CHUNK = 1 << 18
_CHUNK_OF_MANY = 1 << 16  # where each is of another stream, temporaries are best kept small


class Order:
    """The order of every epoch: a pure function of the walks, the epoch and the position.

    Epoch e of a stream that gives n samples an epoch takes the indices [e·n, (e+1)·n) of its walk, so more
    samples than the stream has run on into its next pass, and fewer go on where the last epoch stopped. With a
    ``splice``, the run goes on from there under other quotas instead.

    Args:
        walks: one walk for each stream, all of one seed and each with a ``stream`` number of its own.
        samples_per_epoch: n of each stream, one at least > 0; None: each walk's ``num_samples``. Or all that
            epochs take, as :class:`Quotas`.
        batching: which stream the sample at a position is of. ``stratified``: every run of positions holds each
            stream in its share; ``random``: the same, permuted in runs of 4,096; ``per_stream``: every global
            batch is of one stream; ``device_per_stream``: every batch of one rank is. Means nothing for one stream.
        splice: where the run went on from a state under other quotas.

    Raises:
        ValueError: no walk, walks that do not go together, or numbers that do not fit them.
    """

    def __init__(
        self,
        walks: Sequence[StreamWalk],
        samples_per_epoch: Sequence[int] | Quotas | None = None,
        *,
        batching: str = "random",
        splice: Splice | None = None,
    ) -> None:
        if not walks:
            raise ValueError("an order of no streams: expected at least one walk")
        if isinstance(samples_per_epoch, Quotas):
            quotas = samples_per_epoch
        elif samples_per_epoch is None:
            quotas = Quotas(tuple(walk.num_samples for walk in walks))
        else:
            quotas = Quotas(tuple(operator.index(samples) for samples in samples_per_epoch))
        if len(quotas.per_epoch) != len(walks):
            raise ValueError(
                f"samples_per_epoch has {len(quotas.per_epoch)} numbers for {len(walks)} streams"
            )
        numbers = [walk.stream for walk in walks]
        if len(set(numbers)) < len(walks) or len({walk.seed for walk in walks}) > 1:
            raise ValueError(
                f"walks of streams {numbers} and seeds {[walk.seed for walk in walks]}: several walks need a stream "
                "number each and one seed"
            )
        for walk, samples in zip(walks, quotas.per_epoch, strict=True):
            if isinstance(walk, FixedWalk) and (
                walk.samples_per_epoch != samples
                or quotas.changes
                or (splice is not None and not splice.keeps(quotas.per_epoch))
            ):
                raise ValueError(
                    f"a walk that takes the same {walk.samples_per_epoch} samples in every epoch cannot give "
                    f"{samples}, nor numbers that change"
                )
        self.walks: tuple[StreamWalk, ...] = tuple(walks)
        self.quotas = quotas
        self.splice = splice
        self.samples_per_epoch = quotas.per_epoch
        self.num_samples = quotas.num_samples
        self.batching = batching
        # Without any shuffle a batch keeps the order of positions: position = sample, to the letter.
        self._sorted = any(walk.shuffle != "none" for walk in walks)
        self._voices = Voices(walks, is_sorted=self._sorted)
        self._first_ids = self._voices.first_ids
        # Samples of an epoch in which each lane of some stream gives two blocks.
        self._blocks_last = min(
            2 * walk.lanes * walk.block_rows * self.num_samples // samples
            for walk, samples in zip(walks, quotas.per_epoch, strict=True)
            if samples
        )
        self._lineup = Lineup(quotas, batching=batching, seed=walks[0].seed, splice=splice)

    def spliced(self, splice: Splice | None, walks: Sequence[StreamWalk] | None = None) -> Order:
        """Give the order that goes on at a splice, of these walks or of the same with other keys and windows."""
        return Order(
            self.walks if walks is None else walks, self.quotas, batching=self.batching, splice=splice
        )

    def is_same(self, other: Order) -> bool:
        """Whether another order of the same data and arguments gives the same samples everywhere."""
        walks = zip(self.walks, other.walks, strict=True)
        return self.splice == other.splice and all(
            (a.stream, a.lanes, a.window, a.scattered) == (b.stream, b.lanes, b.window, b.scattered)
            for a, b in walks
        )

    @property
    def signature(self) -> str:
        """A digest of the quotas and the streams, by their keys: where it is equal, segments are cut alike."""
        return self.quotas.signature([walk.stream for walk in self.walks])

    def plan(
        self, epoch: int, start: int, *, global_batch_size: int, ranks: int = 1, remainder: str = "pad"
    ) -> BatchPlan:
        """Give the batches of an epoch for an iteration that begins at position ``start`` of it.

        Raises:
            TopologyError, ValueError: as :class:`BatchPlan`; or batches of ranks that are not equal, where each
                of them must be of one stream.
        """
        return self._lineup.plan(
            epoch, start, global_batch_size=global_batch_size, ranks=ranks, remainder=remainder
        )

    def size(self, epoch: int, start: int = 0) -> int:
        """Give the samples of an epoch for an iteration that begins at position ``start`` of it."""
        return self._lineup.timeline.size(epoch, start)

    def segments(self, epoch: int, start: int = 0) -> tuple[Segment, ...]:
        """Give the segments of an epoch for an iteration that begins at position ``start`` of it."""
        return self._lineup.timeline.segments(epoch, start)

    def unit(self, plan: BatchPlan) -> Unit | None:
        """Give the sizes of a plan's batches as far as they decide which stream comes when; else None."""
        return self._lineup.unit(plan.global_batch_size, plan.ranks)

    def left_out(self, plan: BatchPlan, epoch: int) -> dict[int, int]:
        """Count what a plan leaves out of an epoch, by number of stream; only those of which it is any."""
        if not plan.left_out:
            return {}
        given = self.standing(plan, epoch, plan.num_samples - plan.left_out).taken
        total = self.standing(plan, epoch, plan.num_samples).taken
        pairs = enumerate(zip(total, given, strict=True))
        return {stream: whole - part for stream, (whole, part) in pairs if whole > part}

    def standing(self, plan: BatchPlan, epoch: int, position: int) -> Standing:
        """Tell where the streams stand at a position >= ``plan.start`` of an epoch that is read by a plan."""
        return self._lineup.standing(plan, epoch, position)

    def rank_batches(
        self, plan: BatchPlan, epoch: int, first: int, last: int, step: int = 1, rank: int = 0
    ) -> RankBatches:
        """Give the batches first, first + step, … < last of one data-parallel rank.

        Batches are numbered from ``plan.start``. With ``exact``, a rank that gets fewer batches than others has
        empty ones after its last. The cost is that of the positions asked for, plus a block per lane after a jump.

        Raises:
            ValueError: a plan for another number of samples, or batches that it does not have.
            TopologyError: a rank that it does not have.
        """
        self._check(plan, epoch, first, last, step, rank)
        parts = self._lineup.parts(plan, epoch)
        full_last = min(last, plan.full_batches)
        found: list[NDArray[np.int64]] = []
        size = plan.global_batch_size
        low, high = plan.rank_span(size, rank)
        walk = self.walks[0]
        short = None
        if (
            isinstance(walk, Walk)
            and len(self.walks) == 1
            and self._sorted
            and has_shortcut(walk, size, low, high)
        ):
            short = walk
        at_once = max(1, (_CHUNK if len(self.walks) == 1 else _CHUNK_OF_MANY) // size)
        if short:
            at_once = batches_at_once(short, size, low, high, _CHUNK)
        at_once = min(at_once, self._batches_together(step, size))
        for begin in range(first, full_last, step * at_once):
            batches = np.arange(begin, min(full_last, begin + step * at_once), step, dtype=np.int64)
            found.append(self._full_batches(parts, plan, epoch, batches, rank, short))
        full = len(range(first, full_last, step))
        sizes = [high - low] * full
        padding = [0] * full
        tails = plan.rank_tails(rank) if last > plan.full_batches else []
        for batch in range(first + full * step, last, step):
            number = batch - plan.full_batches
            if number < len(tails):
                found.append(self._tail_batch(parts, plan, epoch, rank, tails[number]))
            sizes.append(found[-1].size if number < len(tails) else 0)
            padding.append(plan.rank_padding(batch, rank))
        bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)))
        samples = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        return RankBatches(samples, bounds, np.array(padding, dtype=np.int64))

    def positions(self, plan: BatchPlan, epoch: int, batch: int, rank: int = 0) -> NDArray[np.int64]:
        """Give the positions in the epoch of the samples in one batch of one rank, padding left out."""
        self._check(plan, epoch, batch, batch + 1, 1, rank)
        parts = self._lineup.parts(plan, epoch)
        if batch < plan.full_batches:
            begin, end = plan.batch_span(batch)
            chosen_part, device = slice(*plan.rank_span(end - begin, rank)), self._lineup.runs(plan.ranks)
        else:
            tails = plan.rank_tails(rank)
            number = batch - plan.full_batches
            if number >= len(tails):
                return np.empty(0, dtype=np.int64)
            tail = tails[number]
            begin, end = plan.batch_span(plan.full_batches + tail)
            chosen_part, device = plan.tail_part(tail, rank), 1
            if plan.is_dealt_in_order(tail):
                return np.arange(begin, end, dtype=np.int64)[chosen_part]
        offsets = np.arange(end - begin, dtype=np.int64)
        found = self._spots(parts, epoch, begin, offsets)
        return self._voices.chosen(found, 1, chosen_part, device) + begin

    def global_batch(
        self, plan: BatchPlan, epoch: int, batch: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Give each rank's part of one global batch: positions in the epoch, and sample ids.

        The same as ``positions`` and ``rank_batches`` of all ranks, for the work of one. Ids beyond the positions are
        padding.
        """
        self._check(plan, epoch, 0, 0, 1, 0)
        if not 0 <= batch < plan.num_global_batches:
            raise ValueError(f"global batch {batch}: this plan has {plan.num_global_batches}")
        begin, end = plan.batch_span(batch)
        tail = batch - plan.full_batches
        offsets = np.arange(end - begin, dtype=np.int64)
        found = self._spots(self._lineup.parts(plan, epoch), epoch, begin, offsets)
        runs = self._lineup.runs(plan.ranks) if tail < 0 else 1
        chosen = offsets
        if tail < 0 or not plan.is_dealt_in_order(tail):
            chosen = self._voices.chosen(found, 1, slice(None), runs)
        ids = self._voices.ids(found, chosen)
        shared = []
        for rank in range(plan.ranks):
            full = slice(*plan.rank_span(end - begin, rank))
            part = full if tail < 0 else plan.tail_part(tail, rank)
            samples = ids[part]
            if plan.rank_padding(batch, rank):
                samples = np.concatenate((samples, self._pad_id(plan, epoch, rank, tail)))
            shared.append((chosen[part] + begin, samples))
        return shared

    def replacements(self, plan: BatchPlan, epoch: int, batch: int, rank: int, slot: int) -> Iterator[int]:
        """Give sample ids that may stand in for sample number ``slot`` of one batch of one rank.

        They are the samples at the places before it in its stream's pass, nearest first, going round from the
        pass's first place to its last: a pure function of the stream and the place, whatever the world and the
        batch size are. All other samples of the pass come, each once. A pad has those of the sample it repeats.
        """
        positions = self.positions(plan, epoch, batch, rank)
        if slot < positions.size:
            position = int(positions[slot])
            stream, index = self._lineup.at(plan, epoch, position)
        else:
            tail = plan.rank_tails(rank)[batch - plan.full_batches]
            stream, index = self._pad(plan, epoch, rank, tail)
        return self._voices.replacements(stream, index)

    def stream_of(self, sample: int) -> int:
        """Give the number of the stream that a sample id belongs to."""
        return int(np.searchsorted(self._first_ids, sample, side="right")) - 1

    def first_id(self, stream: int) -> int:
        """Give the sample id of a stream's first sample."""
        return self._first_ids[stream]

    def _batches_together(self, step: int, size: int) -> int:
        """Give how many batches ``step`` apart are worth looking up at once."""
        most = 1 << 62
        if len(self.walks) > 1:  # labels are computed for the batches in between, too
            most = max(1, 4 * _CHUNK // (step * size))
        # Batches that each need blocks of their own go one by one: else blocks in between are made too.
        if (step - 1) * size > self._blocks_last:
            most = 1
        return most

    def _full_batches(
        self,
        parts: Sequence[Part],
        plan: BatchPlan,
        epoch: int,
        batches: NDArray[np.int64],
        rank: int,
        short: Walk | None,
    ) -> NDArray[np.int64]:
        """Give one rank's parts of some full batches, evenly spaced; with the shortcut where there is one."""
        size = plan.global_batch_size
        position = plan.start + int(batches[0]) * size
        starts = (batches - batches[0]) * size
        low, high = plan.rank_span(size, rank)
        if short is not None:
            first = parts[0].segment
            turn, place = divmod(first.cursors[0] + position - first.begin, short.num_samples)
            if place + int(starts[-1]) + size <= short.num_samples:
                return short.samples(*share(short, turn, starts + place, size, low, high))
            # At a border of passes the long way, in portions that it can bear.
            portions = np.array_split(batches, -(-batches.size // max(1, _CHUNK // size)))
            if len(portions) > 1:
                return np.concatenate(
                    [self._full_batches(parts, plan, epoch, each, rank, short) for each in portions]
                )
        offsets = (starts[:, None] + np.arange(size, dtype=np.int64)).ravel()
        found = self._spots(parts, epoch, position, offsets)
        runs = self._lineup.runs(plan.ranks)
        chosen = self._voices.chosen(found, batches.size, slice(low, high), runs)
        return self._voices.ids(found, chosen)

    def _tail_batch(
        self, parts: Sequence[Part], plan: BatchPlan, epoch: int, rank: int, tail: int
    ) -> NDArray[np.int64]:
        begin, end = plan.batch_span(plan.full_batches + tail)
        offsets = np.arange(end - begin, dtype=np.int64)
        found = self._spots(parts, epoch, begin, offsets)
        part = plan.tail_part(tail, rank)
        in_order = plan.is_dealt_in_order(tail)
        chosen = offsets[part] if in_order else self._voices.chosen(found, 1, part, 1)
        samples = self._voices.ids(found, chosen)
        if plan.rank_padding(plan.full_batches + tail, rank):
            samples = np.concatenate((samples, self._pad_id(plan, epoch, rank, tail)))
        return samples

    def _pad_id(self, plan: BatchPlan, epoch: int, rank: int, tail: int) -> NDArray[np.int64]:
        """Give the id of the sample that fills up one rank's part of a shorter batch, shape (1,)."""
        stream, index = self._pad(plan, epoch, rank, tail)
        walk = self.walks[stream]
        found: NDArray[np.int64] = walk.samples(walk.spots(index, np.zeros(1, dtype=np.int64)))
        return found + self._first_ids[stream]

    def _pad(self, plan: BatchPlan, epoch: int, rank: int, tail: int) -> tuple[int, int]:
        """Give stream and walk index of the sample that fills up one rank's part of a shorter batch."""
        back = plan.pad_back(tail, rank)
        _, end = plan.batch_span(plan.full_batches + tail)
        if self.unit(plan) is None:
            begin = self._lineup.parts(plan, epoch)[0].segment.begin
            return self._lineup.at(plan, epoch, begin + (end - back - begin) % (end - begin))
        # The batch is of one stream, and so is what fills it up.
        stream, last = self._lineup.at(plan, epoch, end - 1)
        begin, number = self.walks[stream].pass_of(last)
        return stream, begin + (last + 1 - back - begin) % number

    def _spots(self, parts: Sequence[Part], epoch: int, position: int, offsets: NDArray[np.int64]) -> Found:
        first_part = parts[0].segment
        labelled = self._lineup.labelled(parts, epoch, position, offsets)
        if labelled is None:
            index = first_part.cursors[0] + position - first_part.begin
            return self._voices.of_one(index, offsets)
        return self._voices.of_many(first_part.cursors, *labelled)

    def _check(self, plan: BatchPlan, epoch: int, first: int, last: int, step: int, rank: int) -> None:
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: must not be negative")
        size = self.size(epoch, plan.start)
        if plan.num_samples != size:
            raise ValueError(f"the plan is for {plan.num_samples} samples an epoch, the order has {size}")
        if not 0 <= rank < plan.ranks:
            raise TopologyError(f"rank={rank}: this plan has {plan.ranks} ranks, numbered from 0")
        if step < 1:
            raise ValueError(f"step={step}: must be at least 1")
        if first < 0 or last > plan.num_batches:
            raise ValueError(f"batches {first} to {last}: this plan has {plan.num_batches}")
