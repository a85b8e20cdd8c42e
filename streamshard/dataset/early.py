"""The first batches, before their shards are here: their samples read by range."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import StreamshardError
from streamshard.read.keys import key_in
from streamshard.read.ranged import RangedReads, RangedShard, RemoteShard, Wanted

if TYPE_CHECKING:
    from streamshard.dataset.feed import Share
    from streamshard.dataset.source import Source
    from streamshard.storage.blob import Blob

logger = logging.getLogger(__name__)

# Share of an epoch's bytes that may be fetched twice, once by range and once in whole shards.
_BUDGET = 64
# A smaller shard is here about as soon as the answers to the two requests that a ranged read takes.
_LEAST_NBYTES = 256 << 10


class EarlyReads:
    """Reads the samples of shards that are not here by range, until all are here or the budget is spent.

    Attributes:
        has_begun: whether the first samples have been read, or were tried to.
    """

    def __init__(self, source: Source, most_nbytes: int) -> None:
        self._source = source
        # A stalled server is found out soon enough for the whole shard to be tried within its time limit.
        limit_s = min(stream.retry.timeout_s for stream in source.streams) / 4
        self._reads = RangedReads(most_nbytes, limit_s=limit_s)
        self._shards: dict[int, RemoteShard] = {}
        self.has_begun = False

    @classmethod
    def of(cls, source: Source, share: Share) -> EarlyReads | None:
        """Make one for a part of an epoch; None where no stream allows it."""
        if not any(stream.allows_ranges for stream in source.streams):
            return None
        mean_nbytes = source.raw_nbytes / max(1, source.num_samples)
        return cls(source, int(share.num_samples * mean_nbytes) // _BUDGET)

    def read(self, samples: NDArray[np.int64], wanted: Mapping[int, Blob]) -> dict[int, RangedShard] | None:
        """Read samples whose shards are wanted and not here; None where that ends, whole shards being better.

        Args:
            samples: sample numbers.
            wanted: shards that are not known to be here, by number.
        """
        self.has_begun = True
        shards, rows = self._source.locate(samples)
        found: dict[int, Wanted] = {}
        for shard in sorted(set(shards.tolist())):
            if shard not in wanted:
                continue
            stream, number = self._source.stream_of(shard)
            if stream.cache.has_file(wanted[shard]):
                continue
            info = stream.index.shards[number]
            if not stream.allows_ranges or info.compressed is not None or info.raw.nbytes < _LEAST_NBYTES:
                return None
            remote = self._shards.get(shard)
            if remote is None:
                remote = self._shards[shard] = RemoteShard(
                    stream.store,
                    key_in(stream.split, info.raw.basename),
                    info,
                    self._source.decoder(info.schema),
                    first_sample_id=int(self._source.begins[shard]),
                    load_check=partial(stream.sample_check, number),
                )
            found[shard] = Wanted(remote, np.array(sorted(set(rows[shards == shard].tolist()))))
        if not found:
            return None
        try:
            ranged = self._reads.read(list(found.values()))
        except (StreamshardError, OSError) as error:
            # Whole shards are tried next, which says what is wrong if it lasts.
            logger.warning("samples could not be read by range (%s); waiting for whole shards", error)
            return None
        return None if ranged is None else dict(zip(found, ranged, strict=True))
