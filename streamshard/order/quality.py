"""How well an order of samples is shuffled, and how many shards it needs at a time.

An order is judged against a uniform permutation of the same samples in batches of the same size, whose expected
values are known exactly. All measures look at batches, not at the places inside one. Formulas and their sources are
in ``docs/explanation/shuffle-quality.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEAR = 4
"""Pairs at most this many batches apart count as near, unless the caller says otherwise."""

IDLE = 0.1
"""A shard unused for more than this part of an epoch is not needed meanwhile, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """What :func:`shuffle_quality` found. "Ratio" means: divided by what a uniform permutation gives, on the average.

    Attributes:
        batch_sizes: samples of each batch, shape (batches,).
        effective_shards: inverse Simpson index of each batch: shards that, with equal shares, would give as many
            pairs of one shard; from 1 to the samples of the batch, shape (batches,).
        ideal_shards: the same for a uniform permutation, shape (batches,).
        live_shards: shards that are between their first and last use in the epoch at each batch, shape (batches,).
        needed_shards: the same without those that idle for longer than ``idle``, shape (batches,).
        carried_shards: shards that are in use before and after each border of two batches, shape (batches - 1,). A
            batch in which one shard ends and another begins has both live, but neither of its borders need have.
        fetches: how often a shard is fetched if each that idles is dropped meanwhile; at least the shards used.
        shard_spread: ratio of the mean distance in the epoch between two samples of one shard; 1 is ideal, and
            near 0 where shards are read one after another.
        file_displacement: ratio of the mean distance between a sample's place in the epoch and in the dataset.
        epoch_displacement: ratio of the mean distance between a sample's places in this epoch and the next; NaN
            where no next epoch is given.
        same_shard_together: ratio of the chance that two samples of one shard are in one batch.
        same_shard_near: ratio of the chance that two samples of one shard are at most ``near`` batches apart.
        neighbours_together: ratio of the chance that a sample and the next one in its shard are in one batch.
        neighbours_near: ratio of the chance that they are at most ``near`` batches apart.
        met_again: ratio of the chance that two samples of one batch are in one batch of the next epoch, too; NaN
            where no next epoch is given.
    """

    batch_sizes: NDArray[np.int64]
    effective_shards: NDArray[np.float64]
    ideal_shards: NDArray[np.float64]
    live_shards: NDArray[np.int64]
    needed_shards: NDArray[np.int64]
    carried_shards: NDArray[np.int64]
    fetches: int
    shard_spread: float
    file_displacement: float
    epoch_displacement: float
    same_shard_together: float
    same_shard_near: float
    neighbours_together: float
    neighbours_near: float
    met_again: float

    @property
    def median(self) -> float:
        """Median effective shards of the batches, a shorter last one left out where there are others."""
        return float(np.median(self.effective_shards[self.batch_sizes == self.batch_sizes[0]]))

    @property
    def overall(self) -> float:
        """Effective shards of a batch with the whole epoch's chance of pairs, ends included; compare ideal_shards."""
        size = int(self.batch_sizes[0])
        pairs = size / float(self.ideal_shards[0]) - 1
        return size / (1 + pairs * self.same_shard_together)

    @property
    def to_median(self) -> NDArray[np.float64]:
        """Effective shards of each batch as a part of what a batch of its size has at the median's pair chance."""
        size = int(self.batch_sizes[0])
        chance = (size / self.median - 1) / max(1, size - 1)
        ratios: NDArray[np.float64] = (
            self.effective_shards * (1 + (self.batch_sizes - 1) * chance) / self.batch_sizes
        )
        return ratios

    @property
    def first(self) -> float:
        """The first batch's part of the median, see :attr:`to_median`."""
        return float(self.to_median[0])

    @property
    def last(self) -> float:
        """The last batch's part of the median, see :attr:`to_median`; a shorter batch is compared at its size."""
        return float(self.to_median[-1])

    def summary(self) -> dict[str, float]:
        """Give the whole as a few numbers by name, ready for JSON but for NaN."""
        return {
            "effective_shards": self.median,
            "overall_shards": self.overall,
            "ideal_shards": float(self.ideal_shards[0]),
            "first_to_median": self.first,
            "last_to_median": self.last,
            "least_to_median": float(self.to_median.min()),
            "live_shards_mean": float(self.live_shards.mean()),
            "live_shards_max": float(self.live_shards.max()),
            "carried_shards_max": float(self.carried_shards.max(initial=0)),
            "needed_shards_mean": float(self.needed_shards.mean()),
            "needed_shards_max": float(self.needed_shards.max()),
            "fetches": float(self.fetches),
            "shard_spread": self.shard_spread,
            "file_displacement": self.file_displacement,
            "epoch_displacement": self.epoch_displacement,
            "same_shard_together": self.same_shard_together,
            "same_shard_near": self.same_shard_near,
            "neighbours_together": self.neighbours_together,
            "neighbours_near": self.neighbours_near,
            "met_again": self.met_again,
        }


