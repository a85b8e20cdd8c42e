"""LocalDataset: a directory of MDS shards as a read-only sequence of samples."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from streamshard.errors import FormatError
from streamshard.format.index import INDEX_BASENAME
from streamshard.read.catalog import load_index
from streamshard.read.keys import key_in
from streamshard.read.open_shards import OpenShards
from streamshard.read.sample_check import require_sample_hashes
from streamshard.read.selection import nested, out_of_range, parse_selection, wanted_columns
from streamshard.storage import is_local, open_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.schema import Schema
    from streamshard.read.shard_reader import ShardReader

# Iteration decodes this much ahead: enough to spread the cost of a call, little enough to hold.
_AHEAD_ROWS = 256
_AHEAD_NBYTES = 256 << 10


class LocalDataset(Sequence[dict[str, Any]]):
    """Random access to a dataset in a local directory. Needs no torch; is a map-style torch dataset.

    ``ds[5]``, ``ds[-1]``, ``ds[np.int64(3)]`` give a dict; ``ds[10:0:-2]``, ``ds[[4, 4, 2]]``, ``ds[array]``
    and ``ds[mask]`` give a list in that order (nested lists for arrays of more dimensions), read shard by
    shard.

    Making one reads ``index.json`` only. Shards are opened when first used, at most 64 at a time; nothing is
    written to the directory. A compressed shard without its raw file is decompressed into an unnamed
    temporary file, at most 1 GiB of them. May be shared by threads, forked and pickled.

    Args:
        local: the directory that holds ``index.json``.
        split: sub-directory to use instead.
        columns: names of the columns wanted; default: all. Others are not decoded.
        allow_unsafe_types: read ``pkl`` columns, which can run any code that a dataset's author likes.
        decode_images: ``False`` gives the stored bytes of image columns (a list of bytes for lists).
        writeable_arrays: give arrays that may be changed in place; else they may be read-only.
        validate_samples: check every sample that is read with its hash; the dataset must have been written with
            ``sample_hash``. A wrong one is a ChecksumError.

    Raises:
        BlobNotFoundError: no index; the message says what is there.
        FormatError: a malformed index.
        UnsafeEncodingError: a ``pkl`` column was asked for without ``allow_unsafe_types``.
        ValueError: an unknown column, ``local`` is the URL of another machine, or ``validate_samples`` for a dataset
            without hashes of samples.
    """

    def __init__(
        self,
        local: str | os.PathLike[str],
        split: str | None = None,
        columns: Sequence[str] | None = None,
        allow_unsafe_types: bool = False,
        decode_images: bool = True,
        writeable_arrays: bool = False,
        validate_samples: bool = False,
    ) -> None:
        if not is_local(local):
            raise ValueError(
                f"local={os.fspath(local)!r} is not a directory of this machine; "
                "StreamingDataset(remote=...) reads from there"
            )
        store = open_store(local)
        self._index, _ = load_index(store, split=split)
        path = store.local_path(key_in(split, INDEX_BASENAME))
        if path is None:
            raise ValueError(f"local={os.fspath(local)!r} is not a directory of this machine")
        if validate_samples:
            require_sample_hashes(self._index, f"{path.parent}")
        wanted = wanted_columns(columns)
        decoders: dict[Schema, SampleDecoder] = {}
        for schema in self._index.schemas:
            decoders[schema] = schema.decoder(
                wanted,
                allow_unsafe_types=allow_unsafe_types,
                decode_images=decode_images,
                writeable_arrays=writeable_arrays,
            )
        self._columns: dict[str, str] = {}
        for schema, decoder in decoders.items():
            encodings = dict(zip(schema.names, schema.encodings, strict=True))
            for name in decoder.columns:
                self._columns.setdefault(name, encodings[name])
        self._shards = OpenShards(path.parent, self._index, decoders, validate_samples)
        # Found by bisection sooner than in an array of NumPy; holds no objects that processes would copy.
        self._num_samples = self._index.num_samples
        self._begins = array("q", self._index.begins.tobytes())

    @property
    def num_samples(self) -> int:
        """Number of samples, as in ``len``."""
        return self._index.num_samples

    @property
    def size(self) -> int:
        """Number of samples, under the name that ``StreamingDataset`` has for it."""
        return self._index.num_samples

    @property
    def num_shards(self) -> int:
        """Number of shards in the index."""
        return self._index.num_shards

    @property
    def columns(self) -> dict[str, str]:
        """Encoding of each column that samples have (the first one, should shards differ)."""
        return dict(self._columns)

    def __len__(self) -> int:
        return self._index.num_samples

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...

    @overload
    def __getitem__(self, at: Any) -> Any: ...

    def __getitem__(self, at: Any) -> Any:
        """Return the sample(s) at an int, slice, mask, or list or array of ints.

        Raises:
            IndexError: beyond the dataset; names the range.
            FormatError: damaged data; names the shard file, the row in it and the sample's number.
        """
        if type(at) is int:
            return self._one(at)
        if isinstance(at, (int, np.integer)) and not isinstance(at, bool):
            return self._one(int(at))
        ids = parse_selection(at, len(self))
        samples = self._many(ids.ravel())
        return samples if ids.ndim == 1 else nested(samples, ids.shape)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch of samples; torch's DataLoader calls this where it exists."""
        if type(self).__getitem__ is not LocalDataset.__getitem__:
            return [self[at] for at in indices]  # a subclass that changes samples must see each of them
        return self._many(parse_selection(list(indices), len(self)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all samples in order, reading ahead a little within each shard."""
        if type(self).__getitem__ is not LocalDataset.__getitem__:
            for at in range(len(self)):
                yield self[at]
            return
        for shard_id in range(self.num_shards):
            yield from _walk(self._shards.reader(shard_id))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self._shards.directory)!r}, {self.num_samples:,} samples in "
            f"{self.num_shards:,} shards, columns {', '.join(self._columns)})"
        )

    def _one(self, at: int) -> dict[str, Any]:
        num_samples = self._num_samples
        if not -num_samples <= at < num_samples:
            raise IndexError(out_of_range(at, num_samples))
        if at < 0:
            at += num_samples
        shard_id = bisect_right(self._begins, at) - 1
        return self._shards.reader(shard_id).sample(at - self._begins[shard_id])

    def _many(self, ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        # Sorted by id: each shard is opened once per call, and neighbours are read together.
        order = np.argsort(ids, kind="stable")
        shards, rows = self._index.locate(ids[order])
        breaks = (np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist()
        samples: list[dict[str, Any]] = [{}] * len(ids)
        places = order.tolist()
        for begin, end in zip([0, *breaks], [*breaks, len(ids)], strict=True):
            if begin == end:
                continue
            found = self._shards.reader(int(shards[begin])).samples(rows[begin:end])
            for place, sample in zip(places[begin:end], found, strict=True):
                samples[place] = sample
        return samples


def _walk(reader: ShardReader) -> Iterator[dict[str, Any]]:
    step = max(1, min(_AHEAD_ROWS, _AHEAD_NBYTES * len(reader) // reader.info.raw.nbytes))
    for begin in range(0, len(reader), step):
        rows = np.arange(begin, min(begin + step, len(reader)))
        try:
            samples = reader.samples(rows)
        except FormatError:
            # One by one, so that what comes before the damaged sample is given and the error is that
            # sample's.
            yield from map(reader.sample, rows.tolist())
        else:
            yield from samples
