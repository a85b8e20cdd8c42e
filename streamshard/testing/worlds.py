"""Several worlds pretended in one process: the same samples, in whichever world they are read."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from streamshard.dataset.left_out import LEFT_OUT
from streamshard.testing.portrait import digest_of, portrait_of, show
from streamshard.testing.rows import rows_of
from streamshard.testing.runs import load, state_of


class Sample(NamedTuple):
    """A sample as it came out of a loader; equal ones have equal digests."""

    digest: bytes
    shown: str


class Part(NamedTuple):
    """What all ranks of a world received of one epoch.

    Attributes:
        steps: global batches, the ranks' parts joined, without padding.
        is_over: whether the loaders said that the epoch is over.
        state: JSON text of the state afterwards, the same on all ranks.
    """

    steps: list[list[Sample]]
    is_over: bool
    state: str

    @property
    def samples(self) -> list[Sample]:
        """All samples in global order."""
        return list(itertools.chain.from_iterable(self.steps))


class Ranks:
    """All ranks of a world, which read one after another.

    Args:
        loaders: a fresh one for each rank.
        equal_steps: refuse ranks with different numbers of batches.
        samples_of: returns the samples of a batch; None: ``rows_of``.
    """

    def __init__(
        self, loaders: Sequence[Any], *, equal_steps: bool, samples_of: Callable[[Any], Iterable[Any]] | None
    ) -> None:
        self._loaders = loaders
        self._equal_steps = equal_steps
        self._samples_of = rows_of if samples_of is None else samples_of

    def load(self, state: str) -> None:
        """Let each rank load a state that some rank of some world has saved."""
        for rank, loader in enumerate(self._loaders):
            load(loader, state, f"rank {rank} of {len(self._loaders)}", elsewhere=True)

    def read(self, steps: int | None = None) -> Part:
        """Read one epoch or what is left of it, or its next steps."""
        batches: list[list[list[Sample]]] = []
        ended = []
        states = []
        for rank, loader in enumerate(self._loaders):
            batches.append([])
            ended.append(True)
            for batch in iter(loader):
                batches[-1].append(self._real_samples(batch, loader))
                if len(batches[-1]) == steps:
                    ended[-1] = False
                    break
            states.append(state_of(loader, f"rank {rank} of {len(self._loaders)}"))
        self._check_ranks(batches, states)
        joined = itertools.zip_longest(*batches, fillvalue=[])
        return Part([list(itertools.chain.from_iterable(step)) for step in joined], all(ended), states[0])

    def _real_samples(self, batch: Any, loader: Any) -> list[Sample]:
        samples = list(self._samples_of(batch))
        padding = getattr(loader, "last_batch_padding", 0)
        portraits = map(portrait_of, samples[: len(samples) - padding])
        return [Sample(digest_of(portrait), show(portrait)) for portrait in portraits]

    def _check_ranks(self, batches: Sequence[Sequence[Any]], states: Sequence[str]) -> None:
        counts = [len(each) for each in batches]
        if max(counts) - min(counts) > (not self._equal_steps):
            raise AssertionError(
                f"the {len(counts)} ranks of one world got {counts} batches: training would hang in the step that "
                "some ranks do not take"
            )
        for rank, state in enumerate(states):
            if _of_all_ranks(state) != _of_all_ranks(states[0]):
                raise AssertionError(
                    f"after the same {max(counts)} batches, rank {rank} of {len(states)} has the state {state} and "
                    f"rank 0 has {states[0]}: a state saved by one rank could not serve another number of ranks"
                )


def _of_all_ranks(state: str) -> Any:
    """What of a state must not depend on the rank: all but its count of what was left out."""
    document = json.loads(state)
    if isinstance(document, dict):
        document.pop(LEFT_OUT, None)
    return document


def check_same_samples(
    expected: Sequence[Sample], found: Sequence[Sample], whose: str, *, same_order: bool
) -> None:
    """Compare an epoch, or what there was of it, with the epoch of the first world.

    Raises:
        AssertionError: a sample is lost, repeated, or (with ``same_order``) at another place.
    """
    known = {sample.digest: sample.shown for sample in (*found, *expected)}
    times, times_found = (Counter(sample.digest for sample in each) for each in (expected, found))
    lost, extra = times - times_found, times_found - times
    if lost or extra:
        said = [
            f"{sum(counter.values())} {what} (such as {known[next(iter(counter))]})"
            for counter, what in ((lost, "lost"), (extra, "repeated or not of this epoch"))
            if counter
        ]
        raise AssertionError(
            f"{whose} gave {len(found)} samples where the first world gives {len(expected)}: "
            f"{' and '.join(said)}. Repeats that fill up a last batch must be counted by the loader's "
            "last_batch_padding"
        )
    if not same_order:
        return
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one.digest != other.digest:
            raise AssertionError(
                f"{whose} gave the same samples in another global order: at place {place} of the epoch expected "
                f"{one.shown}, found {other.shown}. The order is the same for one global batch only: give the "
                "dataset global_batch_size=, or pass same_order=False to compare what an epoch holds"
            )


def check_world(reference: Sequence[Part], ranks: Ranks, size: int, *, same_order: bool) -> None:
    """Compare an uninterrupted run in another world with the first one's."""
    for epoch, expected in enumerate(reference):
        part = ranks.read()
        check_same_samples(
            expected.samples, part.samples, f"a world of {size} in epoch {epoch}", same_order=same_order
        )


def check_chain(
    reference: Sequence[Part],
    make: Callable[[int], Ranks],
    sizes: Sequence[int],
    chance: random.Random,
    *,
    same_order: bool,
) -> None:
    """Read the epochs in a chain of worlds, each going on from the state of the one before.

    Args:
        reference: the epochs as the first world gives them.
        make: makes the fresh ranks of a world of some size.
        sizes: of the worlds, in turn; the last one reads to the end.
        chance: chooses after how many steps each world ends.
        same_order: compare the order too.
    """
    most = max(1, 2 * sum(len(part.steps) for part in reference) // len(sizes))
    epoch, told = 0, ""
    seen: list[Sample] = []
    state: str | None = None
    for number, size in enumerate(sizes):
        ranks = make(size)
        left = chance.randint(1, most) if number < len(sizes) - 1 else None
        told += f"{', then ' if told else ''}{size} for {left or 'the remaining'} steps"
        if state is not None:
            ranks.load(state)
        may_be_empty = bool(epoch) and not seen
        while left != 0 and epoch < len(reference):
            part = ranks.read(left)
            state = part.state
            if not part.steps and may_be_empty:
                may_be_empty = False  # it was the rest of the epoch that the world before has read
                continue
            may_be_empty = False
            seen += part.samples
            left = None if left is None else left - len(part.steps)
            expected = reference[epoch].samples
            if part.is_over or len(seen) >= len(expected):
                check_same_samples(
                    expected, seen, f"a chain of worlds ({told}) in epoch {epoch}", same_order=same_order
                )
                epoch, seen = epoch + 1, []
