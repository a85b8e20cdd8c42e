"""Batches of which bad and unwanted samples are left out, or replaced by others, by rules alone.

What becomes of a sample depends on the data and the order, never on time, worker or rank. So all ranks keep
their number of batches without talking to each other, and another run, on other ranks, decides the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamshard.dataset.incidents import Incident, Incidents
from streamshard.dataset.left_out import Handed, LeftOut, Sifted, too_many
from streamshard.dataset.pool import ShardPool
from streamshard.dataset.reading import Reading
from streamshard.dataset.source import Source
from streamshard.dataset.tolerance import SPREAD, Cause, LostShards, Tolerance, is_about_sample, is_damage
from streamshard.errors import BadSamplesError, FormatError

if TYPE_CHECKING:
    from streamshard.dataset.feed import Share
    from streamshard.order.rank_batches import RankBatches

Wait = Callable[[NDArray[np.int64]], None]
"""Blocks until the shards of some samples are local or lost."""

# Samples tried in a bad one's place: so many that are bad themselves, so many in all (a filter may be strict).
# Those of lost shards cost nothing but the look at their number.
_MOST_BAD_TRIED = 1000
_MOST_TRIED = 20_000
_MOST_LOOKED_AT = 1 << 22

Shape = Literal["samples", "batch", "handed"]


class Raw(NamedTuple):
    """A batch as far as it could be decoded together.

    Attributes:
        number: of the batch in its plan.
        samples: sample ids, int64, shape (n,).
        padding: how many of them, at the end, are repeats.
        values: what was decoded, of several batches perhaps.
        at: where in ``values`` each sample is, int64, shape (n,); -1: it was not decoded.
    """

    number: int
    samples: NDArray[np.int64]
    padding: int
    values: Any
    at: NDArray[np.int64]


class _LeftOut(NamedTuple):
    """A sample that does not come, and why; None where the filter did not want it."""

    cause: Cause | None


_UNREAD = object()
_UNWANTED = _LeftOut(None)


class Sieve:
    """Sifts the batches of one share.

    Args:
        source, share, reading: as for ``Feed``.
        tolerance: the rules.
        shape: what a batch is given as: ``samples`` (``Sifted``), ``batch`` (as it is), ``handed`` (``Handed``).
        rank: of this process in the job, for the report.

    Raises:
        StorageError: the report cannot be written.
    """

    def __init__(
        self,
        source: Source,
        share: Share,
        reading: Reading,
        tolerance: Tolerance,
        *,
        shape: Shape,
        rank: int,
    ) -> None:
        self._source = source
        self._share = share
        self._reading = reading
        self._tolerance = tolerance
        self._shape = shape
        self._rank = rank
        self._tolerates = tolerance.on_error != "raise"
        num_samples = share.plan.num_samples
        # The batches of a loader's workers are counted together where they are received.
        self._readers = share.plan.ranks * (1 if shape == "handed" else share.workers)
        self._most_bad = tolerance.most_bad(num_samples)
        self._most_here = tolerance.most_bad_of_part(num_samples, self._readers)
        self._bad = self._filtered = 0
        self._bad_shards: set[int] = set()
        self._next_number = share.worker + share.skip * share.workers
        self.lost = LostShards(tolerated=self._tolerates)
        reader = f"rank {rank}" + (f" worker {share.worker}" if share.workers > 1 else "")
        self._incidents = Incidents(tolerance.report, rank, epoch=share.epoch, reader=reader)

    def close(self) -> None:
        """Close the report and say in the log what was left out."""
        self._incidents.end(LeftOut(self._bad, self._filtered))

    def decoded(self, pool: ShardPool, wait: Wait, chunk: RankBatches) -> Iterator[tuple[Raw, int]]:
        """Yield the batches of a chunk, each with its number of samples, as they could be decoded together."""
        bounds = chunk.bounds.tolist()
        together = None
        if len(bounds) > 2 and self._reading.get is None:
            try:
                wait(chunk.samples)
            except (FormatError, OSError):
                pass  # raised again by the batch that it concerns
            else:
                together = self._decode(pool, chunk.samples)
        for batch, (begin, end) in enumerate(itertools.pairwise(bounds)):
            samples = chunk.samples[begin:end]
            if together is not None:
                values, at = together[0], together[1][begin:end]
            else:
                wait(samples)
                values, at = self._decode(pool, samples) or (None, np.full(end - begin, -1))
            number = self._next_number
            self._next_number += self._share.workers
            yield Raw(number, samples, int(chunk.padding[batch]), values, at), end - begin

    def sift(self, pool: ShardPool, raw: Raw) -> Any:
        """Make what is given of a batch.

        Raises:
            BadSamplesError: too many bad samples, or none that could take the place of one.
            FormatError, StorageError and what the user's functions raise: where it is not tolerated.
        """
        ids: list[int] = []
        values: list[Any] = []
        places: list[int] = []
        bad, filtered = self._bad, self._filtered
        cause = ""
        last = len(raw.samples) - 1
        given = self._given(raw)
        for place, sample in enumerate(raw.samples.tolist()):
            made = self._make(pool, sample, given[place])
            if isinstance(made, _LeftOut):
                if made.cause is not None:
                    cause = f"{self._incident(sample, made.cause, '', None).place}: {made.cause}"
                # A batch must not end up empty: its last place is filled if all others were left out.
                replaces = self._tolerance.on_error == "replace" or (place == last and not places)
                found = self._instead(pool, raw.number, place, sample, made.cause, replaces)
                if found is None:
                    continue
                sample, made = found
            ids.append(sample)
            values.append(made)
            places.append(place)
        batch = self._assemble(pool, raw, ids, values, places)
        if self._shape == "batch":
            return batch
        if self._shape == "samples":
            return Sifted(batch, places, len(raw.samples))
        return Handed(
            batch,
            self._bad - bad,
            self._filtered - filtered,
            sum(place > last - raw.padding for place in places) if raw.padding else 0,
            cause,
        )

    # One batch together

    def _decode(self, pool: ShardPool, samples: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]] | None:
        """Decode those samples whose shards are not lost; None where that fails, to be found out one by one."""
        if self._reading.get is not None:
            return None
        at = np.arange(len(samples))
        if self.lost:
            readable = ~np.isin(self._source.locate(samples)[0], self.lost.numbers())
            samples, at = samples[readable], np.where(readable, np.cumsum(readable) - 1, -1)
        if not len(samples):
            return None
        try:
            return self._reading.read(pool, samples), at
        except (FormatError, OSError):
            return None

    def _given(self, raw: Raw) -> list[Any]:
        """What was decoded together, by places of the batch."""
        return [_UNREAD if at < 0 else self._row(raw.values, at) for at in raw.at.tolist()]

    def _row(self, values: Any, at: int) -> Any:
        """One sample of what was decoded together; of columns only where somebody looks at it."""
        if not self._reading.in_columns:
            return values[at]
        return None if self._tolerance.wanted is None else _row_of(values, at)

    def _assemble(
        self, pool: ShardPool, raw: Raw, ids: list[int], values: list[Any], places: list[int]
    ) -> Any:
        if not self._reading.in_columns:
            return values
        at = raw.at[places] if places else raw.at[:0]
        if len(at) and at.min() >= 0 and ids == raw.samples[places].tolist():
            columns = _rows_of(raw.values, at)
        else:
            columns = pool.columns(np.array(ids, dtype=np.int64))
        finish = self._reading.finish
        return columns if finish is None else finish(columns)

    # One sample alone

    def _make(self, pool: ShardPool, sample: int, given: Any) -> Any:
        """Give what becomes of a sample, or a ``_LeftOut``."""
        wanted, each = self._tolerance.wanted, self._reading.each
        if given is _UNREAD:
            given = self._read(pool, sample)
            if isinstance(given, _LeftOut):
                return given
        try:
            if wanted is not None and not wanted(given):
                return _UNWANTED
            return given if each is None else each(given)
        except Exception as error:
            if not self._tolerates or not is_about_sample(error):
                raise
            return _left_out_by(error)

    def _read(self, pool: ShardPool, sample: int) -> Any:
        """Read one sample by itself, or give a ``_LeftOut``."""
        get = self._reading.get
        if self._tolerates:
            # Before the user's code, which would ask for a missing shard again with each of its samples.
            cause = self._why_lost(pool, self._shard_of(sample))
            if cause is not None:
                return _LeftOut(cause)
        try:
            if get is not None:
                return get(sample)
            values = self._reading.read(pool, np.array([sample], dtype=np.int64))
        except Exception as error:
            is_tolerated = is_damage if get is None else is_about_sample
            if not self._tolerates or not is_tolerated(error):
                raise
            return _left_out_by(error)
        return self._row(values, 0)

    def _why_lost(self, pool: ShardPool, shard: int) -> Cause | None:
        """Open a shard, only the first time that it is asked for; say why it cannot be had, if so."""
        if shard not in self.lost:
            try:
                with pool.reader(shard):
                    return None
            except (FormatError, OSError) as error:
                if not self.lost.note(shard, error):
                    raise
        return self.lost.get(shard)

    def _shard_of(self, sample: int) -> int:
        return int(np.searchsorted(self._source.begins, sample, side="right")) - 1

    # Another one in its place

    def _instead(
        self, pool: ShardPool, batch: int, place: int, sample: int, cause: Cause | None, replaces: bool
    ) -> tuple[int, Any] | None:
        """Count and write down a sample that does not come; give the one that does, if one shall."""
        if cause is None:
            self._filtered += 1
        else:
            self._count_bad(sample, cause)
        found = self._replacement(pool, batch, place, sample, cause) if replaces else None
        if cause is not None:
            action, number = ("skip", None) if found is None else ("replace", found[0])
            self._incidents.note(self._incident(sample, cause, action, number))
        return found

    def _count_bad(self, sample: int, cause: Cause) -> None:
        self._bad += 1
        if len(self._bad_shards) < SPREAD:
            self._bad_shards.add(self._shard_of(sample))
        is_rotten = len(self._bad_shards) == SPREAD and self._bad > self._most_here
        if self._bad <= self._most_bad and not is_rotten:
            return
        incident = self._incident(sample, cause, "raise", None)
        self._incidents.note(incident)
        raise too_many(
            self._bad,
            self._most_bad,
            self._tolerance.error_limit,
            epoch=self._share.epoch,
            where=f"in the part of it that one of {self._readers} readers has seen" if is_rotten else "here",
            cause=f"{incident.place}: {cause}",
        )

    def _replacement(
        self, pool: ShardPool, batch: int, place: int, sample: int, cause: Cause | None
    ) -> tuple[int, Any]:
        """The first of the order's replacements that is good and wanted."""
        share = self._share
        candidates = share.order.replacements(share.plan, share.epoch, batch, share.rank, place)
        tried = bad = 0
        for candidate in itertools.islice(candidates, _MOST_LOOKED_AT):
            if self.lost and self._shard_of(candidate) in self.lost:
                continue
            made = self._make(pool, candidate, _UNREAD)
            if not isinstance(made, _LeftOut):
                return candidate, made
            tried += 1
            bad += made.cause is not None
            cause = made.cause or cause
            if bad == _MOST_BAD_TRIED or tried == _MOST_TRIED:
                break
        where = self._incident(sample, cause or Cause("", ""), "raise", None).place
        raise BadSamplesError(
            f"epoch {share.epoch}: nothing can take the place of {where}: of the samples before it {tried:,} were "
            f"tried, {bad:,} of them bad and {tried - bad:,} left out by filter="
            + (f", and {len(self.lost)} shards cannot be had" if self.lost else "")
            + (f"; the last cause: {cause}" if cause is not None else "; what does filter= keep?")
        )

    def _incident(self, sample: int, cause: Cause, action: str, replacement: int | None) -> Incident:
        shard = self._shard_of(sample)
        stream, number = self._source.stream_of(shard)
        return Incident(
            self._share.epoch,
            self._rank,
            sample,
            stream.stream.name or stream.url,
            stream.index.shards[number].raw.basename,
            sample - int(self._source.begins[shard]),
            cause,
            action,
            replacement,
        )


def _left_out_by(error: Exception) -> _LeftOut:
    """Say why a sample does not come, and let go of the frames that the error came through.

    A function of the user may keep the error, as one that raises the same object each time: open shards would stay open
    with these frames.
    """
    error.__traceback__ = None
    return _LeftOut(Cause.of(error))


def _row_of(columns: dict[str, Any], at: int) -> dict[str, Any]:
    """One row of columns as a sample; of int columns as Python ints, as samples have them."""
    return {name: _item(values, at) for name, values in columns.items()}


def _item(values: Any, at: int) -> Any:
    is_int = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == np.int64
    return values[at].item() if is_int else values[at]


def _rows_of(columns: dict[str, Any], at: NDArray[np.int64]) -> dict[str, Any]:
    """Some rows of columns; a view where they lie together."""
    begin, end = int(at[0]), int(at[-1]) + 1
    if end - begin == len(at):
        return {name: values[begin:end] for name, values in columns.items()}
    places = at.tolist()
    return {
        name: values[at] if isinstance(values, np.ndarray) else [values[place] for place in places]
        for name, values in columns.items()
    }
