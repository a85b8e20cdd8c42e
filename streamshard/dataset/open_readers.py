"""The readers of shards that one process keeps open."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from streamshard.errors import StorageError
from streamshard.read.shard_reader import Place, ShardReader
from streamshard.storage.descriptors import most_open_files

if TYPE_CHECKING:
    from streamshard.dataset.source import Source
    from streamshard.read.head import ShardHead
    from streamshard.storage.cache import CachedFile

logger = logging.getLogger(__name__)

MAX_OPEN_SHARDS = 256
"""Default number of open shards: above the 128 or so that the default shuffle mixes at once."""
# Very many streams and large windows have more shards live. More are open for them, but no more than a quarter of
# what the process may open at two descriptors a shard.
_MOST_OPEN_SHARDS = 4096
_OPEN_PER_STREAM = 3
# Of shards that were open, what was found in front of their samples is remembered, so that they open again at little
# cost: of so many shards, and within so many bytes of offsets, those of open shards included.
_MOST_HEADS = 1 << 16
_HEADS_NBYTES = 32 << 20


class OpenReaders:
    """Readers of the shards used last. Belongs to one process and one thread.

    Where the cache has a limit, a reader is closed right after use: an open file is held against eviction, and
    workers that each hold many could wait for each other's space for ever.

    Args:
        source: the samples.
        live: shards that the order is expected to need at once; 0: not known.
        capacity: shards to keep open; None: by ``live``, the number of streams and the system's limit of open files.
        read_through: whole shards are read, and there is memory to keep those that are live.
    """

    def __init__(
        self, source: Source, *, live: int = 0, capacity: int | None = None, read_through: bool = False
    ) -> None:
        self._source = source
        self._read_through = read_through
        self._capacity = _default_capacity(source, live) if capacity is None else capacity
        # Else a reader is closed right after use.
        self._keeps_open = all(stream.limit_bytes is None for stream in source.streams)
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._held: dict[int, CachedFile] = {}  # what keeps some of their files in the cache
        self._places: dict[int, Place] = {}  # of those that were asked for theirs
        self._placed_in = os.getpid()
        self._lent: Mapping[int, ShardReader] = {}
        self._heads: OrderedDict[int, ShardHead] = OrderedDict()
        self._heads_nbytes = 0

    @contextlib.contextmanager
    def reader(self, shard: int) -> Iterator[ShardReader]:
        """Lend the reader of a shard, which is fetched first if need be."""
        reader, held, stays = self._ready(shard)
        if stays:
            yield reader
            return
        try:
            yield reader
        finally:
            _close(reader, held)

    def _ready(self, shard: int) -> tuple[ShardReader, CachedFile | None, bool]:
        """Give the reader of a shard, what holds its file in the cache, and whether it stays open.

        What does not is for the caller to close.
        """
        known = self._lent.get(shard)
        if known is not None:
            return known, None, True
        known = self._open.get(shard)
        if known is not None:
            self._open.move_to_end(shard)
            return known, None, True
        try:
            reader, held, stays = self._open_shard(shard)
        except StorageError as error:
            # Others in this process, such as a second dataset, may have as many files open as this pool.
            if not self._open or not _wants_files(error):
                raise
            for each in list(self._open)[: len(self._open) // 2 + 1]:
                self.close_shard(each)
            reader, held, stays = self._open_shard(shard)
        if stays:
            self._open[shard] = reader
            if held is not None:
                self._held[shard] = held
            while len(self._open) > self._capacity:
                self.close_shard(next(iter(self._open)))
        return reader, held, stays

    @contextlib.contextmanager
    def using(self, readers: Mapping[int, ShardReader]) -> Iterator[None]:
        """Take these readers for the shards of these numbers until the block ends."""
        self._lent = readers
        try:
            yield
        finally:
            self._lent = {}

    def places(self, shards: list[int]) -> list[Place] | None:
        """Open shards, each named once, and say where they are in memory; no more than are kept open.

        None where one is not to be read from a map alone, or was closed again. What is taken from the maps counts only
        if no file is short and no map was cut afterwards.
        """
        if self._placed_in != os.getpid():  # a forked process guards its maps itself
            self._places.clear()
            self._placed_in = os.getpid()
        # A chunk may need a thousand shards, some rows of each: no step of Python for those that are open.
        found = list(map(self._places.get, shards))
        if None not in found:
            deque(map(self._open.move_to_end, shards), maxlen=0)
            return cast("list[Place]", found)
        for shard in shards:  # so that none of them is closed for another one
            if shard in self._open:
                self._open.move_to_end(shard)
        for at, shard in enumerate(shards):
            if found[at] is not None:
                continue
            reader, held, stays = self._ready(shard)
            if not stays:
                _close(reader, held)
                return None
            place = reader.place()
            if place is None:
                return None
            found[at] = place
            self._places[shard] = place
        # One that is closed again does not know whether it was cut.
        return cast("list[Place]", found) if all(map(self._open.__contains__, shards)) else None

    def close_shard(self, shard: int) -> None:
        """Close one shard, if it is open."""
        self._places.pop(shard, None)  # first: an interrupt may come between
        reader = self._open.pop(shard, None)
        if reader is not None:
            _close(reader, self._held.pop(shard, None))

    def close_passing(self) -> None:
        """Close the shards that are not to stay open for a next epoch.

        Those that lie in a cache, which nobody can evict while they are open, and those that were not in the page cache
        and may be now.
        """
        for shard, reader in list(self._open.items()):
            if shard in self._held or reader.asks_ahead:
                self.close_shard(shard)

    def close_changed(self) -> None:
        """Close the shards whose files are not, or no longer, what is at their paths."""
        for shard in [number for number, reader in self._open.items() if not reader.is_current()]:
            self.close_shard(shard)

    def close(self) -> None:
        """Close all shards."""
        for shard in list(self._open):
            self.close_shard(shard)

    def _open_shard(self, shard: int) -> tuple[ShardReader, CachedFile | None, bool]:
        stream, number = self._source.stream_of(shard)
        info = stream.index.shards[number]
        check = stream.sample_check(number)
        blob = stream.blob_of(info)
        held = None if blob is None else stream.cache.open(blob)
        try:
            path = stream.path_in_place(info) if held is None else held.path
            # What was checked is read, whoever puts another file in its place meanwhile; one in memory has no path.
            descriptor = None if held is None else _another(held, info.raw.basename)
            reader = ShardReader(
                path,
                info,
                self._source.decoder(info.schema),
                first_sample_id=int(self._source.begins[shard]),
                descriptor=descriptor,
                check=check,
                known=self._heads.get(shard),
                read_through=self._read_through,
            )
        except BaseException:
            if held is not None:
                held.close()
            raise
        self._remember(shard, reader.head)
        return reader, held, blob is None or stream.limit_bytes is None

    def _remember(self, shard: int, head: ShardHead) -> None:
        gone = self._heads.pop(shard, None)
        self._heads[shard] = head
        self._heads_nbytes += head.nbytes - (0 if gone is None else gone.nbytes)
        while len(self._heads) > _MOST_HEADS or self._heads_nbytes > _HEADS_NBYTES:
            eldest, gone = self._heads.popitem(last=False)
            self._heads_nbytes -= gone.nbytes
            if len(self._open) > MAX_OPEN_SHARDS:
                self.close_shard(eldest)


def _another(held: CachedFile, shard: str) -> int:
    """One more descriptor of a cached file, for who closes it."""
    try:
        return os.dup(held.fileno())
    except OSError as error:
        raise StorageError(f"shard {shard!r}: cannot open {held.path}: {error.strerror}") from error


def _wants_files(error: StorageError) -> bool:
    """Whether the process, or the system, has as many files open as it may."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)


