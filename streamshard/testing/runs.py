"""One uninterrupted run of a loader, and runs that go on from its states."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from streamshard.testing.portrait import Leaf, Portrait, first_difference, portrait_of

AFTERWARDS = 2
"""Batches that are read of the epoch after the last one, to see that it is the right one."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a run at which a state was taken.

    Attributes:
        epoch: its number, from 0.
        received: batches received of this epoch.
        moment: ``before`` iter(), ``begun`` (after it, before the first batch), ``within`` or ``after`` the epoch.
        state: JSON text.
    """

    epoch: int
    received: int
    moment: str
    state: str

    def __str__(self) -> str:
        where = {
            "before": f"before iter() of epoch {self.epoch}",
            "begun": f"after iter() of epoch {self.epoch}, before its first batch",
            "within": f"after batch {self.received - 1} of epoch {self.epoch}",
            "after": f"after the end of epoch {self.epoch}",
        }
        return where[self.moment]


@dataclass(slots=True)
class Run:
    """What one loader gave.

    Attributes:
        epochs: how many were read whole.
        whose: beginning of each message; empty, or the rank.
        batches: of each epoch, and the first ``AFTERWARDS`` of the one after.
        points: states in the order in which they were taken.
    """

    epochs: int
    whose: str
    batches: list[list[Portrait]] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    def state_at(self, epoch: int, received: int) -> str | None:
        """The state taken just after a batch."""
        for point in self.points:
            if (point.epoch, point.received, point.moment) == (epoch, received, "within"):
                return point.state
        return None


def record(loader: Any, epochs: int, *, whose: str, with_states: bool) -> Run:
    """Read a fresh loader without interruption, taking states everywhere or nowhere."""
    run = Run(epochs, whose)

    def note(epoch: int, received: int, moment: str) -> None:
        if with_states:
            point = Point(epoch, received, moment, "")
            run.points.append(Point(epoch, received, moment, state_of(loader, f"{whose}{point}")))

    for epoch in range(epochs + 1):
        run.batches.append([])
        if epoch < epochs:
            note(epoch, 0, "before")
        batches = iter(loader)
        if epoch < epochs:
            note(epoch, 0, "begun")
        for batch in batches if epoch < epochs else itertools.islice(batches, AFTERWARDS):
            run.batches[-1].append(portrait_of(batch))
            if epoch < epochs:
                note(epoch, len(run.batches[-1]), "within")
        if epoch < epochs:
            note(epoch, len(run.batches[-1]), "after")
        del batches
    return run


def state_of(loader: Any, where: str) -> str:
    """Take a state twice and return its JSON text."""
    texts = []
    for _ in range(2):
        state = loader.state_dict()
        try:
            texts.append(json.dumps(state, sort_keys=True))
        except (TypeError, ValueError) as error:
            raise AssertionError(
                f"{where}: state_dict() returned something that JSON cannot hold ({error}): {state!r}"
            ) from error
    difference = _state_difference(texts[0], texts[1])
    if difference:
        raise AssertionError(f"{where}: state_dict() taken twice in a row gave two states: {difference}")
    return texts[0]


def load(loader: Any, state: str, where: str, *, elsewhere: bool = False) -> None:
    """Let a fresh loader load a state, and check that it says so.

    One of another world (``elsewhere``) may count off the rest of the epoch anew and give a state that says so, if that
    state is a lasting one. Whether it leads to the same samples, reading on tells.
    """
    _load(loader, state, where)
    told = state_of(loader, f"{where}, just loaded")
    difference = _state_difference(state, told)
    if difference and elsewhere:
        _load(loader, told, f"{where}, just loaded")
        difference = _state_difference(told, state_of(loader, f"{where}, loaded again"))
    if difference:
        raise AssertionError(
            f"{where}: right after load_state_dict(), state_dict() does not return what was loaded: {difference}. "
            "A checkpoint saved before the next batch would be wrong; does load_state_dict() keep everything?"
        )


def _load(loader: Any, state: str, where: str) -> None:
    try:
        loader.load_state_dict(json.loads(state))
    except Exception as error:
        raise AssertionError(
            f"{where}: load_state_dict() of a fresh loader refused the state that another loader of the same "
            f"make_loader gave there: {type(error).__name__}: {error}"
        ) from error


def check_same_run(run: Run, other: Run, make: Callable[[], Any]) -> None:
    """Compare two uninterrupted runs, the second without states; where they differ, find out why."""
    difference = _run_difference(run, other)
    if difference is None:
        return
    if _run_difference(other, record(make(), run.epochs, whose=run.whose, with_states=False)) is None:
        raise AssertionError(
            f"{run.whose}state_dict() changes what comes after it: a run with states taken after each batch and one "
            f"without differ. {difference}"
        )
    raise AssertionError(
        f"{run.whose}two fresh loaders, never interrupted, do not give the same: make_loader() must return a loader "
        "of the same data, seed and settings each time, and its transforms must draw no random numbers that "
        f"depend on anything but the sample. {difference}"
    )


def _run_difference(run: Run, other: Run) -> str | None:
    for epoch, (expected, found) in enumerate(zip(run.batches, other.batches, strict=True)):
        for number, (one, two) in enumerate(zip(expected, found, strict=False)):
            difference = first_difference(one, two)
            if difference:
                return f"Epoch {epoch}, batch {number}, {_tell(difference, 'once', 'then')}"
        if len(expected) != len(found):
            return f"Epoch {epoch} has once {len(expected)}, then {len(found)} batches"
    return None


def go_on(loader: Any, run: Run, point: Point) -> None:
    """Load a point's state into a fresh loader and compare everything that follows with the run."""
    where = f"{run.whose}resumed from the state taken {point}"
    load(loader, point.state, where)
    epoch, number = point.epoch, point.received
    if point.moment == "after":
        epoch, number = epoch + 1, 0
    batches: Iterator[Any] = iter(loader)
    if number == len(run.batches[epoch]) and epoch < run.epochs:
        # The state after the last batch may lead to an empty rest of its epoch, or to the next one.
        first = list(itertools.islice(batches, 1))
        epoch, number = epoch + 1, 0
        batches = itertools.chain(first, batches) if first else iter(loader)
    while True:
        _compare(loader, run, where, batches, epoch, number)
        epoch, number = epoch + 1, 0
        if epoch > run.epochs:
            return
        batches = iter(loader)


