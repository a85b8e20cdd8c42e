"""The shards of a local dataset that are open now: bounded in number, descriptors and temporary disk."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.errors import StorageError
from streamshard.read.inflate import inflate_shard
from streamshard.read.sample_check import reading_from, sample_check
from streamshard.read.shard_reader import ShardReader
from streamshard.storage.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.index import Index
    from streamshard.format.schema import Schema

MAX_OPEN_SHARDS = 64
_FEW_OPEN_SHARDS = MAX_OPEN_SHARDS // 2
# Decompressed copies lie in unnamed temporary files, often in a tmpfs, and are shared by nobody.
MAX_INFLATED_NBYTES = 1 << 30


class OpenShards:
    """Least-recently-used set of ``ShardReader`` objects for a directory of raw or compressed shards.

    A shard without its raw file is decompressed into an unnamed temporary file, which the operating system
    frees with its last descriptor, even after SIGKILL; the dataset's directory is never written to. An
    evicted reader closes when the last thread that reads from it lets go. Pickling keeps no open file.

    Args:
        directory: where the index lies.
        index: its parsed form.
        decoders: one decoder per schema of the index.
        validate_samples: check every sample with the dataset's hashes of samples.
    """

    def __init__(
        self,
        directory: Path,
        index: Index,
        decoders: Mapping[Schema, SampleDecoder],
        validate_samples: bool = False,
    ) -> None:
        self.directory = directory
        self.index = index
        self._validate_samples = validate_samples
        self._decoders = dict(decoders)
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()
        self._inflated: dict[int, int] = {}
        self._lock = threading.Lock()
        _ALIVE.add(self)

    def reader(self, shard_id: int) -> ShardReader:
        """Return the open reader of a shard, opening it if need be. Raises as ``ShardReader`` does."""
        if len(self._readers) <= _FEW_OPEN_SHARDS and not self._inflated:
            # One look-up is whole by itself, and nobody will soon be asked which was used last.
            reader = self._readers.get(shard_id)
            if reader is not None:
                return reader
        with self._lock:
            reader = self._readers.get(shard_id)
            if reader is not None:
                self._readers.move_to_end(shard_id)
                return reader
            reader = self._open(shard_id)
            self._readers[shard_id] = reader
            self._evict()
            return reader

    def __len__(self) -> int:
        return len(self._readers)

    def renew_lock(self) -> None:
        """Take a fresh lock, in a forked child: a thread that did not come along may hold the old one."""
        self._lock = threading.Lock()

    def _open(self, shard_id: int) -> ShardReader:
        info = self.index.shards[shard_id]
        path = self.directory / info.raw.basename
        decoder = self._decoders[info.schema]
        begin = int(self.index.begins[shard_id])
        check = None
        if self._validate_samples:
            check = sample_check(self.index, shard_id, reading_from(LocalStore(self.directory)))
        if info.compressed is None or path.exists():
            return ShardReader(path, info, decoder, first_sample_id=begin, check=check)
        source = self.directory / info.compressed.basename
        descriptor = _unnamed_file(info.raw.basename)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as raw:
                inflate_shard(source, raw, info)
        except BaseException:
            os.close(descriptor)
            raise
        self._inflated[shard_id] = info.raw.nbytes
        return ShardReader(source, info, decoder, first_sample_id=begin, descriptor=descriptor, check=check)

    def _evict(self) -> None:
        while len(self._readers) > MAX_OPEN_SHARDS:
            self._drop(next(iter(self._readers)))
        for shard_id in list(self._inflated):
            if len(self._inflated) > 1 and sum(self._inflated.values()) > MAX_INFLATED_NBYTES:
                self._drop(shard_id)

    def _drop(self, shard_id: int) -> None:
        self._readers.pop(shard_id, None)
        self._inflated.pop(shard_id, None)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "index": self.index,
            "decoders": self._decoders,
            "validate_samples": self._validate_samples,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


_ALIVE: weakref.WeakSet[OpenShards] = weakref.WeakSet()


def _renew_locks() -> None:
    for shards in list(_ALIVE):
        shards.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


def _unnamed_file(shard: str) -> int:
    """Return a descriptor of a temporary file that has no name any more."""
    try:
        fd, name = tempfile.mkstemp(prefix="streamshard-")
    except OSError as error:
        raise StorageError(
            f"shard {shard!r}: no temporary file to decompress it into ({error.strerror}); set TMPDIR to a "
            "directory with room for it"
        ) from error
    Path(name).unlink()
    return fd
