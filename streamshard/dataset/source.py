"""Opened streams: where their shards are, how their samples are decoded, under one numbering of samples."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamshard.dataset.location import Fetching, Location, first_given
from streamshard.errors import FormatError
from streamshard.read.catalog import IndexPlace, load_index, load_indexes, shard_blob, side_blob
from streamshard.read.sample_check import SampleCheck, reading_from, require_sample_hashes, sample_check
from streamshard.storage import is_local
from streamshard.storage.cache import Blob
from streamshard.storage.local_store import LocalStore
from streamshard.storage.memory_cache import MemoryCache

if TYPE_CHECKING:
    from streamshard.dataset.stream import Stream
    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.index import Index, ShardInfo
    from streamshard.format.schema import Schema
    from streamshard.storage.cache import NodeCache

__all__ = ["Decoding", "Fetching", "OpenStream", "Source", "open_streams"]

_IN_SIGHT_OF_LIMIT = 16
_NUMBERS = ("begins", "first_shard", "raw_nbytes", "_first_shards")  # made again where a source is unpickled


@dataclass(frozen=True, slots=True)
class Decoding:
    """What of a sample is decoded, and into what; the fields are those of ``StreamingDataset``."""

    columns: tuple[str, ...] | None = None
    allow_unsafe_types: bool = False
    decode_images: bool = True
    writeable_arrays: bool = False

    def decoder(self, schema: Schema) -> SampleDecoder:
        """Make the decoder of one schema; raises ValueError and UnsafeEncodingError as that does."""
        return schema.decoder(
            self.columns,
            allow_unsafe_types=self.allow_unsafe_types,
            decode_images=self.decode_images,
            writeable_arrays=self.writeable_arrays,
        )


class OpenStream:
    """One stream whose index has been read.

    A directory named alone is read in place, except compressed shards without their raw file, which are
    decompressed once a node into this user's cache. Everything else is fetched into the cache directory
    ``stream.local``.

    Raises:
        BlobNotFoundError, AccessDeniedError, StorageError: the index cannot be had.
        FormatError: it is malformed or has no samples.
        ValueError: the stream's arguments contradict each other or the index.
    """

    def __init__(
        self, stream: Stream, defaults: Fetching, found: tuple[Location, Index, str] | None = None
    ) -> None:
        if found is None:
            location = Location.of(stream, defaults)
            directory = None if location.tables is None else location.tables()
            found = (location, *load_index(location.store, split=stream.split, tables=directory))
        location, self.index, self.digest = found
        self.stream = stream
        self.split = stream.split
        self.validate_hash = first_given(stream.validate_hash, defaults.validate_hash)
        self._keep_zip = first_given(stream.keep_zip, defaults.keep_zip)
        self.store = location.store
        self.in_place = location.in_place
        if not self.index.num_samples:
            raise FormatError(
                f"{stream}: index.json at {self.store.url} lists no samples, nothing to train on"
            )
        self.retry = location.retry
        self._limit_bytes = defaults.cache_limit
        self._cache: NodeCache | MemoryCache | None = None
        if self.fetches or location.in_memory:
            self._cache = location.cache(self.digest, defaults.cache_limit)
        self._validate_samples = defaults.validate_samples
        if self._validate_samples:
            require_sample_hashes(self.index, str(stream))
        # A hash that the user names must exist for every shard: found out now, not hours into an epoch.
        if isinstance(self.validate_hash, str):
            for shard in self.index.table.first_of_kinds():
                self._blob_of(self.index.shards[shard])

    @property
    def cache(self) -> NodeCache | MemoryCache:
        """Where what is fetched or decompressed is kept."""
        if self._cache is None:  # files that are read in place need none
            place = Location(self.store, self.split, self.in_place, None, False, self.retry)
            self._cache = place.cache(self.digest, self._limit_bytes)
        return self._cache

    @property
    def limit_bytes(self) -> int | None:
        """Bytes that the cache may take; None: as many as it likes."""
        return self._limit_bytes if self._cache is None else self._cache.limit_bytes

    @property
    def fetches(self) -> bool:
        """Whether any shard may have to be fetched or decompressed before it can be read."""
        return self.in_place is None or self.index.is_compressed

    @property
    def allows_ranges(self) -> bool:
        """Whether single samples may be read from the store before their shard is here and was checked whole."""
        unchecked = isinstance(self.validate_hash, str) and not self._validate_samples
        return self.in_place is None and not unchecked and not is_local(self.stream.remote or "")

    @property
    def url(self) -> str:
        """The stream's place, for messages; holds no credentials."""
        return f"{self.store.url.rstrip('/')}/{self.split}" if self.split else self.store.url

    def blob(self, shard: int) -> Blob | None:
        """Describe the file to fetch for a shard; None where it is read in place."""
        return self.blob_of(self.index.shards[shard])

    def blob_of(self, info: ShardInfo) -> Blob | None:
        """The same for the shard of an index entry."""
        if self.in_place is not None and (info.compressed is None or self._path(info).exists()):
            return None
        return self._blob_of(info)

    def path_in_place(self, info: ShardInfo) -> str:
        """Path of a shard that is read in place, its hash checked where ``validate_hash`` names one."""
        path = f"{self.in_place}/{info.raw.basename}"
        if isinstance(self.validate_hash, str):
            check = self._blob_of(info).check
            if check is not None:
                with contextlib.suppress(
                    FileNotFoundError
                ):  # whoever opens the shard next says which one it is
                    check(Path(path))
        return path

    def sample_check(self, shard: int) -> SampleCheck | None:
        """The hashes of a shard's samples, fetched first if need be; None where nobody asked for them."""
        if not self._validate_samples:
            return None
        if self.in_place is not None:
            return sample_check(self.index, shard, reading_from(LocalStore(self.in_place)))
        blob = side_blob(self.index, shard, split=self.split)
        with self.cache.open(blob) as cached:
            return sample_check(self.index, shard, lambda _, most: os.pread(cached.fileno(), most, 0))

    def side_blob(self, shard: int) -> Blob | None:
        """Describe the file to fetch for ``sample_check``; None where nothing is fetched for it."""
        if not self._validate_samples or self.in_place is not None:
            return None
        return side_blob(self.index, shard, split=self.split)

    def _path(self, info: ShardInfo) -> Path:
        return (self.in_place or Path()) / info.raw.basename

    def _blob_of(self, info: ShardInfo) -> Blob:
        return shard_blob(info, split=self.split, validate_hash=self.validate_hash, keep_zip=self._keep_zip)


