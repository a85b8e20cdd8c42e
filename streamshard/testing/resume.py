"""``assert_resumes_exactly``: does a loader, interrupted anywhere, go on as if it had never stopped?"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from streamshard.order.world import World
from streamshard.testing.runs import Point, Run, check_same_run, go_on, record
from streamshard.testing.worlds import Ranks, check_chain, check_world


def assert_resumes_exactly(
    make_loader: Callable[..., Any],
    *,
    epochs: int = 2,
    random_cuts: int = 3,
    seed: int = 0,
    worlds: Sequence[int] | None = None,
    same_order: bool = True,
    equal_steps: bool = True,
    samples_of: Callable[[Any], Iterable[Any]] | None = None,
) -> None:
    """Check that a loader goes on exactly from its states: the same batches, value by value, and the same states.

    Two loaders are read without interruption and must agree. Then, for each of several places, a fresh loader
    gets the state that the first one had there, sent through JSON, and everything that follows is compared. The
    places: before the first batch, just after ``iter()``, after the first batch, in the middle, around the end of
    each epoch, after the last batch, and some at random. At every place ``state_dict()`` must give the same twice,
    and right after ``load_state_dict`` what was loaded.

    If ``make_loader`` has a parameter ``world``, several worlds are pretended, their ranks reading one after
    another in this process. Padding apart, each must give the same samples in the same global order, and so must
    chains of runs in changing worlds, each going on from the state of the one before: no sample lost or repeated.

    What is kept of a batch is a digest and a short text of each value, so batches may be large; but everything is
    read dozens of times, so the dataset should be small.

    Args:
        make_loader: called without arguments, or with ``world=World(...)``; returns a fresh loader, always
            configured the same: a ``StreamingDataLoader``, or anything with ``__iter__`` (one epoch), ``state_dict()``
            and ``load_state_dict(state)``. An attribute ``last_batch_padding`` counts the repeats that end the
            last batch received.
        epochs: epochs to read, at least 1; the first two batches of the next one are read as well.
        random_cuts: how many random places, and chains of worlds, are tried.
        seed: chooses them.
        worlds: numbers of ranks to pretend; default 1, 2 and 3 where ``make_loader`` takes ``world``.
        same_order: expect the same global order in all worlds. It holds for one global batch
            (``global_batch_size=``); with another one for each world, ``False`` compares what an epoch holds.
        equal_steps: expect the same number of batches on all ranks; ``False`` for ``remainder="exact"``.
        samples_of: returns the samples of a batch, or what identifies them; default: ``rows_of`` for lists of
            samples, rows of a tensor, and dicts or tuples of columns. Only used with ``world``.

    Raises:
        AssertionError: the loader does not resume exactly; says where, what was expected, what was found, and the
            likely reason.
        TypeError, ValueError: arguments that make no sense, or batches that cannot be described.
    """
    if epochs < 1 or random_cuts < 0:
        raise ValueError(f"epochs={epochs}, random_cuts={random_cuts}: expected at least 1 and 0")
    takes_world = "world" in inspect.signature(make_loader).parameters
    if not takes_world:
        if worlds is not None:
            raise TypeError(
                "worlds= is given, but make_loader has no parameter named world to be told which one"
            )
        _check_alone(make_loader, "", epochs, random_cuts, random.Random(seed))  # noqa: S311 - places to look at
        return
    sizes = list(dict.fromkeys((1, 2, 3) if worlds is None else worlds))
    if not sizes or min(sizes) < 1:
        raise ValueError(f"worlds={worlds!r}: expected numbers of ranks, each at least 1")
    _check_worlds(
        make_loader,
        sizes,
        epochs=epochs,
        chains=random_cuts,
        chance=random.Random(seed),  # noqa: S311 - places to look at
        same_order=same_order,
        equal_steps=equal_steps,
        samples_of=samples_of,
    )


def _check_alone(
    make: Callable[[], Any], whose: str, epochs: int, random_cuts: int, chance: random.Random
) -> None:
    run = record(make(), epochs, whose=whose, with_states=True)
    check_same_run(run, record(make(), epochs, whose=whose, with_states=False), make)
    for point in _cuts(run, random_cuts, chance):
        go_on(make(), run, point)


def _cuts(run: Run, random_cuts: int, chance: random.Random) -> list[Point]:
    """Choose the places at which to interrupt, in the order of the run, none twice."""
    points = run.points
    first_batch = next((number for number, point in enumerate(points) if point.received), 0)
    chosen = {0, first_batch - 1, first_batch, len(points) // 2, len(points) - 1}
    for number, point in enumerate(points[:-1]):
        if (
            points[number + 1].epoch != point.epoch
        ):  # the end, and the last batch but one and the last before it
            chosen.update((number - 2, number - 1, number, number + 1))
    rest = [number for number in range(len(points)) if number not in chosen]
    chosen.update(chance.sample(rest, min(random_cuts, len(rest))))
    return [points[number] for number in sorted(chosen) if number >= 0]


def _check_worlds(
    make_loader: Callable[..., Any],
    sizes: list[int],
    *,
    epochs: int,
    chains: int,
    chance: random.Random,
    same_order: bool,
    equal_steps: bool,
    samples_of: Callable[[Any], Iterable[Any]] | None,
) -> None:
    largest = max(sizes)
    for rank, size in dict.fromkeys([(0, sizes[0]), (largest - 1, largest)]):
        _check_alone(
            partial(make_loader, world=World(rank, size)),
            f"rank {rank} of {size}: ",
            epochs,
            chains,
            chance,
        )

    def ranks_of(size: int) -> Ranks:
        loaders = [make_loader(world=World(rank, size)) for rank in range(size)]
        return Ranks(loaders, equal_steps=equal_steps, samples_of=samples_of)

    first = ranks_of(sizes[0])
    reference = [first.read() for _ in range(epochs)]
    for size in sizes[1:]:
        check_world(reference, ranks_of(size), size, same_order=same_order)
    for number in range(chains):
        # The first chain visits all worlds in turn, the others as it comes.
        turns = [*sizes[1:], sizes[0]] if number == 0 else chance.choices(sizes, k=max(4, len(sizes)))
        check_chain(reference, ranks_of, turns, chance, same_order=same_order)