def shuffle_quality(
    samples: ArrayLike,
    samples_per_shard: ArrayLike,
    batch_size: int,
    *,
    next_epoch: ArrayLike | None = None,
    near: int = NEAR,
    idle: float = IDLE,
) -> ShuffleQuality:
    """Judge one epoch's order.

    Args:
        samples: sample ids in the order in which they are given, batch after batch, shape (n,), n >= 2. Each at
            most once; the ids of a shard follow those of the shard before it. Not padded.
        samples_per_shard: samples of each shard, shape (shards,).
        batch_size: samples of a global batch; the last one may be shorter.
        next_epoch: the same for the epoch after it.
        near: batches that two samples may be apart and still count as near.
        idle: part of the epoch, above 0, for which a shard may be unused and still counts as needed; 1: always.

    Raises:
        ValueError: ids outside the dataset or given twice, or another argument out of range.
    """
    sizes = _integers("samples_per_shard", samples_per_shard)
    if not sizes.size or int(sizes.min()) < 0:
        raise ValueError("samples_per_shard: expected at least one number, and none below 0")
    if batch_size < 1 or near < 0 or not idle > 0:
        raise ValueError(
            f"batch_size={batch_size}, near={near}, idle={idle}: expected batch_size >= 1, near >= 0, idle > 0"
        )
    total = int(sizes.sum())
    ids = _epoch("samples", samples, total)
    count = ids.size
    shard = np.repeat(np.arange(sizes.size), sizes)
    batch = np.arange(count) // batch_size
    batch_sizes = np.bincount(batch)
    met, visits = np.unique(batch * sizes.size + shard[ids], return_counts=True)
    met_batch, met_shard = np.divmod(met, sizes.size)

    # The chance that two samples, drawn without putting back, are of one shard.
    same_shard = float((sizes * (sizes - 1.0)).sum()) / (total * (total - 1.0))
    squares = np.bincount(met_batch, weights=visits.astype(np.float64) ** 2)
    live, _ = _live(met_batch, met_shard, batch_sizes.size, None)
    needed, fetches = _live(met_batch, met_shard, batch_sizes.size, max(1, int(idle * batch_sizes.size)))

    place = np.full(total, -1, dtype=np.int64)
    place[ids] = np.arange(count)
    together, within = _pairs(batch_sizes, 0), _pairs(batch_sizes, near)
    all_pairs = count * (count - 1) / 2
    apart = _neighbours_apart(place, shard, batch_size)
    displacement, again = float("nan"), float("nan")
    if next_epoch is not None:
        displacement, again = _between(place, _epoch("next_epoch", next_epoch, total), batch_size)
    return ShuffleQuality(
        batch_sizes=batch_sizes,
        effective_shards=batch_sizes**2 / squares,
        ideal_shards=batch_sizes / (1 + (batch_sizes - 1) * same_shard),
        live_shards=live,
        needed_shards=needed,
        carried_shards=_carried(met_batch, met_shard, sizes.size, batch_sizes.size),
        fetches=fetches,
        shard_spread=_spread(place, shard, sizes.size) / ((count + 1) / 3),
        file_displacement=_mean_distance(np.arange(count), ids, count),
        epoch_displacement=displacement,
        same_shard_together=_ratio(_shard_pairs(met, visits, sizes.size, 0), same_shard * together),
        same_shard_near=_ratio(_shard_pairs(met, visits, sizes.size, near), same_shard * within),
        neighbours_together=_ratio(float((apart == 0).sum()), apart.size * together / all_pairs),
        neighbours_near=_ratio(float((apart <= near).sum()), apart.size * within / all_pairs),
        met_again=again,
    )


def _integers(name: str, given: ArrayLike) -> NDArray[np.int64]:
    numbers = np.asarray(given)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(
            f"{name}: expected integers of one dimension, got {numbers.dtype} of {numbers.shape}"
        )
    return numbers.astype(np.int64)


def _epoch(name: str, given: ArrayLike, total: int) -> NDArray[np.int64]:
    ids = _integers(name, given)
    if ids.size < 2:
        raise ValueError(f"{name}: {ids.size} samples have no order, expected at least 2")
    if int(ids.min()) < 0 or int(ids.max()) >= total:
        raise ValueError(
            f"{name}: ids from {int(ids.min())} to {int(ids.max())}, but the shards hold samples 0 to {total - 1}"
        )
    twice = np.flatnonzero(np.bincount(ids, minlength=total) > 1)
    if twice.size:
        raise ValueError(f"{name}: sample {int(twice[0])} is given twice; leave padding and repeats out")
    return ids


