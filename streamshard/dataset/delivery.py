"""What a trainer has received from a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streamshard.dataset.handover import Beginning
from streamshard.dataset.left_out import LeftOut, Tally
from streamshard.errors import BadSamplesError, StateError
from streamshard.order.batches import BatchPlan


class Progress:
    """What a trainer has received of one iteration. Outlives the iterator, so it must not hold it.

    Args:
        beginning, plan, rank: of the iteration.
        tally: counts what was left out; None where every sample must be good.
    """

    def __init__(self, beginning: Beginning, plan: BatchPlan, rank: int, tally: Tally | None = None) -> None:
        self.tally = tally
        self.epoch = beginning.epoch
        self.num_batches = plan.rank_num_batches(rank)
        self.received = 0
        self.is_closed = False
        self._plan = plan
        self._rank = rank

    @property
    def position(self) -> int:
        """Position in the epoch after the batches received; its end once there are no more, dropped ones too."""
        plan = self._plan
        # With ``exact`` a rank may have one batch less: until it asks for more, it stands where the others do.
        complete = plan.num_batches if not self.is_closed else self.num_batches
        return plan.num_samples if self.received >= complete else plan.position_after(self.received)

    @property
    def plan(self) -> BatchPlan:
        """The batches of the iteration."""
        return self._plan

    @property
    def last_batch_padding(self) -> int:
        """Padding of the batch received last."""
        if self.tally is not None:
            return self.tally.padding
        return self._plan.rank_padding(self.received - 1, self._rank) if self.received else 0

    @property
    def left_out(self) -> LeftOut:
        """What was left out of the epoch up to the batch received last."""
        return LeftOut() if self.tally is None else self.tally.left_out

    def is_untouched(self) -> bool:
        """Whether there is something to receive and nothing was."""
        return self.received == 0 < self.num_batches

    def is_over(self) -> bool:
        """Whether there is nothing left to receive: all was, or the iteration was stopped or failed."""
        return self.is_closed or self.received >= self.num_batches


class Delivery:
    """The iterator that a trainer holds; counts the batches it was given.

    Args:
        batches: torch's iterator.
        progress: counts what is received.
        was_stopped: whether ``StreamingDataset.stop`` has ended the iteration.
        check_current: raises StateError where the dataset was told since to go on elsewhere.
        keep_workers: leave the workers running where the iteration is stopped or fails.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        progress: Progress,
        *,
        was_stopped: Callable[[], bool],
        check_current: Callable[[], None],
        keep_workers: bool,
    ) -> None:
        self._batches = batches
        self._progress = progress
        self._was_stopped = was_stopped
        self._check_current = check_current
        self._keep_workers = keep_workers
        self._failed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._progress.num_batches

    def __next__(self) -> Any:
        before = self._progress.received
        return self._counted(self._next_batch(), before)

    def _next_batch(self) -> Any:
        """What torch's iterator gives next."""
        progress = self._progress
        if self._failed:
            raise StateError("this iteration has ended with an error: make a new iterator")
        self._end_if_stopped()
        self._end_if_followed()
        try:
            # Read ahead, workers could go on with batches that no state counts any more.
            self._check_current()
            batch = next(self._batches)
        except StopIteration:
            self._end_if_stopped()
            progress.is_closed = True
            if progress.received < progress.num_batches:
                raise StateError(
                    f"epoch {progress.epoch} ended after {progress.received} of {progress.num_batches} batches: the "
                    "workers do not have the topology and batch size of this process (construct both from one "
                    "dataset), or collate_fn raised StopIteration"
                ) from None
            raise
        except BaseException:
            progress.is_closed = self._failed = True
            # The error's traceback keeps torch's iterator alive, for how long nobody knows; its workers would
            # stay too, and complain in every process that is forked meanwhile.
            self._end_workers()
            raise
        self._end_if_stopped()
        progress.received += 1
        return batch

    def _counted(self, batch: Any, before: int) -> Any:
        """Take what the trainer gets out of what a worker has handed over; ``before`` batches came before it.

        Raises:
            BadSamplesError: too many samples were left out by now.
        """
        tally = self._progress.tally
        if tally is None:
            return batch
        try:
            return tally.receive(batch)
        except BadSamplesError:
            self._close(before, failed=True)
            raise

    def _close(self, received: int, *, failed: bool) -> None:
        progress = self._progress
        progress.received, progress.is_closed, self._failed = received, True, failed
        self._end_workers()

    def _end_if_stopped(self) -> None:
        # Workers stop where they are, each at another batch: what comes after that would have gaps.
        if self._was_stopped():
            self._progress.is_closed = True
            self._end_workers()
            raise StopIteration

    def _end_if_followed(self) -> None:
        # Workers that were kept serve the iteration that came after this finished one.
        if self._progress.is_over():
            try:
                self._check_current()
            except StateError:
                self._progress.is_closed = True
                raise StopIteration from None

    def _end_workers(self) -> None:
        shut_down = getattr(self._batches, "_shutdown_workers", None)
        if shut_down is not None and not self._keep_workers:
            shut_down()
