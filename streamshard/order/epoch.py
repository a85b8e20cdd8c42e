"""An epoch's global order: which samples of which stream are in which batch of which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan
from streamshard.order.share import batches_at_once, has_shortcut, share
from streamshard.order.walk import Walk

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
        walks: one walk for each stream.
        samples_per_epoch: n of each stream, > 0; None: each walk's ``num_samples``.

    Raises:
        ValueError: no walk, several walks, or numbers that do not fit them.
    """

    def __init__(self, walks: Sequence[Walk], samples_per_epoch: Sequence[int] | None = None) -> None:
        if len(walks) != 1:
            raise ValueError(f"an order of {len(walks)} streams: this version walks exactly one")
        chosen = (
            [walk.num_samples for walk in walks]
            if samples_per_epoch is None
            else [int(n) for n in samples_per_epoch]
        )
        if len(chosen) != len(walks):
            raise ValueError(f"samples_per_epoch has {len(chosen)} numbers for {len(walks)} streams")
        for stream, samples in enumerate(chosen):
            if not 0 < samples < 1 << 53:
                raise ValueError(f"samples_per_epoch[{stream}]={samples}: expected 1 to {(1 << 53) - 1}")
        self.walks = tuple(walks)
        self.samples_per_epoch = tuple(chosen)
        self.num_samples = sum(chosen)
        # Without any shuffle a batch keeps the order of positions: position = sample, to the letter.
        self._sorted = any(walk.shuffle != "none" for walk in walks)

    def cursors(self, epoch: int, position: int) -> tuple[int, ...]:
        """Give each stream's next index after ``position`` positions of an epoch (0 <= position <= N)."""
        return (epoch * self.samples_per_epoch[0] + position,)

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
        short = self._sorted and has_shortcut(self.walks[0], size, low, high)
        at_once = max(1, _CHUNK // size)
        if short:
            at_once = batches_at_once(self.walks[0], size, low, high, _CHUNK)
        # Batches that each need blocks of their own go one by one: else blocks in between are made too.
        if (step - 1) * size > 2 * self.walks[0].lanes * self.walks[0].block_rows:
            at_once = 1
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
        return self._samples(epoch, position, offsets, count, low, high)

    def _tail_batch(self, plan: BatchPlan, epoch: int, rank: int) -> tuple[NDArray[np.int64], int]:
        size = plan.tail
        offsets = np.arange(size, dtype=np.int64)
        start = plan.num_samples - size
        if plan.remainder == "exact":
            return self._samples(epoch, start, offsets, 1, 0, size)[rank :: plan.ranks], 0
        low, high = plan.rank_span(size, rank)
        samples = self._samples(epoch, start, offsets, 1, low, high)
        pads = plan.rank_padding(plan.full_batches, rank)
        if pads:
            # The ranks before this one have tail samples in `low`, of rank · ⌈n/R⌉ slots: the rest are pads.
            before = rank * -(-size // plan.ranks) - low
            all_pads = -size % plan.ranks
            position = (plan.num_samples - all_pads + before) % plan.num_samples
            pad = self._samples(epoch, position, np.zeros(1, dtype=np.int64), 1, 0, 1)
            samples = np.concatenate((samples, pad))
        return samples, pads

    def _samples(
        self, epoch: int, position: int, offsets: NDArray[np.int64], batches: int, low: int, high: int
    ) -> NDArray[np.int64]:
        """Give samples ``low … high`` of each of ``batches`` equal, sorted batches at position + offsets."""
        walk = self.walks[0]
        spots = walk.spots(epoch * self.samples_per_epoch[0] + position, offsets)
        size = offsets.size // batches
        if self._sorted:
            packed = walk.sort_keys(spots)
            packed <<= _WORD
            packed |= np.arange(offsets.size, dtype=np.uint64)
            packed = packed.reshape(batches, size)
            packed.sort(axis=1)
            chosen = (packed[:, low:high] & _LOW).ravel().view(np.int64)
        else:
            chosen = np.arange(offsets.size, dtype=np.int64).reshape(batches, size)[:, low:high].ravel()
        return walk.samples(spots, chosen)

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