def _live(
    batch: NDArray[np.int64], shard: NDArray[np.int64], batches: int, most_idle: int | None
) -> tuple[NDArray[np.int64], int]:
    """Count the shards in use at each batch, and uses; a use goes on through gaps of at most ``most_idle``."""
    shard, batch = np.divmod(np.sort(shard * batches + batch), batches)
    begins = shard[1:] != shard[:-1]
    if most_idle is not None:
        begins |= np.diff(batch) > most_idle
    begin = np.concatenate(([0], np.flatnonzero(begins) + 1))
    end = np.concatenate((begin[1:] - 1, [batch.size - 1]))
    change = np.bincount(batch[begin], minlength=batches + 1) - np.bincount(
        batch[end] + 1, minlength=batches + 1
    )
    return np.cumsum(change)[:-1], begin.size


def _carried(
    batch: NDArray[np.int64], shard: NDArray[np.int64], shards: int, batches: int
) -> NDArray[np.int64]:
    """Count the shards with samples on both sides of each border between batches; ``batch`` ascends."""
    first, last = np.zeros(shards, dtype=np.int64), np.zeros(shards, dtype=np.int64)
    last[shard] = batch
    first[shard[::-1]] = batch[::-1]
    # One that lies in one batch alone begins and ends at the same border, and so counts nowhere.
    change = np.bincount(first, minlength=batches) - np.bincount(last, minlength=batches)
    carried: NDArray[np.int64] = np.cumsum(change)[:-1]
    return carried


def _pairs(batch_sizes: NDArray[np.int64], near: int) -> float:
    """Count the pairs of places that are at most ``near`` batches apart."""
    sizes = batch_sizes.astype(np.float64)
    inside = float((sizes * (sizes - 1)).sum()) / 2
    return inside + sum(float((sizes[lag:] * sizes[:-lag]).sum()) for lag in range(1, near + 1))


def _shard_pairs(met: NDArray[np.int64], visits: NDArray[np.int64], shards: int, near: int) -> float:
    """Count the pairs of samples of one shard that are at most ``near`` batches apart."""
    counts = visits.astype(np.float64)
    pairs = float((counts * (counts - 1)).sum()) / 2
    for lag in range(1, near + 1):
        slot = np.searchsorted(met, met + lag * shards)
        slot[slot == met.size] = 0
        pairs += float((counts * counts[slot])[met[slot] == met + lag * shards].sum())
    return pairs


def _neighbours_apart(
    place: NDArray[np.int64], shard: NDArray[np.int64], batch_size: int
) -> NDArray[np.int64]:
    """Give, for each sample and the next one in its shard that are both given, how many batches they are apart."""
    both = (place[:-1] >= 0) & (place[1:] >= 0) & (shard[:-1] == shard[1:])
    apart: NDArray[np.int64] = np.abs(place[1:] // batch_size - place[:-1] // batch_size)[both]
    return apart


def _spread(place: NDArray[np.int64], shard: NDArray[np.int64], shards: int) -> float:
    """Give the mean distance between two samples of one shard; NaN where no shard has two."""
    there = place >= 0
    if not there.all():
        place, shard = place[there], shard[there]
    counts = np.bincount(shard, minlength=shards)
    begins = np.cumsum(counts) - counts
    ascending = np.sort(shard * (int(place.max()) + 1) + place)  # shard by shard
    # In a sorted shard of m samples, number k is the greater one in k pairs and the lesser one in m-1-k.
    factors = 2 * np.arange(place.size) - np.repeat(2 * begins + counts - 1, counts)
    within = ascending - shard * (int(place.max()) + 1)
    total = float((within.astype(np.float64) * factors).sum())
    return _ratio(total, float((counts * (counts - 1.0)).sum()) / 2)


def _mean_distance(places: NDArray[np.int64], others: NDArray[np.int64], count: int) -> float:
    """Give the mean distance as a ratio to that between two places drawn at random, (n² - 1) / 3n."""
    return float(np.abs(places - others).mean()) * 3 * count / (count * count - 1.0)


def _between(place: NDArray[np.int64], later: NDArray[np.int64], batch_size: int) -> tuple[float, float]:
    """Compare two epochs: displacement, and how much likelier than by chance batch mates meet again."""
    later_place = np.full_like(place, -1)
    later_place[later] = np.arange(later.size)
    both = (place >= 0) & (later_place >= 0)
    place, later_place = place[both], later_place[both]
    if place.size < 2:
        return float("nan"), float("nan")
    first, second = place // batch_size, later_place // batch_size
    _, meeting = np.unique(first * (int(second.max()) + 1) + second, return_counts=True)
    chance = _pairs(np.bincount(first), 0) * _pairs(np.bincount(second), 0)
    again = _ratio(_pairs(meeting, 0), chance / (place.size * (place.size - 1) / 2))
    return _mean_distance(place, later_place, place.size), again


def _ratio(found: float, expected: float) -> float:
    return found / expected if expected else float("nan")
