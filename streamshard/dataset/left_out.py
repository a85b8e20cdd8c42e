"""Samples that were left out of a batch: counted where they are read, and again where they are received."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streamshard.errors import BadSamplesError, StateError

LEFT_OUT = "left_out"
"""Key under which a loader's state says how many samples its epoch has left out so far."""

_MOST = (1 << 53) - 1


class LeftOut(NamedTuple):
    """How many samples of the order were not given, or were replaced, in one epoch so far.

    Attributes:
        bad: those that could not be read or made.
        filtered: those that ``filter=`` did not want.
    """

    bad: int = 0
    filtered: int = 0


class Handed(NamedTuple):
    """A batch on its way from a worker to its trainer. torch collates and pins what is in it.

    Attributes:
        batch: what the trainer gets.
        bad, filtered: as in ``LeftOut``, of this batch.
        padding: how many of its samples, at the end, are repeats that fill it up.
        cause: what was wrong with the last bad one, "" where none was.
    """

    batch: Any
    bad: int
    filtered: int
    padding: int
    cause: str


class Sifted(NamedTuple):
    """A batch whose samples will be taken one by one.

    Attributes:
        samples: those that are left.
        places: their places in the whole batch, ascending.
        size: samples of the whole batch.
    """

    samples: list[Any]
    places: list[int]
    size: int

    def to_come(self) -> list[int]:
        """For 0, 1, … samples that are left to take: how many places of the batch are left with them."""
        after = [0, *(self.size - 1 - place for place in reversed(self.places[:-1])), self.size]
        return after if self.places else [0]


class CollateInside:
    """Applies a collate function to the batch in a ``Handed``; one that does so already is taken over."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        # Lightning makes loaders anew from the attributes of others.
        self.collate_fn: Callable[[Any], Any] = (
            collate_fn.collate_fn if isinstance(collate_fn, CollateInside) else collate_fn
        )

    def __call__(self, handed: Handed) -> Handed:
        return handed._replace(batch=self.collate_fn(handed.batch))


class Tally:
    """Counts what was left out of the batches that a trainer has received in one epoch.

    Args:
        before: what a loaded state says of the part of the epoch before this iteration.
        most: bad samples that are tolerated.
        epoch, limit: for the message.
    """

    def __init__(self, before: LeftOut, most: int, *, epoch: int, limit: float) -> None:
        self.left_out = before
        self.padding = 0
        self._most = most
        self._epoch = epoch
        self._limit = limit

    def receive(self, handed: Handed) -> Any:
        """Count a batch and return what the trainer gets of it.

        Raises:
            BadSamplesError: the epoch has too many bad samples with this batch, which is not counted.
        """
        bad, filtered = self.left_out.bad + handed.bad, self.left_out.filtered + handed.filtered
        if handed.bad and bad > self._most:
            raise too_many(
                bad, self._most, self._limit, epoch=self._epoch, where="on this rank", cause=handed.cause
            )
        self.left_out = LeftOut(bad, filtered)
        self.padding = handed.padding
        return handed.batch


def too_many(bad: int, most: int, limit: float, *, epoch: int, where: str, cause: str) -> BadSamplesError:
    """Say that more bad samples were met than are tolerated; ``where`` says by whom."""
    return BadSamplesError(
        f"epoch {epoch}: {bad:,} bad samples {where}, and error_limit={limit} tolerates {most:,} in the whole "
        f"epoch; the last one: {cause}. Repair the dataset (`streamshard verify` lists what is wrong), or raise "
        "error_limit="
    )


def with_left_out(state: dict[str, Any], left_out: LeftOut) -> dict[str, Any]:
    """Add the counts to a state, if there is anything to count."""
    return {**state, LEFT_OUT: left_out._asdict()} if any(left_out) else state


def take_left_out(state: Any) -> tuple[Any, LeftOut]:
    """Take the counts out of a state; everything else is returned as it is, for others to check.

    Raises:
        StateError: they are no object of exactly these whole numbers.
    """
    if not isinstance(state, Mapping) or LEFT_OUT not in state:
        return state, LeftOut()
    counts = state[LEFT_OUT]
    if not isinstance(counts, Mapping) or set(counts) != set(LeftOut._fields):
        raise StateError(f"state: {LEFT_OUT!r} is not an object with the keys {', '.join(LeftOut._fields)}")
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST:
            raise StateError(f"state: {LEFT_OUT!r}: {name!r} is no whole number from 0 to {_MOST}")
    return {name: value for name, value in state.items() if name != LEFT_OUT}, LeftOut(**counts)
