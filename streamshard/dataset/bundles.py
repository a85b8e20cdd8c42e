"""Batches on their way from DataLoader workers to the trainer: several at a time, so that one message is for all.

torch asks a worker for one item, waits for it, unpickles it, and asks for the next: some 0.2 ms of CPU, whatever
is in it, and as much again for each tensor, which travels as an open file. A batch of 32 short texts is made in
less. So an item is a bundle of batches of one worker, and small tensors lie in its pickle; see ``parcels``.

Rank batch j is worker j mod W's, as in torch's own loader. All workers bundle by the same sizes: 1, 2, 4, … up to
the most, so that the first batch is not kept waiting, and the trainer never holds more than a bundle of each.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from streamshard.dataset.parcels import pack_for_trainer, unpack_from_worker
from streamshard.dataset.slots import Slots

# A bundle of short samples may have so many bytes of them, as they are stored, and so many batches.
_NBYTES = 256 << 10
_BATCHES = 64
# What a user's function makes of a sample may be much larger than what is stored.
_BATCHES_MADE_BY_USER = 8


class Bundle(NamedTuple):
    """Some consecutive batches of one worker's share. torch pins what is in it."""

    worker: int
    batches: list[Any]


class Bundling:
    """How the workers of one loader make what torch hands over.

    Args:
        collate: makes a batch of what the dataset gives.
        most: batches in a bundle, at most.
        slots: shared memory for large values; None: everything goes through torch's queue.
    """

    def __init__(self, collate: Callable[[Any], Any], most: int, slots: Slots | None = None) -> None:
        self._collate = collate
        self._most = most
        self._slots = slots

    def bundles(self, batches: Iterable[Any], worker: int) -> Iterator[Parcel]:
        """Yield a worker's batches in bundles, ready to be pickled.

        An error comes after all batches before it, as it would without bundles.
        """
        remaining = iter(batches)
        writer = None if self._slots is None else self._slots.writer(worker)
        for size in bundle_sizes(self._most):
            made: list[Any] = []
            try:
                for batch in itertools.islice(remaining, size):
                    made.append(self._collate(batch))
            except Exception:
                if made:
                    yield Parcel(worker, pack_for_trainer(made, writer))
                raise
            if not made:
                return
            yield Parcel(worker, pack_for_trainer(made, writer))


class Parcel:
    """A packed bundle: unpickled, it is the ``Bundle``."""

    def __init__(self, worker: int, packed: bytes) -> None:
        self._worker = worker
        self._packed = packed

    def __reduce__(self) -> tuple[Callable[..., Bundle], tuple[int, bytes]]:
        return _unpacked, (self._worker, self._packed)


def _unpacked(worker: int, packed: bytes) -> Bundle:
    return Bundle(worker, unpack_from_worker(packed))


def bundle_sizes(most: int) -> Iterator[int]:
    """Yield the sizes of all workers' bundles: 1, 2, 4, …, ``most``, ``most``, …"""
    size = 1
    while True:
        yield size
        size = min(2 * size, most)


def most_batches(batch_nbytes: int, *, made_by_user: bool) -> int:
    """Batches that may travel together.

    Args:
        batch_nbytes: bytes of the samples of a batch, as they are stored.
        made_by_user: whether functions of the user's make something else of them.
    """
    most = _BATCHES_MADE_BY_USER if made_by_user else _BATCHES
    return max(1, min(most, _NBYTES // max(1, batch_nbytes)))


class Unbundled(Iterator[Any]):
    """Single batches in the order of the epoch.

    Args:
        bundles: torch's iterator.
        workers: how many workers there are.
        slots: kept alive until all bundles were unpickled.
    """

    def __init__(self, bundles: Iterator[Bundle], workers: int, slots: Slots | None) -> None:
        self._bundles = bundles
        self._waiting: list[deque[Any]] = [deque() for _ in range(workers)]
        self._turn = 0
        self._slots = slots

    def __next__(self) -> Any:
        waiting = self._waiting[self._turn]
        while not waiting:
            worker, batches = next(self._bundles)
            self._waiting[worker].extend(batches)
        self._turn = (self._turn + 1) % len(self._waiting)
        return waiting.popleft()

    def _shutdown_workers(self) -> None:
        """End torch's workers; under the name by which torch's own iterator has it."""
        self._bundles._shutdown_workers()  # type: ignore[attr-defined]
