"""Reading samples out of many shards at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamshard.dataset.open_readers import OpenReaders
from streamshard.errors import FormatError
from streamshard.format.decoder import FEW, MALFORMED
from streamshard.format.side_by_side import side_by_side
from streamshard.read.guarded_map import CUT
from streamshard.read.raw_file import is_any_short

if TYPE_CHECKING:
    from streamshard.dataset.source import Source
    from streamshard.format.column import Buffer
    from streamshard.format.decoder import SampleDecoder
    from streamshard.read.shard_reader import ShardReader

# Visits from which small rows are decoded together, and mean rows of a visit below which they are copied for that.
_JOINED_FROM, _JOINED_BELOW = 32, 8
_SMALL_ROW_NBYTES = 2048

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Visits:
    """Samples in ascending order, shard by shard.

    Attributes:
        order: the place of each among the samples as they were asked for; shape (n,).
        shards, rows: where each is; shape (n,).
        bounds: samples bounds[i] to bounds[i + 1] are in one shard; shape (visits + 1,).
    """

    order: NDArray[np.int64]
    shards: NDArray[np.int64]
    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def numbers(self) -> list[int]:
        """Number of the shard of each visit."""
        numbers: list[int] = self.shards[self.bounds[:-1]].tolist()
        return numbers


class ShardPool(OpenReaders):
    """Samples by number, read and decoded. Belongs to one process and one thread.

    Args: those of :class:`OpenReaders`.
    """

    def __init__(
        self, source: Source, *, live: int = 0, capacity: int | None = None, read_through: bool = False
    ) -> None:
        super().__init__(source, live=live, capacity=capacity, read_through=read_through)
        self._has_small_rows = source.raw_nbytes <= _SMALL_ROW_NBYTES * max(1, source.num_samples)

    def samples(self, samples: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Read and decode samples, given by number, in that order; each shard is visited once."""
        if not len(samples):
            return []
        visits = self._visits(samples)
        if self._has_few(visits):
            inverse = _inverse(visits.order)
            found = self._one_by_one(visits.shards[inverse].tolist(), visits.rows[inverse].tolist())
            if found is not None:
                return found
        return self._gather(visits, _samples_of, _decode_samples, _in_order_of_samples)

    def located(self, samples: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Give shard and row of each sample."""
        shards, rows = self._source.locate(samples)
        return shards.tolist(), rows.tolist()

    def samples_at(
        self, shards: list[int], rows: list[int], samples: NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        """Do what ``samples`` does for large ones of which ``located`` has given shards and rows."""
        has_few = len(rows) < FEW * len(set(shards))
        found = self._one_by_one(shards, rows) if has_few else None
        return self.samples(samples) if found is None else found

    def columns(self, samples: NDArray[np.int64]) -> dict[str, Any]:
        """The same column by column: arrays (n, …) for columns of one fixed size, else lists of n values."""
        decoder, visits = self._source.only_decoder, self._visits(samples)
        if decoder is not None and self._has_few(visits):
            return decoder.columns_from(self.samples(samples))
        return self._gather(visits, _columns_of, _decode_columns, _in_order_of_columns)

    def sample(self, sample: int) -> dict[str, Any]:
        """Read and decode one sample."""
        shard = int(np.searchsorted(self._source.begins, sample, side="right")) - 1
        with self.reader(shard) as reader:
            return reader.sample(sample - int(self._source.begins[shard]))

    def _visits(self, samples: NDArray[np.int64]) -> Visits:
        order = np.argsort(samples, kind="stable")
        shards, rows = self._source.locate(samples[order])
        cuts = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        return Visits(order, shards, rows, np.concatenate(([0], cuts, [len(samples)])))

    def _is_thin(self, visits: Visits) -> bool:
        """Whether small rows of so many shards are better decoded together than shard by shard."""
        return len(visits) >= _JOINED_FROM and self._has_small_rows

    def _has_few(self, visits: Visits) -> bool:
        """Whether samples are better decoded one by one than shard by shard or together."""
        return len(visits.order) < FEW * len(visits) and not self._is_thin(visits)

    def _one_by_one(self, shard_of: list[int], rows: list[int]) -> list[dict[str, Any]] | None:
        """Decode few samples of each of several open shards in their own order, so that none has to be visited.

        None where that cannot be; and for a sample that is malformed, which its shard's reader can name.
        """
        if self._lent:
            return None
        shards = set(shard_of)
        places = {}
        for shard in shards:
            reader = self._open.get(shard)
            place = None if reader is None else reader.in_place()
            if place is None:
                return None
            self._open.move_to_end(shard)
            places[shard] = place
        try:
            found = [
                decode(mapped, offsets[row], offsets[row + 1])
                for (decode, mapped, offsets), row in zip(
                    map(places.__getitem__, shard_of), rows, strict=True
                )
            ]
        except MALFORMED:
            return None
        for shard in shards:
            self._open[shard].check_whole()
        return found

    def _decoded_together(
        self,
        visits: Visits,
        decode: Callable[[SampleDecoder, Buffer, NDArray[np.int64], NDArray[np.int64]], _T],
    ) -> _T | None:
        """Copy the bytes of few rows of each of many shards together and decode them once.

        None where that cannot be: shards of several schemas; or a sample that is malformed, which is to be read again
        by its shard's reader, who can name it.
        """
        pieces: list[bytes] = []
        decoder: SampleDecoder | None = None
        rows = visits.rows
        for shard, (begin, end) in zip(
            visits.numbers(), itertools.pairwise(visits.bounds.tolist()), strict=True
        ):
            known = self._open.get(shard)
            if known is not None:  # what ``reader`` does, without a generator for each shard of each chunk
                self._open.move_to_end(shard)
                reader = known
                found = reader.pieces(rows[begin:end])
            else:
                with self.reader(shard) as reader:
                    found = reader.pieces(rows[begin:end])
            if decoder is not None and reader.decoder is not decoder:  # there is one for each schema
                return None
            decoder = reader.decoder
            pieces += found
        if decoder is None:
            return None
        length = np.fromiter(map(len, pieces), np.int64, len(pieces))
        ends = np.cumsum(length)
        with contextlib.suppress(FormatError):
            return decode(decoder, b"".join(pieces), ends - length, ends)
        return None

    def _in_order_of_use(
        self,
        visits: Visits,
        decode: Callable[[SampleDecoder, Buffer, NDArray[np.int64], NDArray[np.int64]], _T],
    ) -> _T | None:
        """Decode many rows of open shards from all their maps at once, in the order in which they are used.

        So they lie side by side in memory for whoever uses and frees them. None where that cannot be, as for
        ``_decoded_together``, or where rows are not taken from a map alone: those are better read by neighbours.
        """
        numbers = visits.numbers()
        places = self.places(numbers)
        if places is None:
            return None
        decoder = self._source.only_decoder
        if decoder is None:  # there is one for each schema
            decoder = self._open[numbers[0]].decoder
            if any(self._open[shard].decoder is not decoder for shard in numbers):
                return None
        # Not by ``zip(*places)``, which makes an iterator for each of them: collections of garbage would count them.
        maps, addresses, nbytes, descriptors = (list(map(itemgetter(part), places)) for part in range(4))
        inverse = _inverse(visits.order)
        try:
            buffer, begins, ends = side_by_side(maps, addresses, visits.bounds, visits.rows)
            values = decode(decoder, buffer, begins[inverse], ends[inverse])
        except (IndexError, FormatError):
            return None
        is_short = is_any_short(descriptors, nbytes)
        if is_short or CUT:
            for shard in numbers:
                self._open[shard].check_whole()
            if is_short:  # a moment ago, and is not any more: once more, shard by shard
                return None
        return values

    def _gather(
        self,
        visits: Visits,
        read: Callable[[ShardReader, NDArray[np.int64]], _T],
        decode: Callable[[SampleDecoder, Buffer, NDArray[np.int64], NDArray[np.int64]], _T],
        merge: Callable[[list[_T], NDArray[np.int64], NDArray[np.int64]], _T],
    ) -> _T:
        rows, bounds, order = visits.rows, visits.bounds, visits.order
        is_thin = self._is_thin(visits)
        stays_open = len(visits) <= self._capacity and self._keeps_open and not self._lent
        if stays_open and (is_thin or len(order) >= FEW * len(visits)):
            found = self._in_order_of_use(visits, decode)
            if found is not None:
                return found
        if is_thin and len(order) < _JOINED_BELOW * len(bounds):
            found = self._decoded_together(visits, decode)
            if found is not None:
                return merge([found], order, np.array([0, len(order)]))
        parts: list[_T] = []
        for shard, begin, end in zip(
            visits.numbers(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
        ):
            known = self._open.get(shard)
            if known is not None:  # what ``reader`` does, without a generator for each shard of each chunk
                self._open.move_to_end(shard)
                parts.append(read(known, rows[begin:end]))
                continue
            with self.reader(shard) as reader:
                parts.append(read(reader, rows[begin:end]))
        return merge(parts, order, bounds)


def _samples_of(reader: ShardReader, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    return reader.samples(rows)


def _columns_of(reader: ShardReader, rows: NDArray[np.int64]) -> dict[str, Any]:
    return reader.columns_of(rows)


def _decode_samples(
    decoder: SampleDecoder, joined: Buffer, begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[dict[str, Any]]:
    return decoder.many(joined, begins, ends)


def _decode_columns(
    decoder: SampleDecoder, joined: Buffer, begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> dict[str, Any]:
    return decoder.columns_of(joined, begins, ends)


class PoolHere:
    """The pools of whatever process asks: a forked or unpickled copy makes its own.

    One is for single samples, whoever asks. Another one an epoch that has come to its end leaves to the next, with its
    files open and mapped: to map them again takes a fourth of the time of reading large samples. It is let go as soon
    as other samples are read, of this dataset or of any other one: two pools together may need more files than a
    process may open. An epoch that is left before its end leaves what it knows of its shards, and no open file: it may
    be garbage, whose files are about to be closed.
    """

    _read_last: ClassVar[weakref.ref[PoolHere] | None] = None

    def __init__(self, source: Source) -> None:
        self._source = source
        self._owned: tuple[int, ShardPool] | None = None
        self._spare: tuple[tuple[int, int, bool], ShardPool] | None = None

    def get(self) -> ShardPool:
        """Return this process's pool."""
        PoolHere._let_go()
        if self._owned is None or self._owned[0] != os.getpid():
            self._owned = (os.getpid(), ShardPool(self._source))
        return self._owned[1]

    def take(self, live: int, *, read_through: bool = False) -> ShardPool:
        """Give a pool for an order with so many live shards: the one that was left last, if it is such a one.

        Shards whose files were replaced, written to or removed since are opened again, or missed, as without it.
        """
        spare, self._spare = self._spare, None
        PoolHere._let_go()
        if spare is not None and spare[0] == (os.getpid(), live, read_through):
            spare[1].close_changed()
            return spare[1]
        return ShardPool(self._source, live=live, read_through=read_through)

    def leave(self, pool: ShardPool, live: int, *, read_through: bool = False) -> None:
        """Keep a pool from ``take``."""
        pool.close_passing()
        PoolHere._let_go()
        self._spare = (os.getpid(), live, read_through), pool
        PoolHere._read_last = weakref.ref(self)

    @staticmethod
    def _let_go() -> None:
        last, PoolHere._read_last = PoolHere._read_last, None
        owner = None if last is None else last()
        if owner is not None:
            owner._spare = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_owned": None, "_spare": None}


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _in_order_of_samples(
    parts: list[list[dict[str, Any]]], order: NDArray[np.int64], bounds: NDArray[np.int64]
) -> list[dict[str, Any]]:
    return _permuted([sample for part in parts for sample in part], _inverse(order))


def _in_order_of_columns(
    parts: list[dict[str, Any]], order: NDArray[np.int64], bounds: NDArray[np.int64]
) -> dict[str, Any]:
    inverse = _inverse(order)
    merged: dict[str, Any] = {}
    for name in parts[0]:
        if not all(name in part for part in parts):
            raise FormatError(
                f"column {name!r} is not in all shards of a batch: name those that are with columns="
            )
        values = [part[name] for part in parts]
        if (
            all(isinstance(value, np.ndarray) for value in values)
            and len({_kind(value) for value in values}) == 1
        ):
            merged[name] = np.concatenate(values)[inverse]
        else:
            merged[name] = _permuted([item for value in values for item in value], inverse)
    return merged


def _kind(values: NDArray[Any]) -> tuple[Any, ...]:
    return values.dtype, values.shape[1:]


def _permuted(items: list[Any], places: NDArray[np.int64]) -> list[Any]:
    if len(items) < 2:
        return items
    return list(itemgetter(*places.tolist())(items))
