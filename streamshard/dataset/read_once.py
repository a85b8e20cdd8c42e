"""One member of a group reads, the others receive its batches: what all of them do at each step.

The members get the same samples, so they ask for the same batches in the same order. Each ``iter()`` and each
``next()`` is a meeting: every member says where it stands and how it fares there. Only if all stand at one place
does the reader's batch go round; an error or a stop anywhere reaches everybody, and members that have lost step
are told so instead of waiting for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from streamshard.dataset.delivery import Delivery, Progress
from streamshard.dataset.handover import Beginning
from streamshard.dataset.parcels import pack, unpack
from streamshard.dataset.peers import Peers
from streamshard.dataset.streaming import StreamingDataset
from streamshard.errors import StateError, TopologyError
from streamshard.order.batches import REMAINDERS, BatchPlan

READER = 0
"""The member that reads."""

Begun = tuple[Iterator[Any], Beginning, BatchPlan, int]
"""Batches, where they begin, the plan, and the data-parallel rank."""

_WELL, _AT_END, _FAILED = range(3)
_BEGIN, _NEXT = 1, 2


class Stand(NamedTuple):
    """What a member tells the others. All but ``state`` and ``nbytes`` must be equal."""

    state: int
    nbytes: int
    call: int
    epoch: int = 0
    position: int = 0
    received: int = 0
    rank: int = 0
    ranks: int = 0
    global_batch_size: int = 0
    num_samples: int = 0
    remainder: int = 0
    order: int = 0


_OF_THE_MOMENT = ("call", "epoch", "position", "received")
_CALLS = {_BEGIN: "iter()", _NEXT: "next()"}


class ReadOnce:
    """A loader's part in a group of which one member reads.

    Args:
        group: a process group whose members get the same samples.
        pin_memory: receive into page-locked memory.

    Raises:
        TypeError, TopologyError: no process group, or not one of this process.
    """

    def __init__(self, group: Any, *, pin_memory: bool) -> None:
        self._peers = Peers(group)
        self._pinned = pin_memory and torch.cuda.is_available()

    @property
    def is_reader(self) -> bool:
        """Whether this process reads for the others."""
        return self._peers.rank == READER

    def begin(self, start: Callable[[], Begun], dataset: StreamingDataset) -> tuple[Begun, Stand]:
        """Begin an iteration in all members, or in none.

        Args:
            start: begins it in this process.
            dataset: what it is of.

        Returns:
            What ``start`` gave, and where this process stands.

        Raises:
            TopologyError, StateError: the members do not have the same rank, plan, order or place.
            Exception: what ``start`` raised, in whichever member.
        """
        try:
            begun = start()
        except Exception as error:
            self._tell(Stand(_FAILED, 0, _BEGIN), error)
            raise
        batches, beginning, plan, rank = begun
        stand = Stand(
            _WELL,
            0,
            _BEGIN,
            beginning.epoch,
            beginning.position,
            0,
            rank,
            plan.ranks,
            plan.global_batch_size,
            plan.num_samples,
            REMAINDERS.index(plan.remainder),
            _number_of(dataset.state_at(0, 0)),
        )
        try:
            self._meet(stand)
        except BaseException:
            shut_down = getattr(batches, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()
            dataset.begin_again(beginning)
            raise
        return begun, stand._replace(call=_NEXT)

    def parcel_of(self, batch: Any) -> torch.Tensor | None:
        """Make the reader's batch ready to be sent; None in the others. Raises what pickle raises."""
        return pack(batch) if self.is_reader else None

    def share(self, stand: Stand, batch: Any, parcel: torch.Tensor | None) -> tuple[bool, Any]:
        """Meet for a batch, which the reader has read: ``(True, the batch)``, or ``(False, None)`` at an end.

        Raises:
            StateError, TopologyError: the members have lost step.
            Exception: what another member failed with.
        """
        ahead = self._meet(stand._replace(nbytes=0 if parcel is None else parcel.numel()))
        if ahead is None:
            return False, None
        received = self._peers.broadcast(READER, ahead, parcel, pinned=self._pinned)
        return True, batch if self.is_reader else unpack(received)

    def end(self, stand: Stand) -> None:
        """Meet without a batch: none is left here, or the iteration was stopped."""
        self._meet(stand._replace(state=_AT_END))

    def fail(self, stand: Stand, error: Exception) -> None:
        """Meet with an error, which the others will raise too."""
        self._tell(stand._replace(state=_FAILED), error)

    def _meet(self, stand: Stand) -> int | None:
        """Return the bytes of the reader's parcel; None where the iteration ends here."""
        stands = self._exchange(stand)
        for member, each in enumerate(stands):
            if each.state == _FAILED:
                self._raise_of(member, each.nbytes)
        self._compare(stands)
        return None if any(each.state == _AT_END for each in stands) else stands[READER].nbytes

    def _tell(self, stand: Stand, error: Exception) -> None:
        parcel = _pack_error(error)
        # Where the others are gone, the error that is under way says more than that they are.
        with contextlib.suppress(RuntimeError):
            stands = self._exchange(stand._replace(nbytes=parcel.numel()))
            first = next(member for member, each in enumerate(stands) if each.state == _FAILED)
            self._peers.broadcast(first, stands[first].nbytes, parcel)

    def _exchange(self, stand: Stand) -> list[Stand]:
        return [Stand(*words) for words in self._peers.exchange(stand)]

    def _raise_of(self, member: int, nbytes: int) -> None:
        error, text = unpack(self._peers.broadcast(member, nbytes, None))
        raise error from RuntimeError(f"in {self._peers.name(member)}, of the same read_once group:\n{text}")

    def _compare(self, stands: list[Stand]) -> None:
        for member, each in enumerate(stands[1:], 1):
            differences = [
                name for name in Stand._fields[2:] if getattr(each, name) != getattr(stands[READER], name)
            ]
            if differences:
                told = self._told(differences, READER, stands[READER]), self._told(differences, member, each)
                if set(differences) <= set(_OF_THE_MOMENT):
                    raise StateError(
                        f"read_once: {told[0]}; {told[1]}: all members of a group must load the same state, call "
                        "iter() together and take the same number of batches"
                    )
                raise TopologyError(
                    f"read_once: {told[0]}; {told[1]}: only processes of one data-parallel rank, with equal datasets "
                    "and batch sizes, get the same samples: make the group of those, and pass world= to each"
                )

    def _told(self, names: list[str], member: int, stand: Stand) -> str:
        words = stand._asdict()
        words["call"] = _CALLS.get(stand.call, stand.call)
        words["remainder"] = REMAINDERS[stand.remainder]
        words["order"] = f"{stand.order:016x}"
        return f"{self._peers.name(member)} has " + ", ".join(f"{name}={words[name]}" for name in names)


