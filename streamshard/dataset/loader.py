"""``StreamingDataLoader``: torch's DataLoader with batches as its unit, exact lengths and a state."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from streamshard.dataset.bundles import Bundling, Unbundled, most_batches
from streamshard.dataset.collate import as_it_is, collate_samples
from streamshard.dataset.delivery import Delivery, Progress
from streamshard.dataset.environment import check_socket_room, naming_what_workers_need
from streamshard.dataset.iteration import PROGRESS
from streamshard.dataset.left_out import CollateInside, LeftOut, with_left_out
from streamshard.dataset.read_once import Begun, ReadOnce, SharedDelivery
from streamshard.dataset.slots import Slots, slots_for
from streamshard.dataset.streaming import StreamingDataset
from streamshard.errors import StateError

# Batches of so many stored bytes go through shared memory, of which a slot has twice as much, and room for more where
# functions of the user's make tensors of pictures.
_SLOT_NBYTES_FROM = 64 << 10
_SLOT_NBYTES_TO = 64 << 20
_SLOT_NBYTES_MADE_BY_USER = 16 << 20


class StreamingDataLoader(DataLoader[Any]):
    """A DataLoader for a ``StreamingDataset``.

    The dataset makes the batches, so that they are the same for any number of workers. ``len`` is exact: the
    batches of the iteration under way, else of the one that comes next.

    Args:
        dataset: the dataset. It takes over ``batch_size``, and ``remainder="drop"`` where ``drop_last`` is True.
        batch_size: samples of one rank's batch; default: what the dataset says.
        num_workers: worker processes; 0 reads in this process.
        collate_fn: makes a batch of a list of samples. Default: stacks numbers and arrays of one shape into
            tensors and keeps lists of everything else, see ``streamshard.dataset.collate.collate_samples``.
        drop_last: leave out the last, shorter global batch on all ranks.
        read_once: a process group whose members get the same samples: its first member reads, and runs the
            workers, the others receive each batch from it. All of them call ``iter()`` and ``next()`` together.
        **arguments: passed to ``torch.utils.data.DataLoader``; ``shuffle``, ``sampler`` and ``batch_sampler``
            have no meaning for a dataset that brings its order.

    Raises:
        TypeError: the dataset is no ``StreamingDataset``; ``read_once`` is no process group.
        TopologyError: this process is no member of the ``read_once`` group.
        ValueError: ``batch_size`` differs from the dataset's own, or an argument would change the order; or the
            dataset's class overrides ``__iter__``, so that nobody can know which samples a batch stands for.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        read_once: Any = None,
        **arguments: Any,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(
                f"StreamingDataLoader needs a StreamingDataset, not {type(dataset).__name__}; "
                "use torch.utils.data.DataLoader for others"
            )
        for name in ("shuffle", "sampler", "batch_sampler"):
            if arguments.pop(name, None):
                raise ValueError(
                    f"{name}= has no place here: the order is the dataset's, see StreamingDataset(shuffle=...)"
                )
        if not arguments.get("in_order", True):
            raise ValueError("in_order=False would let the workers' speed decide the order of batches")
        if type(dataset).__iter__ is not StreamingDataset.__iter__:
            raise ValueError(
                f"{type(dataset).__name__} overrides __iter__, so positions in its epoch cannot be known: override "
                "__getitem__, pass transform= or collate_fn=, wrap the loader, or use torch's DataLoader"
            )
        self._batching = dataset.batching_for(batch_size, drop_last=drop_last)
        dataset.group_by(self._batching)
        if collate_fn is None:
            collate_fn = collate_samples if dataset.batch_transform is None else as_it_is
        # Where samples may be left out, a worker hands the count over with the batch.
        collate: Callable[[Any], Any] = CollateInside(collate_fn) if dataset.may_leave_out else collate_fn
        super().__init__(dataset, batch_size=None, num_workers=num_workers, collate_fn=collate, **arguments)
        # To torch each batch is one item, to whoever asks this loader it is not.
        self.__dict__.update(batch_size=dataset.batch_size, drop_last=dataset.remainder == "drop")
        self._together = None if read_once is None else ReadOnce(read_once, pin_memory=self.pin_memory)
        self._order_changes = 0
        self._slots: Slots | None = None
        self._progress: Progress | None = None
        self._delivery: Callable[[], Delivery | None] = _nothing

    dataset: StreamingDataset

    # Accelerate's prepare() hands a loader that says so on as it is. Any other one it deals out to the ranks, and
    # each rank's share of the data, which is all that this loader gives, would be dealt out once more.
    _is_accelerate_prepared = True

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # ours counts what torch's yields
        """Begin the next epoch, or go on from a loaded state.

        Raises:
            StateError: another iterator of the dataset is still under way.
            StorageError: workers cannot be started here, or could not hand over tensors, because TMPDIR is too long.
            TopologyError: the members of the ``read_once`` group do not get the same samples.
        """
        dataset, together = self.dataset, self._together
        make: Callable[..., Delivery] = Delivery
        if together is None:
            batches, beginning, plan, rank = self._begin()
        else:
            (batches, beginning, plan, rank), stand = together.begin(self._begin, dataset)
            make = functools.partial(SharedDelivery, together, stand)
        self._progress = progress = Progress(beginning, plan, rank, dataset.tally(beginning, plan))
        delivery = make(
            batches,
            progress,
            was_stopped=lambda: dataset.was_stopped(beginning),
            check_current=lambda: dataset.check_current(beginning),
            keep_workers=self.persistent_workers,
        )
        self._delivery = weakref.ref(delivery)
        dataset.guard(delivery, progress.is_over, progress.is_untouched)
        return delivery

    def _begin(self) -> Begun:
        dataset = self.dataset
        reads = self._together is None or self._together.is_reader
        if self.num_workers and reads:
            check_socket_room()
        dataset.group_by(self._batching)
        in_columns = self.collate_fn is collate_samples
        if reads and self.num_workers:
            self._end_outdated_workers()
            with dataset.lent_in_batches(self._bundling(), in_columns=in_columns):
                beginning, plan, rank = dataset.begin_for_workers()
                try:
                    with self._collating(as_it_is), naming_what_workers_need():
                        bundles = super().__iter__()
                except BaseException:  # no worker could be started, or somebody has interrupted it
                    dataset.begin_again(beginning)
                    raise
            return Unbundled(bundles, self.num_workers, self._slots), beginning, plan, rank
        with dataset.lent_in_batches(in_columns=in_columns):
            if not reads:
                beginning, plan, rank = dataset.begin_for_workers()
                return itertools.repeat(None, plan.rank_num_batches(rank)), beginning, plan, rank
            batches = super().__iter__()
            return batches, *dataset.begun()

    def _bundling(self) -> Bundling:
        """Say how workers hand over their batches, and give new ones shared memory for it."""
        dataset = self.dataset
        nbytes = dataset.batch_nbytes
        made_by_user = dataset.applies_user_code or self.collate_fn is not collate_samples
        if getattr(self, "_iterator", None) is None:
            self._slots = None
            if nbytes >= _SLOT_NBYTES_FROM and 2 * nbytes <= _SLOT_NBYTES_TO:
                room = max(2 * nbytes, _SLOT_NBYTES_MADE_BY_USER if made_by_user else 0)
                self._slots = slots_for(self.num_workers, (self.prefetch_factor or 2) + 1, room)
        most = most_batches(nbytes, made_by_user=made_by_user)
        in_sight = dataset.batches_in_sight(self.num_workers)
        if in_sight is not None:
            # As many bundles of a worker are made or wait.
            most = min(most, max(1, in_sight // ((self.prefetch_factor or 2) + 1)))
        return Bundling(self.collate_fn, most, self._slots)

    @contextlib.contextmanager
    def _collating(self, collate_fn: Callable[[Any], Any]) -> Iterator[None]:
        """Let torch's iterators that are made inside the block collate so."""
        own = self.collate_fn
        self.collate_fn = collate_fn
        try:
            yield
        finally:
            self.collate_fn = own

    def _end_outdated_workers(self) -> None:
        """End workers that were kept, where a state was loaded since that changed the order."""
        changes = self.dataset.order_changes
        workers = getattr(self, "_iterator", None)
        if workers is not None and changes != self._order_changes:
            workers._shutdown_workers()
            self._iterator = None
        self._order_changes = changes

    def __getstate__(self) -> dict[str, Any]:
        # A copy has this loader's place, but neither its iterator nor its workers.
        return {**self.__dict__, "_delivery": _nothing, "_iterator": None, "_slots": None}

    def __len__(self) -> int:
        progress = self._progress_now()
        if progress is not None and not progress.is_closed and self._delivery() is not None:
            return progress.num_batches
        self.dataset.group_by(self._batching)
        plan, rank = self.dataset.plan_of_next()
        return plan.rank_num_batches(rank)

    @property
    def last_batch_padding(self) -> int:
        """How many samples at the end of the batch received last are repeats that fill it up."""
        return 0 if self._progress is None else self._progress.last_batch_padding

    @property
    def left_out(self) -> LeftOut:
        """Bad and filtered samples of the epoch's batches that this rank has received; 0 at each epoch's start.

        Goes on from a loaded state, which holds the count of the rank that saved it.
        """
        progress = self._progress_now()
        return self.dataset.left_out_before_next() if progress is None else progress.left_out

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands: a small JSON object that any number of ranks and workers can load.

        Counts the batches that were received from this loader, not those that workers have read ahead. Valid
        before the first batch, after the last one (then it is the next epoch's start) and at any time between.
        Needs no communication: each rank returns the same, but for the count of what ``on_error`` or ``filter``
        left out, which is its own.
        """
        progress = self._progress_now()
        if progress is None:
            return self.dataset.state_of_next()
        state = self.dataset.state_at(progress.epoch, progress.position, progress.plan.start)
        return with_left_out(state, progress.left_out) if state["epoch"] == progress.epoch else state

    def _progress_now(self) -> Progress | None:
        """What was received last, unless the dataset was told to go on elsewhere since."""
        return self._progress if self.dataset.has_begun else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next ``iter()`` go on from a state.

        Raises:
            StateError: the state was made with other data, another seed or another order, or is malformed.
        """
        if isinstance(state, Mapping) and PROGRESS in state:
            raise StateError(
                "this state counts what one worker has read; load one that StreamingDataLoader.state_dict() gave"
            )
        self.dataset.load_state_dict(state)
        self._progress = None


def _nothing() -> None:
    return None
