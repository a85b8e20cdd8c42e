"""Which iteration comes next in this process, and that only one is under way at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from streamshard.dataset.handover import Beginning, Handover
from streamshard.dataset.iteration import Iteration
from streamshard.errors import StateError
from streamshard.order.world import World


class Turns:
    """The turns of one dataset object. Copies in DataLoader workers share its page and nothing else.

    Attributes:
        iteration: the iteration that this very process began last, None where workers read or none began.
        restored: epoch, position and progress of a loaded state that one worker goes on with, until it does.
    """

    def __init__(self) -> None:
        self.iteration: Iteration | None = None
        self.restored: tuple[int, int, dict[str, int]] | None = None
        self._page = Handover()
        self._loaded: tuple[int, int, dict[str, int] | None] | None = None
        self._live: tuple[weakref.ref[Any], Callable[[], bool]] | None = None
        self._is_untouched: Callable[[], bool] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "iteration": None, "_live": None, "_is_untouched": None}

    @property
    def world(self) -> World | None:
        """The topology that the trainer's process handed over, None where it did not."""
        return self._page.world

    @property
    def order_changes(self) -> int:
        """How often a loaded state has changed the order of the dataset object."""
        return self._page.order_changes

    def refuse_outdated(self, name: str) -> Iterator[Any] | None:
        """Return an iterator that raises StateError, in a worker whose copy has an order of the past; else None.

        The error comes with the first item: raised any earlier, torch would lose it along with a kept worker.
        """
        if get_worker_info() is None or self.restored is not None or not self._page.is_order_outdated:
            return None
        error = StateError(
            f"{name}: a state with other weights or streams was loaded after these DataLoader workers had been "
            "started, and they keep the order that they were started with: make a new DataLoader, or use "
            "StreamingDataLoader, which starts new ones"
        )
        return _Raising(error)

    def next(self) -> tuple[int, int]:
        """Epoch and position at which the next iteration starts."""
        return self._page.next()

    def running(self) -> tuple[int, int] | None:
        """Epoch and starting position of the iteration that began last, in whatever process; None before one."""
        return self._page.running()

    def set_next(self, epoch: int, position: int = 0, progress: dict[str, int] | None = None) -> None:
        """Make the next iteration start here; with ``progress``, go on inside one worker's share.

        Raises:
            StateError: called in a DataLoader worker without ``progress``: it would concern all workers.
        """
        if get_worker_info() is None:
            self._page.set_next(epoch, position)
        elif progress is None:
            raise StateError("a DataLoader worker can only load a state that was saved in one")
        self.iteration = None
        self._live = self._is_untouched = None  # an iterator made before has nothing more to give
        self.restored = None if progress is None else (epoch, position, progress)
        self._loaded = None

    def load(
        self, epoch: int, position: int, progress: dict[str, int] | None, *, is_other_order: bool = False
    ) -> None:
        """``set_next`` from a loaded state, which stays in force until something was taken.

        torchdata's loader makes an iterator from the state of a finished one, leaves it untouched, and makes
        another. So does Lightning.
        """
        self.set_next(epoch, position, progress)
        if is_other_order and get_worker_info() is None:
            self._page.change_order()
        self._loaded = (epoch, position, progress)

    def stop(self) -> None:
        """End the iteration that is under way, if any."""
        self._page.stop()
        self._live = None

    def guard(self, iterator: Any, is_finished: Callable[[], bool], is_untouched: Callable[[], bool]) -> None:
        """Remember the iterator that is under way; another one is refused until it is finished or gone.

        ``is_untouched`` tells whether nothing was taken of it; it may be asked after the iterator has gone.
        """
        self._live = (weakref.ref(iterator), is_finished)
        self._is_untouched = is_untouched

    def begin_here(self, name: str, *, handed_over: bool) -> Beginning:
        """Begin the next iteration, read by this process or DataLoader worker.

        Args:
            name: the dataset, for messages.
            handed_over: in a worker, whether its trainer's process begins iterations with ``begin_for_workers``.

        Raises:
            StateError: another iterator is under way in this process.
        """
        info = get_worker_info()
        if info is None:
            self.replace_untouched()
            self._refuse_second(name)
            return self._page.begin_in_trainer(hand_over=False)
        token = info.seed - info.id  # torch's base seed: one number for all workers of a DataLoader iteration
        if self.restored is None:
            return self._page.begin_in_worker(info.id, token, handed_over=handed_over)
        epoch, position, _ = self.restored
        return self._page.restore_in_worker(info.id, token, epoch)._replace(position=position)

    def begin_for_workers(self, name: str, world: World) -> Beginning:
        """Begin the next iteration, read by DataLoader workers that are told ``world``. Raises as above."""
        self._refuse_second(name)
        self._page.world = world
        self.iteration = None
        self.restored = None
        return self._page.begin_in_trainer(hand_over=True)

    def is_over(self, beginning: Beginning) -> bool:
        """Whether an iteration was ended from outside."""
        return self._page.is_over(beginning)

    def was_stopped(self, beginning: Beginning) -> bool:
        """Whether ``stop`` has ended an iteration."""
        return self._page.was_stopped(beginning)

    def check_current(self, beginning: Beginning) -> None:
        """Raise StateError if an iteration is outdated, so that nobody takes its early end for the epoch's."""
        if self._page.is_over(beginning) and not self._page.was_stopped(beginning):
            raise StateError(
                "this iterator was made before set_epoch() or load_state_dict() was called on its dataset: "
                "make a new one with iter()"
            )

    def replace_untouched(self) -> None:
        """Go back to a loaded state if nobody has taken anything of the iteration that began there."""
        loaded, is_untouched = self._loaded, self._is_untouched
        if loaded is None or is_untouched is None:
            return
        self._loaded = None
        if is_untouched():
            self.load(*loaded)

    def _is_under_way(self) -> bool:
        return self._live is not None and self._live[0]() is not None and not self._live[1]()

    def _refuse_second(self, name: str) -> None:
        if not self._is_under_way():
            return
        gc.collect()  # one that is garbage, as in a loop object that refers to itself, is nobody's
        if not self._is_under_way():
            return
        raise StateError(
            f"a second iterator of {name} while another one is under way would share its epoch and state: "
            "finish the first one, delete it, or call stop() on the dataset; two loops at once need two datasets"
        )


class _Raising(Iterator[Any]):
    """Raises when its first item is asked for."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __next__(self) -> Any:
        raise self._error