class SharedDelivery(Delivery):
    """The iterator that a trainer holds in a group of which one member reads.

    Args:
        together: this process's part in the group.
        stand: where it stands after ``ReadOnce.begin``.
        batches: torch's iterator where this process reads, else one that yields as many placeholders.
        progress, was_stopped, check_current, keep_workers: as for ``Delivery``.
    """

    def __init__(
        self, together: ReadOnce, stand: Stand, batches: Iterator[Any], progress: Progress, **arguments: Any
    ) -> None:
        super().__init__(batches, progress, **arguments)
        self._together = together
        self._stand = stand

    def __next__(self) -> Any:
        progress, together = self._progress, self._together
        if progress.is_closed:
            if self._failed:
                return self._next_batch()
            raise StopIteration
        before = progress.received
        stand = self._stand._replace(received=before)
        try:
            try:
                batch = self._next_batch()
                parcel = together.parcel_of(batch)
            except StopIteration:
                together.end(stand)
                raise
            except Exception as error:
                together.fail(stand, error)
                raise
            goes_on, batch = together.share(stand, batch, parcel)
        except StopIteration:
            raise
        except BaseException:
            self._close(before, failed=True)
            raise
        if not goes_on:
            self._close(before, failed=False)
            raise StopIteration
        return self._counted(batch, before)


def _number_of(state: dict[str, Any]) -> int:
    """63 bits that tell one dataset and order from another."""
    text = json.dumps(state, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _pack_error(error: Exception) -> torch.Tensor:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 made here
    except Exception:  # noqa: BLE001 an error of any class, whose pickling may fail in any way
        return pack((RuntimeError(f"{type(error).__name__}: {error}"), text))
    return pack((error, text))
