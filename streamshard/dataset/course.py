"""Where a dataset stands in its epochs, and what its loaders ask and tell it about that."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from torch.utils.data import get_worker_info

from streamshard._sizes import as_integer, shown
from streamshard.dataset.batching import Batching
from streamshard.dataset.bundles import Bundling
from streamshard.dataset.dropped import DropReport
from streamshard.dataset.environment import Topology
from streamshard.dataset.handover import Beginning
from streamshard.dataset.heap import keep_freed_memory
from streamshard.dataset.incidents import check_report
from streamshard.dataset.iteration import PROGRESS
from streamshard.dataset.left_out import LeftOut, Tally, take_left_out, with_left_out
from streamshard.dataset.settings import positive, whole
from streamshard.dataset.source import Source
from streamshard.dataset.states import MAX_EPOCH, States
from streamshard.dataset.tolerance import Tolerance
from streamshard.dataset.turns import Turns
from streamshard.dataset.whereabouts import Whereabouts, whereabouts
from streamshard.errors import StateError
from streamshard.order.batches import BatchPlan
from streamshard.order.world import World

logger = logging.getLogger(__name__)


class Course:
    """The part of ``StreamingDataset`` that knows order, epoch and position, and reads no sample.

    Args:
        source: the samples, to name their shards.
        states: their order.
        batching: how they are grouped, as far as the dataset says.
        topology: the ranks.
        tolerance: which samples may be left out.
    """

    def __init__(
        self, source: Source, states: States, batching: Batching, topology: Topology, tolerance: Tolerance
    ) -> None:
        self._source = source
        self._states = states
        self._given = batching
        self._batching = batching
        self._topology = topology
        self._tolerance = tolerance
        self._turns = Turns()
        self._unit: Literal["samples", "batches"] = "samples"
        self._bundling: Bundling | None = None
        self._in_columns = False
        self._drops = DropReport(source.streams)
        self._left_out_before = LeftOut()
        self._left_out_at = (-1, -1)

    @property
    def world(self) -> World | None:
        """The topology that was given; None: it is detected."""
        return self._topology.given

    @property
    def batch_size(self) -> int | None:
        """Samples of one rank's batch, as given here or by the loader; None where only the global batch is known."""
        return self._batching.batch_size

    @property
    def global_batch_size(self) -> int | None:
        """Samples of all ranks' batches together, where that is what was given."""
        return self._batching.global_batch_size

    @property
    def remainder(self) -> str:
        """What becomes of the last, shorter global batch: ``pad``, ``drop`` or ``exact``."""
        return self._batching.remainder or "pad"

    @property
    def replication(self) -> int:
        """How many consecutive ranks get the same samples."""
        return self._batching.replication

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that began last; before the first one, the epoch that comes next."""
        running = self._turns.running()
        return self._turns.next()[0] if running is None else running[0]

    @property
    def next_epoch(self) -> int:
        """The epoch that the next ``iter()`` begins or, after ``load_state_dict``, goes on with."""
        return self._turns.next()[0]

    def where(
        self, position: int | None = None, *, epoch: int | None = None, num_samples: int | None = None
    ) -> Whereabouts:
        """Say which samples an iteration gives first that begins at a position of an epoch, and to which rank.

        They are those of all ranks of the present world, in batches of the present size; nothing is read but the
        index. What ``on_error=`` or ``filter=`` leaves out is found out when samples are read, and listed here.

        Args:
            position: samples of the epoch before it, over all ranks. Default: where the next ``iter()`` begins, or
                with ``epoch`` the epoch's start.
            epoch: default for a position: the epoch under way, see ``epoch``.
            num_samples: list whole batches of all ranks until they hold so many samples, or the epoch ends;
                default: the next one.

        Returns:
            The place, where each stream stands, and each sample's rank, batch, position, stream, shard, row and id.
            ``print`` it, or see ``streamshard.dataset.whereabouts``. The end of an epoch is the start of the next.

        Raises:
            ValueError: a number out of range; the message names the epoch and its size.
            TopologyError: ranks and batch sizes that contradict each other.
        """
        if position is None and epoch is None:
            epoch, position = self._turns.next()
        else:
            epoch = self.epoch if epoch is None else whole("epoch", epoch, MAX_EPOCH)
            position = 0 if position is None else whole("position", position)
        order = self._states.order
        size = order.size(epoch, position)
        if position > size:
            raise ValueError(
                f"position={position}: epoch {epoch} has {size} samples; expected a position from 0 to {size}"
            )
        if position == size:
            epoch, position = epoch + 1, 0
        plan, _ = self.plan(epoch, position)
        return whereabouts(order, self._source.streams, plan, epoch, positive("num_samples", num_samples))

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` begin this epoch at its start.

        Warnings of the log say when this gives up a loaded position from which nothing was read, and when the epoch
        comes before the place where a state with other weights was loaded: it is that of a run that always had the
        present ones.

        Raises:
            ValueError: no whole number from 0 to 2**53 - 2, the last epoch that a state can name with the one after.
        """
        number = as_integer(epoch)
        if number is not None and number > MAX_EPOCH:
            raise ValueError(
                f"epoch={shown(epoch)}: states hold whole numbers up to 2**53 - 1, which all JSON readers keep, and "
                f"name the epoch after this one at its end: expected at most {MAX_EPOCH}"
            )
        next_epoch = whole("epoch", epoch, MAX_EPOCH)
        self._states.say_what_set_epoch_gives_up(next_epoch, *self._turns.next())
        self._turns.set_next(next_epoch)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = False) -> dict[str, Any]:
        """Return where training stands, as a small JSON object.

        ``StreamingDataLoader.state_dict`` needs no arguments and is the usual way. For a plain DataLoader, say
        how many samples all ranks together have received.

        Args:
            num_samples: samples received by all ranks. Without it, the state counts what this very process or
                worker has taken (for ``StatefulDataLoader``); only the same ranks and workers can load that.
            from_beginning: ``num_samples`` counts from the epoch's start, not from where this run began.

        Raises:
            StateError: nothing is known here of what the trainer has received; pass ``num_samples``.
        """
        running = self._turns.running()
        epoch, start = self._turns.next() if running is None else running
        if num_samples is not None:
            taken = whole("num_samples", num_samples)
            position = taken if from_beginning else start + taken
            size = self._states.order.size(epoch, start)
            return self.state_at(epoch, min(position, size), min(position, start))
        if self._turns.restored is not None:
            epoch, start, progress = self._turns.restored
            return {**self.state_at(epoch, start), PROGRESS: dict(progress)}
        iteration = self._turns.iteration
        if iteration is None:
            if running is not None:
                raise StateError(
                    "the workers of a DataLoader are reading, and only the trainer knows what it has received: use "
                    "StreamingDataLoader.state_dict(), or state_dict(num_samples=samples received by all ranks)"
                )
            return self.state_at(epoch, start)
        epoch, start = iteration.beginning.epoch, iteration.beginning.position
        if iteration.is_finished and get_worker_info() is None:
            return self.state_at(epoch + 1, 0)
        return {**self.state_at(epoch, start), PROGRESS: iteration.progress()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next ``iter()`` go on from a saved state; any number of ranks, workers, any batch size.

        Raises:
            StateError: the state is malformed, or was made with other data, another seed or another order.
        """
        state, left_out = take_left_out(state)
        loaded = self._states.load(state)
        for note in loaded.notes:
            logger.warning("state: %s", note)
        self._turns.load(loaded.epoch, loaded.position, loaded.progress, is_other_order=loaded.is_other_order)
        self._left_out_before, self._left_out_at = left_out, self._turns.next()

    @property
    def order_changes(self) -> int:
        """How often a loaded state has changed the order, so that copies of this dataset are outdated."""
        return self._turns.order_changes

    def state_at(self, epoch: int, position: int, start: int | None = None) -> dict[str, Any]:
        """Return the state at a position of an epoch (0 <= position <= its size).

        ``start`` is where the iteration began in that epoch; default: at ``position`` itself.
        """
        start = position if start is None else start
        # Where training stands does not depend on what becomes of the last batch.
        batching = replace(self._batching, remainder="pad")
        plan, _ = batching.plan(self._states.order, self._world(), epoch, start)
        return self._states.at(plan, epoch, position)

    def stop(self) -> None:
        """End the iteration that is under way, if any, so that another one may begin."""
        self._turns.stop()

    # Iterating

    def plan(self, epoch: int, start: int) -> tuple[BatchPlan, int]:
        """Return the batches from a position of an epoch on, and this process's data-parallel rank.

        Raises:
            TopologyError: ranks and batch sizes that contradict each other.
        """
        return self._batching.plan(self._states.order, self._world(), epoch, start)

    def plan_of_next(self) -> tuple[BatchPlan, int]:
        """Return the batches that the next ``iter()`` will give, and this process's data-parallel rank."""
        return self.plan(*self._turns.next())

    def state_of_next(self) -> dict[str, Any]:
        """Return the state from which the next ``iter()`` begins."""
        return with_left_out(self.state_at(*self._turns.next()), self.left_out_before_next())

    def left_out_before_next(self) -> LeftOut:
        """Return what the loaded state, if it comes next, says was left out of its epoch before."""
        return self.left_out_before(*self._turns.next())

    def left_out_before(self, epoch: int, position: int) -> LeftOut:
        """Return what the loaded state says was left out of an epoch up to where it goes on."""
        is_loaded = self._tolerance.is_used and (epoch, position) == self._left_out_at
        return self._left_out_before if is_loaded else LeftOut()

    def tally(self, beginning: Beginning, plan: BatchPlan) -> Tally | None:
        """Return a count of what a loader receives of an iteration; None where every sample must be good."""
        tolerance = self._tolerance
        if not tolerance.is_used:
            return None
        return Tally(
            self.left_out_before(beginning.epoch, beginning.position),
            tolerance.most_bad(plan.num_samples),
            epoch=beginning.epoch,
            limit=tolerance.error_limit,
        )

    @property
    def may_leave_out(self) -> bool:
        """Whether ``on_error`` or ``filter`` may leave samples out, or others come in their place."""
        return self._tolerance.is_used

    def batching_for(self, batch_size: int | None, *, drop_last: bool) -> Batching:
        """Return how samples are grouped for a loader with these arguments.

        Raises:
            ValueError: they contradict what this dataset was constructed with.
        """
        return self._given.for_loader(batch_size, drop_last=drop_last)

    def group_by(self, batching: Batching) -> None:
        """Group the samples of coming iterations as the loader that will make them wants it."""
        self._batching = batching

    @contextlib.contextmanager
    def lent_in_batches(
        self, bundling: Bundling | None = None, *, in_columns: bool = False
    ) -> Iterator[None]:
        """Make copies of this dataset that are made inside the block, and iterations begun in it, give batches.

        Args:
            bundling: how DataLoader workers hand their batches over; None: one by one.
            in_columns: give batches as dicts of columns where that loses nothing, for ``collate_samples``.

        Raises:
            StateError: a state was loaded that one process saved amid its own batches.
        """
        if self._turns.restored is not None:
            raise StateError(
                "the state loaded into the dataset counts the samples that one process or worker has taken; a "
                "StreamingDataLoader goes on from a state of StreamingDataLoader.state_dict(), or of the dataset's "
                "state_dict(num_samples=samples received by all ranks)"
            )
        self._unit, self._bundling, self._in_columns = "batches", bundling, in_columns
        try:
            yield
        finally:
            self._unit, self._bundling, self._in_columns = "samples", None, False

    def begun(self) -> tuple[Beginning, BatchPlan, int]:
        """Describe the iteration that began last in this process; StateError where none did."""
        iteration = self._turns.iteration
        if iteration is None:
            raise StateError("no iteration has begun in this process")
        return iteration.beginning, iteration.share.plan, iteration.share.rank

    def begin_for_workers(self) -> tuple[Beginning, BatchPlan, int]:
        """Begin the next iteration, to be read by DataLoader workers; called by ``StreamingDataLoader``."""
        self._turns.replace_untouched()
        plan, rank = self.plan_of_next()
        check_report(self._tolerance.report, self._world().rank)
        beginning = self._turns.begin_for_workers(repr(self), self._world())
        keep_freed_memory(self._source.sample_nbytes)
        self._report_left_out(plan, beginning.epoch)
        return beginning, plan, rank

    def begin_again(self, beginning: Beginning) -> None:
        """Take back the beginning of an iteration of which nobody has taken anything: it is still to come."""
        state = self.state_at(beginning.epoch, beginning.position)
        left_out = self.left_out_before(beginning.epoch, beginning.position)
        self.load_state_dict(with_left_out(state, left_out))

    @property
    def has_begun(self) -> bool:
        """Whether an iteration has begun since the last ``set_epoch`` or ``load_state_dict``."""
        return self._turns.running() is not None

    def was_stopped(self, beginning: Beginning) -> bool:
        """Whether ``stop`` has ended an iteration."""
        return self._turns.was_stopped(beginning)

    def check_current(self, beginning: Beginning) -> None:
        """Raise StateError if ``set_epoch``, ``load_state_dict`` or another iteration came after an iteration."""
        self._turns.check_current(beginning)

    def guard(self, iterator: Any, is_finished: Callable[[], bool], is_untouched: Callable[[], bool]) -> None:
        """Remember the iterator that is under way; a second one is refused until it is finished or gone."""
        self._turns.guard(iterator, is_finished, is_untouched)

    def _report_left_out(self, plan: BatchPlan, epoch: int) -> None:
        if plan.left_out:
            order = self._states.order
            by_stream = order.unit(plan) is not None
            self._drops.say(plan, epoch, order.left_out(plan, epoch), by_stream=by_stream)

    def _world(self) -> World:
        return self._topology.now(self._turns.world)
