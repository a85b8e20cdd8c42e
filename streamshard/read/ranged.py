"""Samples of shards that are not on this machine, read by range: offset words first, then the samples' bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamshard.errors import FormatError
from streamshard.read.shard_reader import ShardReader
from streamshard.storage.together import Tell, together

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.index import ShardInfo
    from streamshard.read.sample_check import SampleCheck
    from streamshard.storage.store import Store

# A header up to this size is read whole, and known from then on: one request in place of several.
_WHOLE_HEADER_NBYTES = 64 << 10
# What lies between two words or samples is read too where it is less than a request costs.
_WORDS_GAP_NBYTES = 4 << 10
_SAMPLES_GAP_NBYTES = 16 << 10
_REQUESTS_AT_ONCE = 32

_Span = tuple[int, int]


class RemoteShard:
    """An uncompressed shard in a store, of which some offset words may be known. Not thread-safe.

    Args:
        store, key: where it is.
        info: its entry in the index.
        decoder: made by ``info.schema.decoder(...)``.
        first_sample_id: number of the shard's first sample in its dataset, for messages.
        load_check: gives the hashes of its samples, None where nobody asked for them.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        info: ShardInfo,
        decoder: SampleDecoder,
        *,
        first_sample_id: int,
        load_check: Callable[[], SampleCheck | None],
    ) -> None:
        self.store = store
        self.key = key
        self.info = info
        self.decoder = decoder
        self.first_sample_id = first_sample_id
        self.load_check = load_check
        self.check: SampleCheck | None = None
        self._words: dict[int, int] = {}

    def unknown(self, rows: NDArray[np.int64]) -> list[_Span]:
        """Give the ranges of the header that must be read to know where ``rows`` (ascending) lie."""
        missing = [row for row in rows.tolist() if row not in self._words or row + 1 not in self._words]
        if not missing:
            return []
        count = self.info.num_samples
        whole = 8 + 4 * count
        if whole <= _WHOLE_HEADER_NBYTES:
            return [(0, whole)]
        spans = [(4 + 4 * row, 12 + 4 * row) for row in missing]
        if count not in self._words:
            spans = [(0, 8), *spans, (whole - 4, whole)]
        return _joined(spans, _WORDS_GAP_NBYTES)

    def learn(self, span: _Span, piece: bytes) -> None:
        """Take a range of the header in. Raises FormatError where it contradicts the index."""
        begin = span[0]
        if begin == 0:
            self._check("samples", int.from_bytes(piece[:4], "little"), self.info.num_samples)
            piece = piece[4:]
            begin = 4
        words = np.frombuffer(piece, "<u4").tolist()
        first = (begin - 4) // 4
        self._words.update(zip(range(first, first + len(words)), words, strict=True))

    def spans(self, rows: NDArray[np.int64]) -> list[_Span]:
        """Give the bytes [begin, end) of each of ``rows``, whose words are known.

        Raises:
            FormatError: they lie outside the shard's samples.
        """
        words, count, nbytes = self._words, self.info.num_samples, self.info.raw.nbytes
        self._check("bytes", words[count], nbytes)
        first = max(words[0], 8 + 4 * count)
        found = [(words[row], words[row + 1]) for row in rows.tolist()]
        for row, (begin, end) in zip(rows.tolist(), found, strict=True):
            if not first <= begin <= end <= nbytes:
                raise FormatError(
                    f"shard {self.info.raw.basename!r}: sample {row} is said to be bytes [{begin}, {end}) of a file of "
                    f"{nbytes} whose samples begin at {words[0]}"
                )
        return found

    def _check(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            raise FormatError(
                f"shard {self.info.raw.basename!r}: the index says {expected} {what}, the file at "
                f"{self.store.url} says {found}"
            )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Some rows of a remote shard; int64, ascending, each once."""

    shard: RemoteShard
    rows: NDArray[np.int64]


class RangedShard(ShardReader):
    """The rows of a shard that were read by range, to be read like the shard; no others."""

    def __init__(
        self, shard: RemoteShard, rows: NDArray[np.int64], content: bytes, spans: list[_Span]
    ) -> None:
        self.path = Path(shard.key)
        self.info = shard.info
        self.name = shard.info.raw.basename
        self.first_sample_id = shard.first_sample_id
        self.num_samples = shard.info.num_samples
        self.decoder = shard.decoder
        self._check = shard.check
        self._rows = rows
        self._content = content
        self._begins_here = np.array([begin for begin, _ in spans], dtype=np.int64)
        self._ends_here = np.array([end for _, end in spans], dtype=np.int64)

    def raw(self, row: int) -> bytes:
        """Return the encoded bytes of one sample."""
        buffer, begins, ends = self.gather(np.array([row]))
        return buffer[int(begins[0]) : int(ends[0])]

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample, decoded."""
        return self.samples(np.array([row]))[0]

    def samples(self, rows: NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        """Return several samples. Raises FormatError naming the shard."""
        buffer, begins, ends = self.gather(rows)
        try:
            return self.decoder.many(buffer, begins, ends)
        except FormatError as error:
            raise FormatError(f"shard {self.name!r}: {error}") from error

    def columns_of(self, rows: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """Return samples column-wise; raises as ``samples``."""
        buffer, begins, ends = self.gather(rows)
        try:
            return self.decoder.columns_of(buffer, begins, ends)
        except FormatError as error:
            raise FormatError(f"shard {self.name!r}: {error}") from error

    def pieces(self, rows: NDArray[np.integer[Any]]) -> list[bytes]:
        """Give the bytes of samples, one after another. Raises as ``gather``."""
        buffer, begins, ends = self.gather(rows)
        return [buffer[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]

    def gather(self, rows: NDArray[np.integer[Any]]) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """Give the bytes of samples: (buffer, begins, ends), sample i being buffer[begins[i]:ends[i]].

        Raises:
            IndexError: a row that was not read.
            ChecksumError: a sample is not what its hash says, where samples are checked.
        """
        at = np.searchsorted(self._rows, rows)
        if at.size and (int(at.max()) >= len(self._rows) or (self._rows[at] != rows).any()):
            raise self._elsewhere(f"rows {rows.tolist()[:20]}")
        begins, ends = self._begins_here[at], self._ends_here[at]
        if self._check is not None:
            self._check.many(rows, self._content, begins, ends, self._place)
        return self._content, begins, ends

    def sample_nbytes(self) -> NDArray[np.int64]:
        raise self._elsewhere("the sizes of all samples")

    def close(self) -> None:
        """Nothing is open."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self!r} holds samples that were read for one batch")

    def _elsewhere(self, what: str) -> IndexError:
        return IndexError(
            f"{what} of shard {self.name!r}: only rows {self._rows.tolist()[:20]} were read by range"
        )


class RangedReads:
    """Reads rows of many remote shards at once, within a budget of bytes.

    Args:
        most_nbytes: bytes that may be read in all, headers included.
        limit_s: seconds that one ``read`` may take.
    """

    def __init__(self, most_nbytes: int, *, limit_s: float) -> None:
        self.most_nbytes = most_nbytes
        self.nbytes = 0
        self._limit_s = limit_s

    def read(self, wanted: Sequence[Wanted]) -> list[RangedShard] | None:
        """Read all rows of all shards, or None where that would pass the budget.

        Raises:
            FormatError: a shard contradicts the index, or (ChecksumError) its hashes of samples cannot be right.
            BlobNotFoundError, AccessDeniedError, StorageError: it cannot be read.
            TimeoutError: it took too long.
        """
        heads = [(each.shard, span) for each in wanted for span in each.shard.unknown(each.rows)]
        expected = sum(len(each.rows) * _mean_nbytes(each.shard.info) for each in wanted)
        if not self._affords(_nbytes_of(heads) + expected):
            return None
        pieces = self._fetch(heads, [each.shard for each in wanted])
        for (shard, span), piece in zip(heads, pieces, strict=True):
            shard.learn(span, piece)
        spans = [each.shard.spans(each.rows) for each in wanted]
        joined = [_joined(each, _SAMPLES_GAP_NBYTES) for each in spans]
        bodies = [(each.shard, span) for each, some in zip(wanted, joined, strict=True) for span in some]
        if not self._affords(_nbytes_of(bodies)):
            return None
        contents = iter(self._fetch(bodies, []))
        return [
            _placed(each, own, some, [next(contents) for _ in some])
            for each, own, some in zip(wanted, spans, joined, strict=True)
        ]

    def _affords(self, nbytes: int) -> bool:
        return self.nbytes + nbytes <= self.most_nbytes

    def _fetch(
        self, requests: Sequence[tuple[RemoteShard, _Span]], checked: Sequence[RemoteShard]
    ) -> list[bytes]:
        """Read ranges, and the hashes of samples of some shards, all at once."""
        works: list[Callable[[Tell], bytes]] = [
            partial(_read, shard, span) for shard, span in requests if span[0] < span[1]
        ]
        works += [partial(_load_check, shard) for shard in checked if shard.check is None]
        self.nbytes += _nbytes_of(requests)
        found: dict[int, bytes] = {}
        if works:
            found = dict(together(works, threads=min(_REQUESTS_AT_ONCE, len(works)), limit_s=self._limit_s))
        numbers = iter(range(len(works)))
        return [found[next(numbers)] if begin < end else b"" for _, (begin, end) in requests]


def _read(shard: RemoteShard, span: _Span, tell: Tell) -> bytes:
    return shard.store.read_range(shard.key, *span)


def _load_check(shard: RemoteShard, tell: Tell) -> bytes:
    shard.check = shard.load_check()
    return b""


def _placed(each: Wanted, spans: list[_Span], joined: list[_Span], contents: list[bytes]) -> RangedShard:
    """Put what was read of one shard together, and say where in it each row is."""
    begins = np.array([begin for begin, _ in joined], dtype=np.int64)
    bases = np.cumsum([0, *map(len, contents)])
    here = []
    for begin, end in spans:
        number = int(np.searchsorted(begins, begin, side="right")) - 1
        at = int(bases[number]) + begin - joined[number][0]
        here.append((at, at + end - begin))
    return RangedShard(each.shard, each.rows, b"".join(contents), here)


def _joined(spans: Sequence[_Span], gap_nbytes: int) -> list[_Span]:
    """Join ascending ranges that overlap or lie at most ``gap_nbytes`` apart."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= gap_nbytes:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _nbytes_of(requests: Sequence[tuple[RemoteShard, _Span]]) -> int:
    return sum(end - begin for _, (begin, end) in requests)


def _mean_nbytes(info: ShardInfo) -> int:
    return info.raw.nbytes // max(1, info.num_samples)