def _compare(loader: Any, run: Run, where: str, batches: Iterator[Any], epoch: int, number: int) -> None:
    expected = run.batches[epoch]
    for batch in batches:
        if epoch == run.epochs and number == len(expected):
            return  # only the beginning of this epoch was read
        found = portrait_of(batch)
        at = f"{where}, batch {number} of epoch {epoch}"
        if number >= len(expected):
            raise AssertionError(
                f"{at}: the uninterrupted run has {len(expected)} batches in this epoch, the resumed one has more"
                f"{_explain(run, epoch, number, found)}"
            )
        difference = first_difference(expected[number], found)
        if difference:
            raise AssertionError(
                f"{at}, {_tell(difference, 'expected', 'found')}{_explain(run, epoch, number, found)}"
            )
        number += 1
        state = run.state_at(epoch, number)
        if state is not None:
            changed = _state_difference(state, state_of(loader, at))
            if changed:
                raise AssertionError(
                    f"{at} is right, but the state after it is not that of the uninterrupted run: {changed}. "
                    "What a state counts must count on from what was loaded"
                )
    if number < len(expected):
        raise AssertionError(
            f"{where}: epoch {epoch} ended after batch {number - 1}; the uninterrupted run has {len(expected)} "
            "batches there. Were samples that something had read ahead counted as received?"
        )


def _explain(run: Run, epoch: int, number: int, found: Portrait) -> str:
    """Guess why a batch is not the expected one."""
    starts = list(itertools.accumulate((len(batches) for batches in run.batches), initial=0))
    places = [
        (starts[other] + at - starts[epoch] - number, other, at)
        for other, batches in enumerate(run.batches)
        for at, portrait in enumerate(batches)
        if first_difference(portrait, found) is None
    ]
    if not places:
        return _explain_values(run, epoch, number, found)
    away, other_epoch, at = min(places, key=lambda place: abs(place[0]))
    it_is = f". It got what the uninterrupted run gives as batch {at} of epoch {other_epoch}: "
    if (other_epoch, at) == (0, 0):
        return f"{it_is}the loader began anew; does load_state_dict() reach whatever keeps the place?"
    if away > 0:
        return (
            f"{it_is}the state is {away} ahead. It must count the batches handed over, not those that were read "
            "ahead or prefetched"
        )
    return f"{it_is}the state is {-away} behind. It must count the batch that was just handed over"


def _explain_values(run: Run, epoch: int, number: int, found: Portrait) -> str:
    if number >= len(run.batches[epoch]):
        return ""
    expected = {leaf.path: leaf.digest for leaf in run.batches[epoch][number] if leaf.path}
    inner = [leaf for leaf in found if leaf.path]
    same = [leaf.path for leaf in inner if expected.get(leaf.path) == leaf.digest]
    if not same or len(inner) != len(expected):
        return ""
    return (
        f". {len(same)} of its {len(inner)} values are right ({', '.join(same[:3])}), so these may be the right "
        "samples, changed on the way: does a transform keep something from sample to sample, such as a random "
        "generator or a counter, that is not in the state?"
    )


def _tell(difference: tuple[Leaf, Leaf], one: str, other: str) -> str:
    expected, found = difference
    return f"at {expected.path or 'its top'}: {one} {expected.shown}, {other} {found.shown}"


def _state_difference(expected: str, found: str) -> str | None:
    difference = first_difference(portrait_of(json.loads(expected)), portrait_of(json.loads(found)))
    return None if difference is None else _tell(difference, "expected", "found")
