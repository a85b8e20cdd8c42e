"""``StreamingDataset``: the torch dataset. Wires order, reading and hand-over; holds no order of its own."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from streamshard._sizes import parse_bytes
from streamshard.dataset.batching import Batching
from streamshard.dataset.course import Course
from streamshard.dataset.environment import Topology
from streamshard.dataset.feed import Feed, Share
from streamshard.dataset.heap import spare_what_is_there
from streamshard.dataset.incidents import check_report
from streamshard.dataset.iteration import Iteration, go_on
from streamshard.dataset.mesh import world_of
from streamshard.dataset.ordering import Ordering
from streamshard.dataset.orphans import end_without_trainer
from streamshard.dataset.pool import PoolHere
from streamshard.dataset.reading import Reading, read_columns, read_samples, read_singly
from streamshard.dataset.settings import (
    positive,
    refuse_unknown,
    streams_of,
)
from streamshard.dataset.sieve import Sieve
from streamshard.dataset.source import Decoding, Fetching, Source, open_streams
from streamshard.dataset.stream import Stream
from streamshard.dataset.tolerance import Tolerance
from streamshard.errors import StateError
from streamshard.order.world import World
from streamshard.read.selection import nested, parse_selection, wanted_columns

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from streamshard.dataset.quotas import Mixture


class StreamingDataset(Course, IterableDataset[Any]):
    """Samples of one or several MDS datasets, in an order that no number of ranks or workers changes.

    Works with ``StreamingDataLoader`` (states, exact lengths), with a plain ``DataLoader``, and by itself:
    ``for sample in dataset``. Each ``iter()`` begins the next epoch at its start, unless ``load_state_dict`` or
    ``set_epoch`` said otherwise; an epoch left early is not continued. A subclass that overrides ``__getitem__``
    or ``get_item`` has it called for every sample.

    The constructor reads each ``index.json`` and does nothing else: no process group, no lock, no waiting for
    other ranks. The topology is taken when an iteration begins.

    Args:
        streams: the sources; or give ``remote``/``local``/``split`` of a single one (see ``Stream``).
        download_retry, download_timeout, validate_hash, keep_zip, storage_options: for streams that do not say.
        epoch_size: samples an epoch over all streams, as a number or ``"1.5M"``; default: each sample once.
        weight_by: what streams' proportions are shares of: ``"samples"``, ``"bytes"`` of the raw shards, or a cost
            that all indexes carry, such as ``"tokens"``.
        predownload: samples that each worker fetches ahead; default: as many as fit 256 MiB.
        cache: for streams that do not say: ``"disk"``, or ``"memory"``, where nothing is written and each process keeps
            what it fetches.
        cache_limit: bytes of disk, or ``"100gb"``, that each stream's cache may take on a node; in memory, bytes that
            it may take in each process, 2 GiB by default.
        mixture: weights that change within the run, as (position, {stream: weight}) pairs, such as
            ``[(0, {"web": 9, "code": 1}), ("10M", {"web": 1, "code": 1})]``; streams by their ``name`` or number.
        sampling_method: ``"balanced"``: every sample is used evenly over the epochs; ``"fixed"``: where an epoch
            takes a part of a stream, it is the same part each time.
        num_canonical_nodes: lanes of the order; part of the order, so the same on any cluster.
        batch_size: samples of one rank's batch. The order within an epoch depends on the global batch.
        global_batch_size: in place of ``batch_size``, any number >= the data-parallel ranks.
        shuffle, shuffle_algo, shuffle_seed, shuffle_block_size: whether, how (``sliding``, ``block``, ``shard``,
            ``full``, or a name of mosaicml-streaming), with which seed, over how many samples at once.
        batching_method: which stream comes when, all in exact shares: ``"random"``; ``"stratified"``: in every
            run of samples; ``"per_stream"``: each global batch is of one stream; ``"device_per_stream"``: each
            batch of one rank is.
        allow_unsafe_types: decode ``pkl`` columns, which can run code.
        replication: that many consecutive ranks get the same samples.
        world: the topology, where it shall not be detected: a ``World``, or the data-parallel dimensions of a torch
            ``DeviceMesh``, as ``mesh["dp"]``.
        on_error: what a bad sample does: ``"raise"`` ends the run, ``"skip"`` makes its batch shorter,
            ``"replace"`` puts another one in its place. Batches keep their number on every rank.
        filter: called with each decoded sample, before ``transform``; a false result leaves it out.
        error_limit: bad samples of an epoch that are tolerated: a number, or below 1 a share of the epoch.
        report: directory, or file ending in ``.jsonl``, where each rank writes down its bad samples.
        remainder: what becomes of the last, shorter global batch: ``"pad"`` (equal steps, repeats marked),
            ``"drop"``, or ``"exact"`` (no repeats; ranks may differ by one).
        transform: applied to each sample.
        batch_transform: applied to each batch of columns, a dict of arrays and lists.
        columns: names of the columns to decode; default: all.
        decode_images: ``False`` gives the stored bytes.
        writeable_arrays: give arrays that may be changed in place.
        validate_samples: check every sample with its hash when it is read; the datasets must have been written with
            ``sample_hash``. A wrong one is a ChecksumError, and a bad sample for ``on_error``.

    Raises:
        ValueError, TypeError: arguments that are wrong or contradict each other.
        BlobNotFoundError, AccessDeniedError, StorageError: an index that cannot be had.
        FormatError: an index that is malformed.
    """

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | None = None,
        download_retry: int = 5,
        download_timeout: float = 60.0,
        validate_hash: str | bool | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        weight_by: str = "samples",
        mixture: Mixture | None = None,
        predownload: int | None = None,
        cache: str = "disk",
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "sliding",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        world: World | DeviceMesh | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: str = "raise",
        filter: Callable[[Any], Any] | None = None,
        error_limit: float = 0.01,
        report: str | os.PathLike[str] | None = None,
        remainder: Literal["pad", "drop", "exact"] | None = None,
        transform: Callable[[Any], Any] | None = None,
        batch_transform: Callable[[dict[str, Any]], Any] | None = None,
        columns: Sequence[str] | None = None,
        decode_images: bool = True,
        writeable_arrays: bool = False,
        validate_samples: bool = False,
        **without_meaning: Any,
    ) -> None:
        refuse_unknown(without_meaning)
        ordering = Ordering(
            epoch_size=epoch_size,
            weight_by=weight_by,
            mixture=mixture,
            sampling_method=sampling_method,
            batching_method=batching_method,
            num_canonical_nodes=num_canonical_nodes,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
        )
        tolerance = Tolerance(on_error, filter, error_limit, None if report is None else os.fspath(report))
        if transform is not None and batch_transform is not None:
            raise ValueError(
                "transform= takes a sample, batch_transform= a batch of columns: give one of them"
            )
        if batch_transform is not None and self._gives_single_samples():
            raise ValueError(
                f"{type(self).__name__} overrides __getitem__ or get_item, which see single samples, and has "
                "batch_transform=, which takes a batch of columns: use one of them"
            )
        batching = Batching(
            batch_size, global_batch_size, remainder, 1 if replication is None else replication
        )
        self.predownload = positive("predownload", predownload)
        self.shuffle = shuffle
        self.shuffle_seed = shuffle_seed
        self.transform = transform
        self.batch_transform = batch_transform
        self.streams = streams_of(streams, remote, local, split)
        fetching = Fetching(
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            storage_options=storage_options,
            cache=cache,
            cache_limit=None if cache_limit is None else parse_bytes(cache_limit, name="cache_limit"),
            validate_samples=validate_samples,
        )
        decoding = Decoding(
            columns=wanted_columns(columns),
            allow_unsafe_types=allow_unsafe_types,
            decode_images=decode_images,
            writeable_arrays=writeable_arrays,
        )
        opened = open_streams(self.streams, fetching)
        source = Source(opened, decoding)
        self._decode_images = decode_images
        topology = Topology(world_of(world, replication))
        Course.__init__(self, source, ordering.states(opened), batching, topology, tolerance)
        self._pool = PoolHere(source)

    # What there is

    @property
    def size(self) -> int:
        """Number of distinct samples."""
        return self._source.num_samples

    @property
    def num_samples(self) -> int:
        """Number of distinct samples, as ``size``."""
        return self._source.num_samples

    @property
    def batch_nbytes(self) -> int:
        """Bytes of the samples of one rank's batch, as they are stored, on average."""
        plan, _ = self.plan_of_next()
        samples = -(-plan.global_batch_size // plan.ranks)
        return samples * self._source.sample_nbytes

    def batches_in_sight(self, workers: int) -> int | None:
        """Batches that one of a rank's workers may look ahead; None where no cache has a limit."""
        most = self._source.nbytes_in_sight
        if most is None:
            return None
        ranks = self._world().replicate(self._batching.replication).ranks_per_node
        return max(1, most // (ranks * workers * self.batch_nbytes))

    @property
    def applies_user_code(self) -> bool:
        """Whether functions of the user's make something else of samples or batches."""
        return self.transform is not None or self.batch_transform is not None or self._gives_single_samples()

    @property
    def num_shards(self) -> int:
        """Number of shards of all streams."""
        return self._source.num_shards

    @property
    def epoch_size(self) -> int:
        """Samples of one epoch over all ranks."""
        return self._states.order.num_samples

    def __len__(self) -> int:
        """Samples, padding included, that this rank gets in one whole epoch."""
        # The epoch in which a state with other weights was loaded may have another size; those after it are alike.
        splice = self._states.order.splice
        plan, rank = self.plan(0 if splice is None else splice.epoch + 1, 0)
        return plan.samples_of_rank(rank)

    def __getitem__(self, at: Any) -> Any:
        """Return the sample at an int, or a list of samples at a slice, mask, list or array of ints.

        An array of more dimensions gives lists of lists, in its shape.

        Raises:
            IndexError: beyond the dataset.
            FormatError, StorageError: the sample's shard is damaged or cannot be had.
        """
        if isinstance(at, (int, np.integer)) and not isinstance(at, bool):
            return self.get_item(operator.index(at))
        ids = parse_selection(at, self.size)
        overridden = type(self).get_item is not StreamingDataset.get_item
        if overridden or self.transform is not None:
            samples = [self.get_item(number) for number in ids.ravel().tolist()]
        else:
            samples = self._pool.get().samples(ids.ravel())
        return nested(samples, ids.shape)

    def get_item(self, sample_id: int) -> Any:
        """Return one sample; negative numbers count from the end. Subclasses may override this."""
        number = int(parse_selection([sample_id], self.size)[0])
        sample = self._pool.get().sample(number)
        return sample if self.transform is None else self.transform(sample)

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or go on from a loaded state, and return its iterator.

        Raises:
            StateError: another iterator of this dataset is still under way in this process; or the state loaded
                belongs to another world or worker.
        """
        info = get_worker_info()
        if info is not None and not self._batching.is_sized:
            warnings.warn(
                "StreamingDataset has no batch_size: give it the DataLoader's, or batches will hold other samples "
                "than with another number of workers",
                UserWarning,
                stacklevel=2,
            )
        turns = self._turns
        outdated = turns.refuse_outdated(repr(self))
        if outdated is not None:
            return outdated
        if info is None:
            # Before the epoch counts as begun: these may raise.
            self.plan_of_next()
            check_report(self._tolerance.report, self._world().rank)
        else:
            spare_what_is_there()
            end_without_trainer()
        beginning = turns.begin_here(repr(self), handed_over=self._unit == "batches")
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        plan, rank = self.plan(beginning.epoch, beginning.position)
        ranks_here = self._world().replicate(self._batching.replication).ranks_per_node
        share = Share(
            self._states.order, plan, beginning.epoch, rank, worker, workers, ranks_per_node=ranks_here
        )
        taken = dropped = 0
        if turns.restored is not None:
            progress = turns.restored[2]
            share, taken, dropped = go_on(share, progress)
            turns.restored = None
        in_batches = self._unit == "batches" or self.batch_transform is not None
        if in_batches and dropped:
            raise StateError(
                f"this state was saved {dropped} samples into a batch, but this dataset gives whole batches: "
                "construct it without batch_transform, as where the state was saved"
            )
        if worker == 0:
            self._report_left_out(plan, beginning.epoch)
        turns.iteration = iteration = Iteration(beginning, share, taken)
        reading = self._reading()
        feed = Feed(
            self._source,
            share,
            reading,
            is_over=lambda: turns.is_over(beginning),
            predownload=self.predownload,
            sieve=self._sieve(share, reading) if self._tolerance.is_used else None,
            in_batches=in_batches,
            pools=self._pool,
        )
        iterator = iteration.deliver(
            feed, whole=in_batches, drop=dropped, at_end=lambda: turns.check_current(beginning)
        )
        if info is None:
            self.guard(iterator, lambda: iteration.is_over, lambda: iteration.is_untouched)
        elif self._bundling is not None:
            return self._bundling.bundles(iterator, worker)
        return iterator

    def _reading(self) -> Reading:
        slow = self._source.decodes_pictures(self._decode_images)
        if self.batch_transform is not None:
            return read_columns(self.batch_transform, one_by_one=slow)
        if self._gives_single_samples():
            return read_singly(self.__getitem__)
        # Of one schema, so that a column's values are all of one kind.
        is_uniform = self._source.only_decoder is not None
        if self._in_columns and is_uniform and self.transform is None and not self.may_leave_out:
            return read_columns(None, one_by_one=slow)
        return read_samples(self.transform, one_by_one=slow)

    def _sieve(self, share: Share, reading: Reading) -> Sieve:
        in_samples = self._unit == "samples" and self.batch_transform is None
        if (
            in_samples
            and share.worker == 0
            and share.plan.ranks > 1
            and self._tolerance.on_error != "replace"
        ):
            warnings.warn(
                "samples that on_error='skip' or filter= leave out shorten the epoch of a plain DataLoader by "
                "batches, on each rank by others: use StreamingDataLoader, or on_error='replace'",
                UserWarning,
                stacklevel=3,
            )
        return Sieve(
            self._source,
            share,
            reading,
            self._tolerance,
            shape="handed" if self._unit == "batches" else "samples" if in_samples else "batch",
            rank=self._world().rank,
        )

    # Inside

    def _gives_single_samples(self) -> bool:
        own, base = type(self), StreamingDataset
        return own.__getitem__ is not base.__getitem__ or own.get_item is not base.get_item

    def __repr__(self) -> str:
        places = ", ".join(stream.url for stream in self._source.streams[:3])
        more = ", ..." if len(self._source.streams) > 3 else ""
        return f"{type(self).__name__}({places}{more}: {self.size:,} samples in {self.num_shards:,} shards)"
