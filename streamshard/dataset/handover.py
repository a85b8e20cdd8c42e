"""What the trainer's process tells its workers: one anonymous shared page, no names, no locks, no barriers.

A DataLoader gives its workers a copy of the dataset, by fork or by pickle, and persistent workers keep theirs
over many epochs. Which epoch comes next must therefore be read from memory that they share. The page holds

    header  generation, epoch, position, stopped generation, handed-over generation, rank, world size,
            local world size, number of times that a loaded state changed the order
    slots   one 64-bit word for the trainer's process and each worker: the generation and epoch that it last
            began, counted from the generation's own, and a token of the DataLoader iteration in which it did

``begin`` (the trainer's process) starts a new generation at an epoch and position. A worker that finds no slot of
this generation starts there. Later iterations of the same generation, which a plain DataLoader begins without
telling anyone, are numbered by the slots: a worker that finds its own slot with the token of its DataLoader
iteration, or other workers' slots with another token, is in the following epoch. Each slot has one writer and
is one aligned word, so no lock is needed.

A new worker may read the page only after the trainer has moved on. It then knows from the generation that its
copy was made in, which is no part of the page, that nobody waits for it any more.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import multiprocessing.context
from collections.abc import Iterator
from ctypes import c_longlong, sizeof
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from streamshard.errors import StateError
from streamshard.order.world import World

logger = logging.getLogger(__name__)

MAX_WORKERS = 1023
"""DataLoader workers that one dataset object can tell apart."""

_GENERATION, _EPOCH, _POSITION, _STOPPED, _HANDED_OVER, _RANK, _WORLD_SIZE, _LOCAL_WORLD_SIZE, _ORDER = range(
    9
)
_HEADER = 9
_SLOTS = 1 + MAX_WORKERS
_TOKEN_BITS, _EPOCH_BITS, _GENERATION_BITS = 27, 24, 12
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1
_BIAS = 1 << _EPOCH_BITS - 1  # a worker may be told to go on with an earlier epoch
_TRAINER_TOKEN = 0


class Beginning(NamedTuple):
    """Where one iteration starts."""

    generation: int
    epoch: int
    position: int


def _shared_words(count: int) -> Any:
    """Make words that this process and those forked from it share; those spawned too, where /dev/shm can be used."""
    try:
        return RawArray(c_longlong, count)
    except OSError as error:
        # A file in a read-only /dev/shm, or the like. No file is needed to share memory with forked processes, and
        # without /dev/shm there will be no workers of any kind.
        logger.debug("shared words without a file: %s", error)
        return (c_longlong * count).from_buffer(mmap.mmap(-1, sizeof(c_longlong) * count))


class Handover:
    """The shared page of one dataset object; see the module's text.

    Survives fork (shared), a DataLoader's spawn (shared) and any other pickling (copied).
    """

    def __init__(self) -> None:
        self._page: Any = _shared_words(_HEADER + _SLOTS)
        self._page[_RANK] = -1
        self._made_in: int | None = 0
        self._order = 0

    def __getstate__(self) -> dict[str, Any]:
        if multiprocessing.context.get_spawning_popen() is not None:
            return {"page": self._page, "made_in": self._made_in, "order": self._order}
        return {"values": list(self._page[:])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "page" in state:
            self._page, self._made_in, self._order = state["page"], state["made_in"], state["order"]
            return
        self.__init__()  # type: ignore[misc]
        self._page[: len(state["values"])] = state["values"]
        self._made_in = self.generation
        self._order = self.order_changes

    @property
    def generation(self) -> int:
        """Number of the present generation; it grows whenever ``begin`` or ``set_next`` is called."""
        return int(self._page[_GENERATION])

    @property
    def world(self) -> World | None:
        """The topology recorded by the trainer's process, or None."""
        page = self._page
        if page[_RANK] < 0:
            return None
        return World(
            rank=page[_RANK], world_size=page[_WORLD_SIZE], local_world_size=page[_LOCAL_WORLD_SIZE] or None
        )

    @world.setter
    def world(self, world: World) -> None:
        page = self._page
        page[_WORLD_SIZE], page[_LOCAL_WORLD_SIZE] = world.world_size, world.local_world_size or 0
        page[_RANK] = world.rank

    @property
    def order_changes(self) -> int:
        """How often the trainer's process has changed the order."""
        return int(self._page[_ORDER])

    @property
    def is_order_outdated(self) -> bool:
        """Whether this copy was made before the order changed."""
        return self._order != self.order_changes

    def change_order(self) -> None:
        """Note in the trainer's process that its copy has another order from now on."""
        self._page[_ORDER] += 1
        self._order = self.order_changes

    def set_next(self, epoch: int, position: int = 0) -> None:
        """Make the next iteration, in whatever process, start at this epoch and position."""
        page = self._page
        page[_EPOCH], page[_POSITION] = epoch, position
        page[_GENERATION] += 1
        self._made_in = self.generation
        if _tag(page[_GENERATION]) == 1:
            # Tags start again: what is left of the generations before must not pass for one to come.
            page[_HEADER:] = [0] * _SLOTS

    def next(self) -> tuple[int, int]:
        """Epoch and position at which the next iteration starts."""
        epochs = self._epochs_begun()
        if epochs:
            return max(epochs) + 1, 0
        return int(self._page[_EPOCH]), int(self._page[_POSITION])

    def running(self) -> tuple[int, int] | None:
        """Epoch and starting position of the iteration that began last, None where none has since ``set_next``."""
        epochs = self._epochs_begun()
        if not epochs:
            return None
        epoch = max(epochs)
        return epoch, int(self._page[_POSITION]) if epoch == self._page[_EPOCH] else 0

    def begin_in_trainer(self, *, hand_over: bool) -> Beginning:
        """Begin the next iteration from the trainer's process.

        Args:
            hand_over: True when workers will do the reading; they then start where this says.
        """
        epoch, position = self.next()
        if self._epochs_begun():
            self.set_next(epoch, position)
        if hand_over:
            self._page[_HANDED_OVER] = self.generation + 1
        else:
            self._write_slot(0, epoch, _TRAINER_TOKEN, self.generation)
        return Beginning(self.generation, epoch, position)

    def begin_in_worker(self, worker: int, token: int, *, handed_over: bool = False) -> Beginning:
        """Begin the next iteration of one DataLoader worker; one that is over already, if the worker is too late.

        Args:
            worker: its number, from 0 to ``MAX_WORKERS`` - 1.
            token: the same integer for all workers of one DataLoader iteration and, with fresh workers,
                another one in each; torch's base seed is such a number.
            handed_over: the trainer's process begins these iterations itself, each in a generation of its own.
        """
        if not 0 <= worker < MAX_WORKERS:
            raise ValueError(
                f"DataLoader worker {worker}: at most {MAX_WORKERS} workers a dataset are supported"
            )
        short = _shorten(token)
        generation = self.generation
        made_in, self._made_in = self._made_in, None
        if made_in is not None and made_in != generation:
            return Beginning(made_in, int(self._page[_EPOCH]), 0)
        if handed_over:
            beginning = Beginning(generation, int(self._page[_EPOCH]), int(self._page[_POSITION]))
            # A worker that was kept may come to an iteration only after the trainer was told to go on elsewhere:
            # it must not seem to have begun there what the trainer has not.
            if self._page[_HANDED_OVER] == generation + 1:
                self._write_slot(worker + 1, beginning.epoch, short, generation)
            return beginning
        own: int | None = None
        same: list[int] = []
        earlier: list[int] = []
        for number, slot in self._slots_of(generation):
            epoch, slot_token = slot
            if slot_token != short:
                earlier.append(epoch)
            elif number == worker + 1:
                own = epoch
            else:
                same.append(epoch)
        if own is not None:
            epoch = own + 1
        elif same:
            epoch = min(same)
        else:
            epoch = max(earlier) + 1 if earlier else int(self._page[_EPOCH])
        self._write_slot(worker + 1, epoch, short, generation)
        return Beginning(generation, epoch, self._position_of(epoch))

    def restore_in_worker(self, worker: int, token: int, epoch: int) -> Beginning:
        """Record that a worker begins ``epoch`` because a state of its own was loaded into it."""
        self._write_slot(worker + 1, epoch, _shorten(token), self.generation)
        return Beginning(self.generation, epoch, 0)

    def stop(self) -> None:
        """End every iteration of the present generation."""
        self._page[_STOPPED] = self._page[_GENERATION] + 1

    def was_stopped(self, beginning: Beginning) -> bool:
        """Whether ``stop`` has ended an iteration."""
        return bool(self._page[_STOPPED] > beginning.generation)

    def is_over(self, beginning: Beginning) -> bool:
        """Whether an iteration was stopped, or a later generation has begun."""
        return self.generation != beginning.generation or self.was_stopped(beginning)

    def _position_of(self, epoch: int) -> int:
        return int(self._page[_POSITION]) if epoch == self._page[_EPOCH] else 0

    def _epochs_begun(self) -> list[int]:
        generation = self.generation
        epochs = [slot[0] for _, slot in self._slots_of(generation)]
        if self._page[_HANDED_OVER] == generation + 1:
            epochs.append(int(self._page[_EPOCH]))
        return epochs

    def _slots_of(self, generation: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Number, epoch and token of each slot that was written in ``generation``."""
        tag, base = _tag(generation), int(self._page[_EPOCH])
        for number, word in enumerate(self._page[_HEADER:]):
            if word >> (_EPOCH_BITS + _TOKEN_BITS) == tag:
                yield (
                    number,
                    (base + ((word >> _TOKEN_BITS) & _EPOCH_MASK) - _BIAS, word & ((1 << _TOKEN_BITS) - 1)),
                )

    def _write_slot(self, number: int, epoch: int, token: int, generation: int) -> None:
        if generation != self.generation:
            return  # the trainer has moved on since the writer looked
        biased = epoch - int(self._page[_EPOCH]) + _BIAS
        if not 0 <= biased <= _EPOCH_MASK:
            raise StateError(
                f"epoch {epoch} is more than {_BIAS} epochs away from epoch {self._page[_EPOCH]}, where this "
                "dataset object began; load the state into a new one"
            )
        self._page[_HEADER + number] = ((_tag(generation) << _EPOCH_BITS | biased) << _TOKEN_BITS) | token


def _tag(generation: int) -> int:
    return generation % ((1 << _GENERATION_BITS) - 1) + 1  # never 0, which is an unwritten slot


def _shorten(token: int) -> int:
    mask = (1 << _TOKEN_BITS) - 1
    word = token & ((1 << 64) - 1)
    folded = (word ^ word >> _TOKEN_BITS ^ word >> 2 * _TOKEN_BITS) & mask
    return folded or 1  # 0 marks the trainer's own slot