def open_streams(streams: Sequence[Stream], defaults: Fetching) -> list[OpenStream]:
    """Open streams, which costs less than one by one; many at once where their indexes come from other machines.

    Raises the error of the first one that has a wrong argument, whose index cannot be had, or is malformed.
    """
    locations = [Location.of(stream, defaults) for stream in streams]
    found = load_indexes([IndexPlace(each.store, each.split, each.tables) for each in locations])
    return [
        OpenStream(stream, defaults, (location, *each))
        for stream, location, each in zip(streams, locations, found, strict=True)
    ]


class Source:
    """All samples of some opened streams; a stream's first sample follows the last of the stream before it.

    Picklable, and never changed after it was made: open files belong to ``ShardPool``.

    Attributes:
        streams: the opened streams.
        begins: number of each shard's first sample, then the number of all samples; int64, shape (shards + 1,).
        first_shard: number of each stream's first shard, then of all shards; int64, shape (streams + 1,).
        raw_nbytes: of all raw shards.
    """

    def __init__(self, streams: Sequence[OpenStream], decoding: Decoding) -> None:
        self.streams = tuple(streams)
        _refuse_shared_caches(self.streams)
        self._number()
        self._decoders: dict[Schema, SampleDecoder] = {}
        for stream in self.streams:
            for schema in stream.index.schemas:
                if schema not in self._decoders:
                    self._decoders[schema] = decoding.decoder(schema)

    def _number(self) -> None:
        # Once: it is asked for several times an epoch, and there may be thousands of streams.
        raw_nbytes = [stream.index.table.raw_nbytes for stream in self.streams]
        self.raw_nbytes = int((raw_nbytes[0] if len(raw_nbytes) == 1 else np.concatenate(raw_nbytes)).sum())
        sizes = [stream.index.samples_per_shard for stream in self.streams]
        self.first_shard = np.concatenate(([0], np.cumsum([len(each) for each in sizes], dtype=np.int64)))
        self._first_shards: list[int] = self.first_shard.tolist()
        if len(sizes) == 1:
            self.begins = self.streams[0].index.begins  # shared with other processes, perhaps
        else:
            self.begins = np.concatenate(([0], np.cumsum(np.concatenate(sizes), dtype=np.int64)))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _NUMBERS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._number()

    @property
    def num_samples(self) -> int:
        """Number of distinct samples."""
        return int(self.begins[-1])

    @property
    def num_shards(self) -> int:
        """Number of shards of all streams."""
        return len(self.begins) - 1

    @property
    def sample_nbytes(self) -> int:
        """Mean bytes of a stored sample, at least 1."""
        return max(1, self.raw_nbytes // self.num_samples)

    @property
    def only_decoder(self) -> SampleDecoder | None:
        """The decoder of all samples, where all shards have the same columns; else None."""
        return next(iter(self._decoders.values())) if len(self._decoders) == 1 else None

    @property
    def nbytes_in_sight(self) -> int | None:
        """Bytes of samples that a node's readers together may look ahead; None: as many as they like.

        What one reader has gone on from while others still need it takes the room of what a later epoch could use.
        """
        limits = [stream.limit_bytes for stream in self.streams if stream.limit_bytes is not None]
        return min(limits) // _IN_SIGHT_OF_LIMIT if limits else None

    def decodes_pictures(self, decode_images: bool) -> bool:
        """Whether decoding a sample costs so much more than reading it that batches are better read singly."""
        if not decode_images:
            return False
        slow = ("jpeg", "png", "pil", "list[")
        return any(
            encoding.startswith(slow)
            for schema, decoder in self._decoders.items()
            for name, encoding in zip(schema.names, schema.encodings, strict=True)
            if name in decoder.columns
        )

    def locate(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give shard and row of each sample; int64 arrays of the same shape."""
        shards = np.searchsorted(self.begins, samples, side="right") - 1
        return shards, samples - self.begins[shards]

    def stream_of(self, shard: int) -> tuple[OpenStream, int]:
        """Give the stream of a shard, and the shard's number in it."""
        number = bisect_right(self._first_shards, shard) - 1
        return self.streams[number], shard - self._first_shards[number]

    def info(self, shard: int) -> ShardInfo:
        """Index entry of a shard."""
        stream, number = self.stream_of(shard)
        return stream.index.shards[number]

    def decoder(self, schema: Schema) -> SampleDecoder:
        """The decoder of one of the source's schemas."""
        return self._decoders[schema]


def _refuse_shared_caches(streams: Sequence[OpenStream]) -> None:
    """Refuse two places behind one cache directory: their files have the same names."""
    seen: dict[tuple[str, str | None], OpenStream] = {}
    for stream in streams:
        if stream.in_place is not None or isinstance(stream.cache, MemoryCache):
            continue
        other = seen.setdefault((os.path.realpath(stream.cache.directory), stream.split), stream)
        if other.store.url != stream.store.url:
            raise ValueError(
                f"local={os.fspath(stream.cache.directory)!r} is the cache of both {other.url} and {stream.url}: "
                "give each stream a directory of its own"
            )