def _close(reader: ShardReader, held: CachedFile | None) -> None:
    try:
        reader.close()
    finally:
        if held is not None:
            held.close()


def _default_capacity(source: Source, live: int) -> int:
    """Give the number of shards to keep open: 256, more where more are live, fewer where few files may be open."""
    files = most_open_files()
    # An open shard takes up to three: its file, its map's, and the one that holds it in the cache.
    least = max(1, min(MAX_OPEN_SHARDS, files // 4))
    # Half as many again as are live: where some end, those that follow are open before these are closed.
    wanted = min(max(_OPEN_PER_STREAM * len(source.streams), live + live // 2), source.num_shards)
    capacity = max(least, min(wanted, _MOST_OPEN_SHARDS, files // 8))
    if capacity < min(live, _MOST_OPEN_SHARDS):
        _say_how_few(capacity, live, files)
    return capacity


@functools.lru_cache
def _say_how_few(capacity: int, live: int, files: int) -> None:
    """Say it once."""
    logger.warning(
        "batches are mixed from about %d shards at a time; this process may have %d files open, so %d shards are kept "
        "open and the others opened again and again, which takes several times the CPU: raise the limit, as with "
        "ulimit -n %d",
        live,
        files,
        capacity,
        8 * min(live + live // 2, _MOST_OPEN_SHARDS),
    )
