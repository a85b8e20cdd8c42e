"""Shared memory between DataLoader workers and the trainer: a few slots for each worker, used over and over.

A large value of bytes or a large tensor is copied into a slot by its worker and out of it by the trainer. Through
torch's pipe, bytes would be copied some six times, 64 KiB at a time; a tensor would lie in a new file each time, whose
pages the system clears and maps one by one. A slot is free again as soon as its message was unpickled. A
worker that finds none free, or whose batch is larger than a slot, sends that batch through the pipe: nobody ever
waits for a slot.

The memory has no name and lies in no directory (``memfd_create``), so a kill leaves nothing behind and the size
of /dev/shm does not matter. Where the system has no such memory, everything goes through the pipe.

    u8 * workers * slots    one byte for each slot: 0 free, 1 written; set by its worker, cleared by the trainer
    ...                     the slots, each at a multiple of the page size
"""

from __future__ import annotations

import itertools
import logging
import mmap
import multiprocessing.context
import os
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any

from streamshard.errors import StateError

logger = logging.getLogger(__name__)

_numbers = itertools.count()
_here: weakref.WeakValueDictionary[tuple[int, int], Slots] = weakref.WeakValueDictionary()


class Slots:
    """The slots of one loader's workers. Survives fork and a DataLoader's spawn; no other pickling.

    Args:
        workers: number of workers.
        each: slots of each.
        nbytes: of one slot; memory that is never written to costs nothing.

    Raises:
        OSError: the system has no memory without a name, or not so much of it.
    """

    def __init__(self, workers: int, each: int, nbytes: int) -> None:
        nbytes = _whole_pages(nbytes)
        file = os.memfd_create("streamshard")
        try:
            os.ftruncate(file, _whole_pages(workers * each) + workers * each * nbytes)
            self._set_up((os.getpid(), next(_numbers)), file, workers, each, nbytes)
        except BaseException:
            os.close(file)
            raise
        _here[self.key] = self

    def _set_up(self, key: tuple[int, int], file: int, workers: int, each: int, nbytes: int) -> None:
        self.key = key
        self.nbytes = nbytes
        self._workers, self._each = workers, each
        self._memory = mmap.mmap(file, 0)
        self._file = file
        weakref.finalize(self, os.close, file)

    def writer(self, worker: int) -> SlotWriter:
        """Return what a worker writes with."""
        return SlotWriter(self, range(worker * self._each, (worker + 1) * self._each))

    def is_free(self, slot: int) -> bool:
        """Whether the trainer has taken out what was in a slot."""
        return self._memory[slot] == 0

    def write(self, slot: int, values: Sequence[bytes | memoryview]) -> None:
        """Fill a free slot with values that fit."""
        at = self._begin(slot)
        memory = self._memory
        for value in values:
            memory[at : at + len(value)] = value
            at += len(value)
        memory[slot] = 1

    def take(self, slot: int, lengths: Sequence[int], num_writeable: int = 0) -> list[bytes | bytearray]:
        """Copy values out of a slot, the last ``num_writeable`` as bytearrays, and free it."""
        at = self._begin(slot)
        memory = self._memory
        begins = list(itertools.accumulate(lengths, initial=at))
        spans = list(itertools.pairwise(begins))
        kept = len(spans) - num_writeable
        values: list[bytes | bytearray] = [memory[begin:end] for begin, end in spans[:kept]]
        with memoryview(memory) as view:
            for begin, end in spans[kept:]:
                with view[begin:end] as part:
                    values.append(bytearray(part))
        memory[slot] = 0
        return values

    def _begin(self, slot: int) -> int:
        return _whole_pages(self._workers * self._each) + slot * self.nbytes

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if multiprocessing.context.get_spawning_popen() is None:
            raise TypeError("shared memory of DataLoader workers is handed over where they are started only")
        return _rebuilt, (self.key, DupFd(self._file), self._workers, self._each, self.nbytes)


class SlotWriter:
    """One worker's slots."""

    def __init__(self, slots: Slots, own: range) -> None:
        self._slots = slots
        self._own = own
        self._next = 0

    def write(self, values: Sequence[bytes | memoryview]) -> tuple[tuple[int, int], int] | None:
        """Put values into a free slot.

        Returns:
            The key of the slots and the slot's number, for ``take_from``; None where the values do not fit or no
            slot is free.
        """
        slots, own = self._slots, self._own
        if sum(map(len, values)) > slots.nbytes:
            return None
        for turn in range(len(own)):
            slot = own[(self._next + turn) % len(own)]
            if slots.is_free(slot):
                self._next = (self._next + turn + 1) % len(own)
                slots.write(slot, values)
                return slots.key, slot
        return None


def take_from(
    key: tuple[int, int], slot: int, lengths: Sequence[int], num_writeable: int = 0
) -> list[bytes | bytearray]:
    """Take values out of a slot of one of this process's loaders, the last as bytearrays, and free it.

    Raises:
        StateError: this process has no such loader any more.
    """
    slots = _here.get(key)
    if slots is None:
        raise StateError("a batch of DataLoader workers arrived after their loader had gone")
    return slots.take(slot, lengths, num_writeable)


def slots_for(workers: int, each: int, nbytes: int) -> Slots | None:
    """Make slots, or say in the log why there are none."""
    try:
        return Slots(workers, each, nbytes)
    except (AttributeError, OSError) as error:  # no memfd_create, or not allowed
        logger.info("batches of DataLoader workers go through pipes alone: %s", error)
        return None


def _rebuilt(key: tuple[int, int], file: Any, workers: int, each: int, nbytes: int) -> Slots:
    slots = Slots.__new__(Slots)
    slots._set_up(key, file.detach(), workers, each, nbytes)
    return slots


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
