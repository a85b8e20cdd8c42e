"""One iteration under way: where it began, how far its consumer has got, and how a state goes on with it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import length_hint
from typing import Any

from streamshard.dataset.feed import Share
from streamshard.dataset.handover import Beginning
from streamshard.dataset.left_out import Sifted
from streamshard.errors import StateError

PROGRESS = "progress"
"""Key under which a worker's own state says how much of its share was taken."""

_FIELDS = ("samples", "rank", "ranks", "worker", "workers", "global_batch_size")
_MOST = (1 << 53) - 1


class Iteration:
    """Counts what is taken of one share.

    Args:
        beginning: when and where it began.
        share: what it reads.
        taken: samples of the share that a loaded state has left out at the start.
    """

    def __init__(self, beginning: Beginning, share: Share, taken: int = 0) -> None:
        self.beginning = beginning
        self.share = share
        self.is_closed = False
        self._taken_before = taken
        self._given = taken
        self._current: Iterator[Any] = iter(())
        self._to_come: list[int] | None = None

    def give(self, samples: Sequence[Any]) -> Iterator[Any]:
        """Return an iterator over a batch. What is left in it tells what was taken, at no cost per sample."""
        if isinstance(samples, Sifted):
            return self._give_sifted(samples)
        self._given += len(samples)
        self._current = iter(samples)
        return self._current

    def _give_sifted(self, sifted: Sifted) -> Iterator[Any]:
        # Samples that were left out count as taken with the one before them, the last ones with the batch.
        self._given += sifted.size
        self._to_come = sifted.to_come()
        self._current = iter(sifted.samples)
        return self._current

    def give_whole(self, num_samples: int) -> None:
        """Count a batch that is handed over in one piece."""
        self._given += num_samples

    def deliver(
        self, feed: Iterable[tuple[Any, int]], *, whole: bool, drop: int, at_end: Callable[[], None]
    ) -> Iterator[Any]:
        """Yield what a feed gives, and count it.

        Args:
            feed: batches with their number of samples.
            whole: yield batches in one piece, not sample by sample.
            drop: samples to leave out at the start, already counted.
            at_end: called when the feed has ended; may raise.
        """
        try:
            for batch, num_samples in feed:
                if whole:
                    self.give_whole(num_samples)
                    yield batch
                    continue
                samples = self.give(batch)
                if isinstance(batch, Sifted):
                    drop = bisect_left(batch.places, drop)
                for _ in islice(samples, drop):
                    drop -= 1
                yield from samples
            at_end()
        finally:
            self.is_closed = True

    @property
    def samples(self) -> int:
        """Samples of the share taken so far."""
        left = length_hint(self._current)
        return self._given - (left if self._to_come is None else self._to_come[left])

    @property
    def is_untouched(self) -> bool:
        """Whether there is something to take and nothing was taken."""
        return self.samples == self._taken_before and not self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether the whole share was taken."""
        return self.samples >= self.share.num_samples

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be taken: finished, stopped, left, or ended by an error."""
        return self.is_closed or self.is_finished

    def progress(self) -> dict[str, int]:
        """Describe what was taken, for a state that the same worker of the same world goes on with."""
        share = self.share
        return {
            "samples": self.samples,
            "rank": share.rank,
            "ranks": share.plan.ranks,
            "worker": share.worker,
            "workers": share.workers,
            "global_batch_size": share.plan.global_batch_size,
        }


def parse_progress(document: object) -> dict[str, int]:
    """Check what ``Iteration.progress`` gave and somebody kept.

    Raises:
        StateError: not an object of exactly these whole numbers.
    """
    if not isinstance(document, Mapping) or set(document) != set(_FIELDS):
        raise StateError(f"state: {PROGRESS!r} is not an object with the keys {', '.join(_FIELDS)}")
    for name in _FIELDS:
        value = document[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
            raise StateError(f"state: {PROGRESS!r}: {name!r} is no whole number from 0 to {_MOST}")
    return dict(document)


def go_on(share: Share, progress: Mapping[str, int]) -> tuple[Share, int, int]:
    """Leave out what a worker's own state says was taken.

    Returns:
        The rest of the share, the samples in the batches left out, and the samples to drop of the first one left.

    Raises:
        StateError: the state belongs to another rank, worker or batch size; names each difference.
    """
    here = Iteration(Beginning(0, 0, 0), share).progress()
    differences = [
        f"{name} was {progress[name]} and is {here[name]}"
        for name in _FIELDS
        if name != "samples" and progress[name] != here[name]
    ]
    if differences:
        raise StateError(
            "this state counts what one worker of one rank has read, so it fits the same ranks and workers only: "
            + "; ".join(differences)
            + ". A state of StreamingDataLoader fits any number of them"
        )
    batches = share.whole_batches(progress["samples"])
    before = share.samples_before(batches)
    if batches == share.num_batches:
        return replace(share, skip=batches), before, 0
    return replace(share, skip=batches), before, progress["samples"] - before
