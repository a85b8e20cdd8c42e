"""MDSWriter: samples in, shards and index out.

write(sample) ─► encode ─► fill a shard ─► (thread) pack, hash, compress, publish ─► (threads) upload
finish()      ─► last shard, wait for all, index.json last
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from streamshard.errors import SampleError, StreamshardError
from streamshard.format.encoder import PartsEncoder, SampleEncoder
from streamshard.format.index import INDEX_BASENAME, index_text
from streamshard.format.sample_hashes import SAMPLE_HASHES_KEY, sample_hashes_entry
from streamshard.format.schema import Schema
from streamshard.format.shard import ShardCutter, config_text
from streamshard.write.costs import Cost, CostSums
from streamshard.write.options import DEFAULT_SIZE_LIMIT, ShardOptions, check_count
from streamshard.write.place import Place
from streamshard.write.press import Press
from streamshard.write.publish import publish_file
from streamshard.write.samples import BlockPool, SampleList, SampleMemory, holds_large_values
from streamshard.write.upload import Uploader


class MDSWriter:
    """Writes a dataset in MDS version 2. Not for use by several threads at once.

    As a context manager it finishes the dataset at the end of the block. After an exception in the block, or
    a failure of its own, nothing is published: what was written is removed again, here and remotely.
    ``index.json`` appears last, so that there is either a complete dataset or none.

    Memory: one shard being filled, and one being published if it has at most 128 MiB (twice that while it is
    compressed).

    Args:
        columns: column name -> encoding, e.g. ``{"image": "jpeg", "label": "int"}``.
        out: a directory; a URL (shards pass through a temporary directory); or a pair (directory, URL).
        keep_local: keep the files in the directory of a pair after their upload.
        compression: ``"zstd"``, ``"zstd:7"``, ``"gz"``, ``"bz2"``, ``"br"`` or ``"snappy"``, or None.
        hashes: hashes of every file for the index, in any order; None for ``["xxh64"]``, ``[]`` for none.
        size_limit: target size of a shard, ``"64mb"`` (1024-based) or bytes below 2**32. A shard is cut
            before the sample that would pass it; one sample larger than the limit gets a shard of its own.
            None: cut only before 4 GiB, which needs that much memory.
        exist_ok: replace a dataset that is there. Only its files are removed, others stay. False: a place
            that is not empty is refused.
        storage_options: passed to the file system of a URL.
        progress_bar: show uploads on stderr.
        max_workers: upload threads; None for min(32, CPUs + 4).
        retry: further tries of a failed upload, after the first one.
        samples_per_shard: cut a shard at this number of samples too.
        costs: what samples cost, added up shard by shard in the index, for ``StreamingDataset(weight_by=)``: cost
            name -> a column (whole numbers count for themselves, lists and arrays for their elements, None for 0),
            or a function of the sample that gives a whole number, e.g. ``{"tokens": "input_ids"}``.
        sample_hash: hash of every single sample, ``"xxh64"`` or another, in a small file beside each shard which other
            readers pass over; None for none. Readers check single samples with it (``validate_samples=True``).
        append: add to the dataset in ``out``, which must have the same columns, costs and hashes of samples; begin one
            where nothing is. Readers see the old dataset until ``finish``, and then the new one.

    Raises:
        ValueError: an argument that makes no sense; nothing has been made then.
        FileExistsError: the place is not empty and ``exist_ok`` is False.
        DirectoryInUseError: another writer is writing to the same directory or URL.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
        exist_ok: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        progress_bar: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        samples_per_shard: int | None = None,
        costs: Mapping[str, Cost] | None = None,
        sample_hash: str | None = None,
        append: bool = False,
    ) -> None:
        from streamshard.storage.retry import RetryPolicy

        self._schema = Schema.from_columns(columns)
        self._costs = CostSums(costs, columns)
        self._options = ShardOptions.parse(
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            samples_per_shard=samples_per_shard,
            sample_hash=sample_hash,
        )
        if append and exist_ok:
            raise ValueError("append=True and exist_ok=True: choose one; exist_ok replaces the dataset")
        threads = min(32, (os.cpu_count() or 1) + 4)
        if max_workers is not None:
            threads = check_count(max_workers, "max_workers", least=1)
        policy = RetryPolicy(attempts=1 + check_count(retry, "retry", least=0))
        self._place = Place(
            out,
            exist_ok=exist_ok,
            append=append,
            storage_options=storage_options,
            retry=policy,
            on_lost=self._halt,
        )
        base = self._place.base
        if base is not None:
            try:
                base.check_columns(columns)
                base.check_kinds(costs or {}, sample_hash)
            except ValueError:
                self._place.release()
                self._place.remove_if_made()
                raise
        self._uploader = None
        if self._place.remote is not None:
            self._uploader = Uploader(
                self._place.remote,
                self._place.directory,
                threads=threads,
                keep_local=keep_local and not self._place.is_temporary,
                progress_bar=progress_bar,
                on_failure=self._halt,
            )
        config = config_text(
            self._schema,
            compression=self._options.compression,
            hashes=self._options.hashes,
            size_limit=self._options.size_limit,
        )
        self._cutter = ShardCutter(
            len(config), size_limit=self._options.size_limit, samples_per_shard=samples_per_shard
        )
        self._press = Press(
            self._place.directory,
            self._schema,
            self._options,
            self._uploader,
            0 if base is None else base.first_number,
        )
        large = holds_large_values(self._schema)
        self._pool = BlockPool(self._cutter.whole_room) if large else None
        self._encode_alone: SampleEncoder | PartsEncoder = (
            self._schema.parts_encoder() if large else self._schema.encoder()
        )
        self._encode = self._encode_alone
        self._samples = self._no_samples()
        self._room = self._cutter.whole_room  # of the shard that is being filled, in bytes
        self._max_samples = samples_per_shard or 2**32
        self._num_cut_samples = 0
        self._warned_of_keys = False
        self._failure: BaseException | None = None
        self._finished = False
        self._index_begun = False
        self._halted = False  # no further sample is taken; set by threads too, where they meet trouble

    @property
    def num_samples(self) -> int:
        """Samples written so far."""
        return self._num_cut_samples + len(self._samples)

    def __repr__(self) -> str:
        return f"MDSWriter({str(self._place)!r}, {self.num_samples} samples)"

    def __enter__(self) -> MDSWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        elif not self._finished and self._failure is None:
            self._fail(error)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample. Keys that are no column are left out, with one warning for each writer.

        Raises:
            SampleError: the sample cannot be stored; names its number, the column, its encoding and what was
                found. The writer goes on without it.
            StorageError: an earlier shard could not be written or uploaded. Nothing is published then.
        """
        if self._halted:
            self._raise_halted()
        try:
            encoded = self._encode(sample)
            counted = self._costs.count(sample) if self._costs else None
        except SampleError as error:
            encoded, counted = self._encode_again(sample, error)
        nbytes = (len(encoded) if type(encoded) is bytes else sum(map(len, encoded))) + 4
        if nbytes > self._room or len(self._samples) >= self._max_samples:
            self._begin_shard(nbytes - 4)
        self._room -= nbytes
        self._samples.append(encoded)
        if counted is not None:
            self._costs.add(counted)

    def _encode_again(
        self, sample: Mapping[str, Any], error: SampleError
    ) -> tuple[Any, Mapping[str, int] | None]:
        """Encode a sample without the keys that are no columns, if that was all that is wrong with it."""
        try:
            if not isinstance(sample, Mapping) or len(sample) <= len(self._schema.names):
                raise error
            self._warn_of_keys(sample)
            # There will be more such samples, which need not fail first.
            self._encode = self._encode_columns
            return self._encode(sample), self._costs.count(sample) if self._costs else None
        except SampleError as found:
            raise type(found)(f"sample {self.num_samples}: {found}") from found

    def _encode_columns(self, sample: Mapping[str, Any]) -> Any:
        """Encode a sample that may have more keys than there are columns."""
        names = self._schema.names
        if isinstance(sample, Mapping) and len(sample) > len(names):
            sample = {name: sample[name] for name in names if name in sample}
        return self._encode_alone(sample)

    def _warn_of_keys(self, sample: Mapping[str, Any]) -> None:
        if self._warned_of_keys:
            return
        self._warned_of_keys = True
        extra = ", ".join(repr(key) for key in sample if key not in self._schema.names)
        warnings.warn(
            f"MDSWriter: sample {self.num_samples} has keys that are no columns and are not stored: {extra}; "
            "add them to columns=, or leave them out. This is said once",
            UserWarning,
            stacklevel=4,
        )

    def _begin_shard(self, sample_nbytes: int) -> None:
        """Cut the filled shard, if there is one, before a sample that does not fit into it."""
        try:
            self._cutter.check(sample_nbytes)
        except SampleError as error:
            raise type(error)(f"sample {self.num_samples}: {error}") from error
        if self._samples:
            try:
                self._cut()
            except BaseException as error:
                self._fail(error)
                raise

    def finish(self) -> None:
        """Write the last shard, wait for all uploads, then publish ``index.json``. May be called again.

        Raises:
            StorageError: something could not be written or uploaded; nothing is published then.
        """
        if self._finished:
            return
        if self._failure is not None:
            raise self._closed_error()
        try:
            if self._samples:
                self._cut()
            self._press.collect()
            if self._uploader is not None:
                self._uploader.wait()
            self._place.check()
            self._place.check_base()
            shards, extra = self._press.shards, self._extra()
            if self._place.base is not None:
                shards, extra = self._place.base.joined(shards, extra)
            self._index_begun = True
            publish_file(self._place.directory, INDEX_BASENAME, [index_text(shards, extra)])
            if self._uploader is not None:
                self._uploader.put(INDEX_BASENAME)
                self._uploader.wait()
        except BaseException as error:
            self._fail(error)
            raise
        self._finished = self._halted = True
        self._samples, self._pool = SampleList(), None
        self._place.release()
        self._press.close()
        if self._uploader is not None:
            self._uploader.close()
            self._place.remove_if_made()

    def _cut(self) -> None:
        """Hand the samples of the filled shard to the thread that publishes it."""
        samples, self._samples = self._samples, self._no_samples()
        nbytes = self._cutter.whole_room - self._room
        self._room = self._cutter.whole_room
        self._num_cut_samples += len(samples)
        self._costs.cut()
        self._press.publish(samples, nbytes, self._halt)

    def _no_samples(self) -> Any:
        """A :class:`SampleList` or :class:`SampleMemory`, which take what ``_encode`` gives."""
        return SampleList() if self._pool is None else SampleMemory(self._pool)

    def _extra(self) -> dict[str, Any]:
        extra = self._costs.extra()
        algorithm = self._options.sample_hash
        if algorithm is not None:
            extra[SAMPLE_HASHES_KEY] = sample_hashes_entry(algorithm, self._press.side_digests)
        return extra

    def _halt(self) -> None:
        self._halted = True

    def _raise_halted(self) -> None:
        """Raise why no sample can be written: what a thread has met is the end of this writer."""
        if self._failure is not None or self._finished:
            raise self._closed_error()
        try:
            self._press.collect()
            if self._uploader is not None:
                self._uploader.wait()
            self._place.check()
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Take everything back and close for good."""
        self._failure = error
        self._halted = True
        self._num_cut_samples += len(self._samples)
        self._samples = SampleList()
        self._pool = None
        self._press.close()  # a shard that is being published is among those to remove
        if self._uploader is not None and self._place.is_lost:
            self._uploader.close()  # what lies there is the other writer's
        elif self._uploader is not None and self._index_begun and self._place.base is not None:
            # Whether the new index has replaced the old one is not known: it needs the new shards, and both need an
            # index.
            self._uploader.close()
        elif self._uploader is not None:
            self._uploader.take_back()
        if self._index_begun:
            self._place.restore_index()
        for name in reversed(self._press.published):
            (self._place.directory / name).unlink(missing_ok=True)
        self._place.release()
        self._place.remove_if_made()

    def _closed_error(self) -> BaseException:
        if self._failure is not None:
            if isinstance(self._failure, StreamshardError):
                return type(self._failure)(
                    f"{self._failure} (the writer has given up; nothing was published)"
                )
            return RuntimeError(f"{self._place}: the writer was ended by an exception; nothing was published")
        return RuntimeError(f"{self._place}: the dataset is finished; a sample cannot be added to it")
