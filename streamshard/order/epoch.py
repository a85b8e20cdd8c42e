"""An epoch's global order: which samples of which stream are in which batch of which rank."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan
from streamshard.order.mixing import Labels
from streamshard.order.share import batches_at_once, has_shortcut, share
from streamshard.order.walk import MAX_SAMPLES, Spots, Walk

BATCHINGS = ("random", "stratified")

# Positions handled at once: temporaries of some tens of MiB at most, whatever is asked for in one call.
_CHUNK = 1 << 18
_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class RankBatches:
    """Some batches of one rank, joined.

    Attributes:
        samples: sample ids, padding included; a stream's ids follow those of the stream before it.
        bounds: batch i is samples[bounds[i]:bounds[i+1]], shape (batches + 1,).
        padding: how many samples at the end of each batch are repeats that fill it up, shape (batches,).
    """

    samples: NDArray[np.int64]
    bounds: NDArray[np.int64]
    padding: NDArray[np.int64]


class Order:
    """The order of every epoch: a pure function of the walks, the epoch and the position.

    Epoch e of a stream that gives n samples an epoch takes the indices [e·n, (e+1)·n) of its walk, so more
    samples than the stream has run on into its next pass, and fewer go on where the last epoch stopped.

    Args:
        walks: one walk for each stream; of several, walk s has ``stream=s`` and all have one seed.
        samples_per_epoch: n of each stream, one at least > 0; None: each walk's ``num_samples``.
        batching: which stream the sample at a position is of. ``stratified``: every run of positions holds each
            stream in its share; ``random``: the same, permuted in runs of 4,096. Means nothing for one stream.

    Raises:
        ValueError: no walk, walks that do not go together, or numbers that do not fit them.
    """

    def __init__(
        self,
        walks: Sequence[Walk],
        samples_per_epoch: Sequence[int] | None = None,
        *,
        batching: str = "random",
    ) -> None:
        if not walks:
            raise ValueError("an order of no streams: expected at least one walk")
        if batching not in BATCHINGS:
            raise ValueError(f"batching_method={batching!r}: expected one of {', '.join(BATCHINGS)}")
        chosen = [walk.num_samples for walk in walks]
        if samples_per_epoch is not None:
            chosen = [operator.index(samples) for samples in samples_per_epoch]
        if len(chosen) != len(walks):
            raise ValueError(f"samples_per_epoch has {len(chosen)} numbers for {len(walks)} streams")
        if min(chosen) < 0 or not 0 < sum(chosen) <= MAX_SAMPLES:
            raise ValueError(
                f"samples_per_epoch={chosen}: expected numbers >= 0 with a sum from 1 to {MAX_SAMPLES}"
            )
        if len(walks) > 1:
            for number, walk in enumerate(walks):
                if (walk.stream, walk.seed) != (number, walks[0].seed):
                    raise ValueError(
                        f"walk {number} is of stream {walk.stream} and seed {walk.seed}: several walks need their "
                        f"own number as stream and one seed, here {walks[0].seed}"
                    )
        self.walks = tuple(walks)
        self.samples_per_epoch = tuple(chosen)
        self.num_samples = sum(chosen)
        self.batching = batching
        sizes = [walk.num_samples for walk in walks]
        self._first_ids = [sum(sizes[:number]) for number in range(len(sizes))]
        # Without any shuffle a batch keeps the order of positions: position = sample, to the letter.
        self._sorted = any(walk.shuffle != "none" for walk in walks)
        self._labels = None
        if len(walks) > 1:
            self._labels = Labels(chosen, seed=walks[0].seed, permuted=batching == "random")

    def cursors(self, epoch: int, position: int) -> tuple[int, ...]:
        """Give each stream's next index after ``position`` positions of an epoch (0 <= position <= N)."""
        taken = [position] if self._labels is None else self._labels.before(epoch, position)
        return tuple(epoch * n + count for n, count in zip(self.samples_per_epoch, taken, strict=True))

    def rank_batches(
        self, plan: BatchPlan, epoch: int, first: int, last: int, step: int = 1, rank: int = 0
    ) -> RankBatches:
        """Give the batches first, first + step, … < last of one data-parallel rank.

        Batches are numbered from ``plan.start``. With ``exact``, a rank that has no part in the last batch
        gets an empty one. The cost is that of the positions asked for, plus a block per lane after a jump.

        Raises:
            ValueError: a plan for another number of samples, or batches that it does not have.
            TopologyError: a rank that it does not have.
        """
        self._check(plan, epoch, first, last, step, rank)
        full_last = min(last, plan.full_batches)
        parts: list[NDArray[np.int64]] = []
        size = plan.global_batch_size
        low, high = plan.rank_span(size, rank)
        short = self._labels is None and self._sorted and has_shortcut(self.walks[0], size, low, high)
        at_once = max(1, _CHUNK // size)
        if short:
            at_once = batches_at_once(self.walks[0], size, low, high, _CHUNK)
        at_once = min(at_once, self._batches_together(step, size))
        for begin in range(first, full_last, step * at_once):
            count = min(at_once, -(-(full_last - begin) // step))
            position = plan.start + begin * size
            parts.append(self._full_batches(epoch, position, count, step * size, size, low, high, short))
        full = len(range(first, full_last, step))
        sizes = np.full(full, high - low, dtype=np.int64)
        padding = np.zeros(full, dtype=np.int64)
        tail = plan.full_batches
        if plan.tail and first <= tail < last and (tail - first) % step == 0:
            part, pads = self._tail_batch(plan, epoch, rank)
            parts.append(part)
            sizes = np.append(sizes, part.size)
            padding = np.append(padding, pads)
        bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)))
        samples = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return RankBatches(samples, bounds, padding)

    def _batches_together(self, step: int, size: int) -> int:
        """Give how many batches ``step`` apart are worth looking up at once."""
        most = 1 << 62
        if self._labels is not None:  # labels are computed for the batches in between, too
            most = max(1, 4 * _CHUNK // (step * size))
        for walk, samples in zip(self.walks, self.samples_per_epoch, strict=True):
            # Batches that each need blocks of their own go one by one: else blocks in between are made too.
            if (step - 1) * size * samples > 2 * walk.lanes * walk.block_rows * self.num_samples:
                most = 1
        return most

    def _full_batches(
        self, epoch: int, position: int, count: int, stride: int, size: int, low: int, high: int, short: bool
    ) -> NDArray[np.int64]:
        """Give parts low … high of ``count`` batches of ``size`` that begin ``stride`` positions apart."""
        starts = np.arange(count, dtype=np.int64) * stride
        if short:
            walk = self.walks[0]
            turn, place = divmod(epoch * self.samples_per_epoch[0] + position, walk.num_samples)
            if place + int(starts[-1]) + size <= walk.num_samples:
                return walk.samples(*share(walk, turn, starts + place, size, low, high))
            at_once = max(1, _CHUNK // size)
            if count > at_once:  # at a border of passes the long way, in portions that it can bear
                portions = range(0, count, at_once)
                return np.concatenate(
                    [
                        self._full_batches(
                            epoch,
                            position + n * stride,
                            min(at_once, count - n),
                            stride,
                            size,
                            low,
                            high,
                            short,
                        )
                        for n in portions
                    ]
                )
        offsets = (starts[:, None] + np.arange(size, dtype=np.int64)).ravel()
        return self._samples(epoch, position, offsets, count, slice(low, high))

    def _tail_batch(self, plan: BatchPlan, epoch: int, rank: int) -> tuple[NDArray[np.int64], int]:
        size = plan.tail
        offsets = np.arange(size, dtype=np.int64)
        start = plan.num_samples - size
        if plan.remainder == "exact":
            return self._samples(epoch, start, offsets, 1, slice(rank, size, plan.ranks)), 0
        low, high = plan.rank_span(size, rank)
        samples = self._samples(epoch, start, offsets, 1, slice(low, high))
        pads = plan.rank_padding(plan.full_batches, rank)
        if pads:
            # The ranks before this one have tail samples in `low`, of rank · ⌈n/R⌉ slots: the rest are pads.
            before = rank * -(-size // plan.ranks) - low
            all_pads = -size % plan.ranks
            position = (plan.num_samples - all_pads + before) % plan.num_samples
            pad = self._samples(epoch, position, np.zeros(1, dtype=np.int64), 1, slice(1))
            samples = np.concatenate((samples, pad))
        return samples, pads

    def _samples(
        self, epoch: int, position: int, offsets: NDArray[np.int64], batches: int, part: slice
    ) -> NDArray[np.int64]:
        """Give a part of each of ``batches`` equal, sorted batches at position + offsets."""
        found = self._spots(epoch, position, offsets)
        numbers = np.arange(offsets.size, dtype=np.int64)
        if self._sorted:
            if len(found) == 1:
                keys = self.walks[found[0][0]].sort_keys(found[0][1])
            else:
                keys = np.empty(offsets.size, dtype=np.uint64)
                for stream, spots, here in found:
                    keys[here] = self.walks[stream].sort_keys(spots)
            keys <<= _WORD
            keys |= numbers.view(np.uint64)
            packed = keys.reshape(batches, -1)
            packed.sort(axis=1)
            chosen = (packed[:, part] & _LOW).ravel().view(np.int64)
        else:
            chosen = numbers.reshape(batches, -1)[:, part].ravel()
        if len(found) == 1:
            stream, spots, _ = found[0]
            samples = self.walks[stream].samples(spots, chosen)
            return samples + self._first_ids[stream] if stream else samples
        owner = np.empty(offsets.size, dtype=np.int64)
        number = np.empty(offsets.size, dtype=np.int64)
        for stream, spots, here in found:
            owner[here] = stream
            number[here] = np.arange(spots.row.size)
        owner, number = owner[chosen], number[chosen]
        samples = np.empty(chosen.size, dtype=np.int64)
        for stream, spots, _ in found:
            mine = np.flatnonzero(owner == stream)
            samples[mine] = self.walks[stream].samples(spots, number[mine]) + self._first_ids[stream]
        return samples

    def _spots(
        self, epoch: int, position: int, offsets: NDArray[np.int64]
    ) -> list[tuple[int, Spots, NDArray[np.int64] | slice]]:
        """Find position + offsets: for each stream met, its spots and the places in ``offsets`` that they fill."""
        if self._labels is None:
            spots = self.walks[0].spots(epoch * self.samples_per_epoch[0] + position, offsets)
            return [(0, spots, slice(None))]
        streams, ranks = self._labels.at(epoch, position, offsets)
        order = np.argsort(streams, kind="stable")
        met, begins = np.unique(streams[order], return_index=True)
        found: list[tuple[int, Spots, NDArray[np.int64] | slice]] = []
        for stream, here in zip(met.tolist(), np.split(order, begins[1:]), strict=True):
            first = int(ranks[here[0]])
            index = epoch * self.samples_per_epoch[stream] + first
            found.append((stream, self.walks[stream].spots(index, ranks[here] - first), here))
        return found

    def _check(self, plan: BatchPlan, epoch: int, first: int, last: int, step: int, rank: int) -> None:
        if plan.num_samples != self.num_samples:
            raise ValueError(
                f"the plan is for {plan.num_samples} samples an epoch, the order has {self.num_samples}"
            )
        if not 0 <= rank < plan.ranks:
            raise TopologyError(f"rank={rank}: this plan has {plan.ranks} ranks, numbered from 0")
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: must not be negative")
        if step < 1:
            raise ValueError(f"step={step}: must be at least 1")
        if first < 0 or last > plan.num_batches:
            raise ValueError(f"batches {first} to {last}: this plan has {plan.num_batches}")
