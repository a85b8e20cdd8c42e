"""The thread of a writer that packs, hashes, compresses and publishes shards while the next one fills."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from streamshard.format.index import ShardInfo
from streamshard.format.sample_hashes import side_basename
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, shard_head
from streamshard.write.encode import shard_basename, store_shard, write_side_file
from streamshard.write.options import ShardOptions
from streamshard.write.samples import Samples
from streamshard.write.upload import Uploader

# A shard up to this size is published while the next one fills, so that two are in memory; of larger ones
# only one is, and the writer waits.
_OVERLAP_NBYTES = 1 << 27


class Press:
    """Publishes shards in a directory, one at a time, and sends them on.

    Args:
        directory: where the files go.
        schema: of the samples.
        options: of the shards.
        uploader: sends published files on, or None.
        first_number: of the shards.

    Attributes:
        shards: those that were published and collected, in order.
        side_digests: digests of the files with the samples' hashes, of the shards published.
        published: names of all files, in order.
    """

    def __init__(
        self,
        directory: Path,
        schema: Schema,
        options: ShardOptions,
        uploader: Uploader | None,
        first_number: int = 0,
    ) -> None:
        self._directory = directory
        self._schema = schema
        self._options = options
        self._uploader = uploader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="streamshard-write")
        self._pressing: Future[ShardInfo] | None = None
        self._next_number = first_number
        self.shards: list[ShardInfo] = []
        self.side_digests: list[str] = []
        self.published: list[str] = []

    def publish(self, samples: Samples, nbytes: int, on_failure: Callable[[], None]) -> None:
        """Hand over the samples of the next shard; waits for the one before, and for a large one itself.

        Args:
            samples: encoded samples.
            nbytes: their size.
            on_failure: called by the thread if the shard cannot be published.

        Raises:
            StorageError: the shard before could not be published.
        """
        self.collect()
        basename = shard_basename(self._next_number)
        self._next_number += 1
        self._pressing = self._thread.submit(self._publish, basename, samples)
        self._pressing.add_done_callback(
            lambda pressing: on_failure() if pressing.exception() is not None else None
        )
        del samples
        if nbytes > _OVERLAP_NBYTES:
            self.collect()

    def collect(self) -> None:
        """Wait for the shard that is being published.

        Raises:
            StorageError: it could not be published.
        """
        pressing, self._pressing = self._pressing, None
        if pressing is not None:
            self.shards.append(pressing.result())

    def close(self) -> None:
        """End the thread, once a shard that is being published is there."""
        self._thread.shutdown(wait=True)
        self._pressing = None

    def _publish(self, basename: str, samples: Samples) -> ShardInfo:
        """Pack, hash, compress and store a shard, and send it on. Runs in the publishing thread."""
        options = self._options
        config = config_text(
            self._schema,
            compression=options.compression,
            hashes=options.hashes,
            size_limit=options.size_limit,
        )
        info = store_shard(
            self._directory,
            basename,
            self._schema,
            chain([shard_head(samples.sizes(), config)], samples.buffers()),
            len(samples),
            compression=options.compression,
            hashes=options.hashes,
            size_limit=options.size_limit,
        )
        self._send(info.stored.basename)
        if options.sample_hash is not None:
            self.side_digests.append(
                write_side_file(self._directory, basename, samples.each(), options.sample_hash)
            )
            self._send(side_basename(basename))
        samples.release()
        return info

    def _send(self, basename: str) -> None:
        self.published.append(basename)
        if self._uploader is not None:
            self._uploader.put(basename)
