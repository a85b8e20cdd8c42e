"""How many samples each stream gives to each part of each epoch, and at which of its samples it stands there.

An epoch is cut into segments, inside which the streams are mixed in fixed shares. There is one a regular epoch;
more where a schedule changes the weights in the middle, or where a run goes on from a state under other weights.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from streamshard.order.walk_arguments import MAX_SAMPLES

_SIGNATURE_NBYTES = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of positions of one epoch in which each stream has a fixed number of samples.

    Attributes:
        begin: its first position in the epoch.
        samples: each stream's samples in it.
        cursors: each stream's walk index at ``begin``.
        unit: (global batch, batch of one rank) for which its batches were counted off, where that matters and a
            state has said it; else None.
    """

    begin: int
    samples: tuple[int, ...]
    cursors: tuple[int, ...]
    unit: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        """The position after its last."""
        return self.begin + sum(self.samples)


@dataclass(frozen=True, slots=True)
class Quotas:
    """What an epoch takes of each stream.

    Attributes:
        per_epoch: samples of each stream in a whole epoch; with ``changes``, in the first one, if nothing changed.
        weights: None: ``per_epoch`` is a number for each stream. Else the streams' relative weights, so that any
            part of an epoch is shared out by them.
        changes: (position since the start of the run, weights from there on), positions ascending; needs ``weights``.

    Raises:
        ValueError: numbers that contradict each other.
    """

    per_epoch: tuple[int, ...]
    weights: tuple[Fraction, ...] | None = None
    changes: tuple[tuple[int, tuple[Fraction, ...]], ...] = ()

    def __post_init__(self) -> None:
        if not self.per_epoch or min(self.per_epoch) < 0 or not 0 < sum(self.per_epoch) <= MAX_SAMPLES:
            raise ValueError(
                f"samples_per_epoch={list(self.per_epoch)}: expected numbers >= 0 with a sum from 1 to {MAX_SAMPLES}"
            )
        if self.changes and self.weights is None:
            raise ValueError("a mixture that changes needs relative weights to change from")
        positions = [position for position, _ in self.changes]
        if positions != sorted(set(positions)) or (positions and positions[0] < 0):
            raise ValueError(f"positions {positions}: expected different numbers >= 0 in ascending order")
        for weights in (
            *([] if self.weights is None else [self.weights]),
            *(each for _, each in self.changes),
        ):
            if len(weights) != len(self.per_epoch):
                raise ValueError(f"{len(weights)} weights for {len(self.per_epoch)} streams")
            if min(weights) < 0 or not any(weights):
                raise ValueError(
                    f"weights {[float(each) for each in weights]}: expected numbers >= 0, not all 0"
                )

    @property
    def num_samples(self) -> int:
        """Samples of a whole epoch."""
        return sum(self.per_epoch)

    def pieces(self, epoch: int, begin: int, taken: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Cut the rest of an epoch, from position ``begin`` on, into (first position, samples of each stream).

        Empty where the epoch has nothing left. ``taken`` is what each stream has given to this epoch before.
        """
        if self.weights is None:
            rest = tuple(max(0, n - given) for n, given in zip(self.per_epoch, taken, strict=True))
            return [(begin, rest)] if any(rest) else []
        whole = self.num_samples
        base = epoch * whole
        inside = [p - base for p, _ in self.changes if base + begin < p < base + whole]
        borders = [begin, *inside, whole] if begin < whole else []
        found = []
        for first, last in itertools.pairwise(borders):
            found.append((first, shared_out(last - first, self._weights_at(base + first))))
        return found

    def changing_epochs(self) -> list[int]:
        """Epochs that differ from the one before or the one after, ascending."""
        whole = self.num_samples
        found = set()
        for position, _ in self.changes:
            epoch, inside = divmod(position, whole)
            found |= {epoch, epoch + 1} if inside else {epoch}
        return sorted(found)

    def changes_inside_epochs(self) -> list[int]:
        """Positions of changes that are not at the beginning of an epoch."""
        return [position for position, _ in self.changes if position % self.num_samples]

    def signature(self, keys: Sequence[int]) -> str:
        """Give a digest of all this and of the streams, by their keys, in their order."""
        weights = [] if self.weights is None else _texts(self.weights)
        changes = [(position, _texts(weights)) for position, weights in self.changes]
        text = repr((list(keys), list(self.per_epoch), weights, changes))
        return hashlib.blake2b(text.encode(), digest_size=_SIGNATURE_NBYTES).hexdigest()

    def _weights_at(self, position: int) -> tuple[Fraction, ...]:
        number = bisect_right(self.changes, position, key=lambda change: change[0])
        if number:
            return self.changes[number - 1][1]
        return self.weights or ()


@dataclass(frozen=True, slots=True)
class Splice:
    """Where a run went on under quotas that are not those it had begun with.

    Attributes:
        epoch, begin: the place; earlier ones are as if the run had always had its present quotas.
        cursors: each stream's walk index there.
        taken: what each stream had given to this epoch before.
        samples: what each stream gives to the segment that begins there; None: what the quotas say.
        unit: as in :class:`Segment`.
    """

    epoch: int
    begin: int
    cursors: tuple[int, ...]
    taken: tuple[int, ...]
    samples: tuple[int, ...] | None = None
    unit: tuple[int, int] | None = None

    def keeps(self, per_epoch: Sequence[int]) -> bool:
        """Whether all epochs take of each stream what they would without it: only batches are counted off anew."""
        return (
            self.samples is not None
            and self.begin == sum(self.taken)
            and all(
                cursor - taken == self.epoch * whole and taken + samples == whole
                for cursor, taken, samples, whole in zip(
                    self.cursors, self.taken, self.samples, per_epoch, strict=True
                )
            )
        )


@dataclass(frozen=True, slots=True)
class _Era:
    """Epochs from ``first_epoch`` on that are cut alike, up to the next era."""

    first_epoch: int
    pieces: tuple[tuple[int, tuple[int, ...]], ...]
    cursors: tuple[int, ...]
    unit: tuple[int, int] | None = None

    def segments(self, epoch: int) -> tuple[Segment, ...]:
        cursors = self.cursors_at(epoch)
        found: list[Segment] = []
        for begin, samples in self.pieces:
            found.append(Segment(begin, samples, cursors, self.unit if not found else None))
            cursors = tuple(c + n for c, n in zip(cursors, samples, strict=True))
        return tuple(found)

    def cursors_at(self, epoch: int) -> tuple[int, ...]:
        epochs = epoch - self.first_epoch
        given = [sum(samples) for samples in zip(*(samples for _, samples in self.pieces), strict=True)]
        return tuple(cursor + epochs * n for cursor, n in zip(self.cursors, given, strict=True))


class Timeline:
    """The segments of every epoch.

    Args:
        quotas: what an epoch takes.
        splice: where the run went on from a state under other quotas.
    """

    def __init__(self, quotas: Quotas, splice: Splice | None = None) -> None:
        self.quotas = quotas
        self.splice = splice
        nothing = (0,) * len(quotas.per_epoch)
        self._plain = _eras(quotas, [], 0, nothing)
        self._spliced = self._plain
        self._held: tuple[_Era, int, tuple[Segment, ...]] | None = None
        if splice is not None:
            self._spliced = self._after(splice)

    def segments(self, epoch: int, start: int = 0) -> tuple[Segment, ...]:
        """Give the segments of an epoch for an iteration that begins at position ``start`` of it.

        They cover the epoch to its end, from 0 or, after a splice, from there.
        """
        splice = self.splice
        plain = splice is None or (epoch, start) < (splice.epoch, splice.begin)
        eras = self._plain if plain else self._spliced
        number = bisect_right(eras, epoch, key=lambda era: era.first_epoch)
        era = eras[number - 1]
        if self._held is None or self._held[0] is not era or self._held[1] != epoch:
            self._held = (era, epoch, era.segments(epoch))
        return self._held[2]

    def size(self, epoch: int, start: int = 0) -> int:
        """Give the samples of an epoch for an iteration that begins at position ``start`` of it."""
        return self.segments(epoch, start)[-1].end

    def _after(self, splice: Splice) -> list[_Era]:
        quotas = self.quotas
        if splice.samples is None:
            pieces = quotas.pieces(splice.epoch, splice.begin, splice.taken)
        else:
            end = splice.begin + sum(splice.samples)
            taken = [a + b for a, b in zip(splice.taken, splice.samples, strict=True)]
            pieces = [(splice.begin, splice.samples), *quotas.pieces(splice.epoch, end, taken)]
        if not pieces:
            raise ValueError(f"epoch {splice.epoch} has nothing left at position {splice.begin}")
        first = _Era(splice.epoch, tuple(pieces), splice.cursors, splice.unit)
        return _eras(quotas, [first], splice.epoch + 1, first.cursors_at(splice.epoch + 1))


def _eras(quotas: Quotas, eras: list[_Era], epoch: int, cursors: tuple[int, ...]) -> list[_Era]:
    """Append the eras from ``epoch`` on, where the streams stand at ``cursors``."""
    nothing = (0,) * len(cursors)
    changing = [each for each in quotas.changing_epochs() if each > epoch]
    for number in (epoch, *changing):
        if number != epoch:
            cursors = eras[-1].cursors_at(number)
        eras.append(_Era(number, tuple(quotas.pieces(number, 0, nothing)), cursors))
    return eras


def _texts(weights: Sequence[Fraction]) -> list[str]:
    # In hexadecimal: Python refuses to write out thousands of decimal digits.
    return [f"{weight.numerator:x}/{weight.denominator:x}" for weight in weights]


@lru_cache(maxsize=1024)
def shared_out(size: int, weights: tuple[Fraction, ...]) -> tuple[int, ...]:
    """Share ``size`` out in proportion to weights, not all 0, by largest remainder; ties to the earlier one."""
    # Whole numbers over one denominator: sums of fractions would reduce numbers of thousands of digits each time.
    denominator = math.lcm(*(weight.denominator for weight in weights))
    whole = [weight.numerator * (denominator // weight.denominator) for weight in weights]
    total = sum(whole)
    divided = [divmod(size * weight, total) for weight in whole]
    shares = [share for share, _ in divided]
    by_remainder = sorted(range(len(shares)), key=lambda number: (-divided[number][1], number))
    for number in by_remainder[: size - sum(shares)]:
        shares[number] += 1
    return tuple(shares)
