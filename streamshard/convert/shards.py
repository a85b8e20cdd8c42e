"""Making one shard of the plan: the unit of work that any process can do, at any time, with the same bytes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.destination import open_destination
from streamshard.convert.images import own_pixel_limit
from streamshard.convert.journal import Journal
from streamshard.convert.plan import Plan
from streamshard.convert.samples import ShardSamples
from streamshard.convert.scan import Advance
from streamshard.convert.shaping import Shaping
from streamshard.convert.supply import ImageSettings, ImageSupply
from streamshard.format.sample_hashes import side_basename
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, shard_head
from streamshard.write.encode import shard_basename, store_shard, write_side_file

_REPORTED_NBYTES = 1 << 23
# What is kept for the next shard is as much as a shard of the default size needs, and not gigabytes.
_KEPT_NBYTES = 1 << 27
_spare_memory: list[NDArray[np.uint8]] = []


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One shard of a plan, by number, and where it belongs; ``built``: where it is made, if not in ``directory``."""

    directory: str
    shard: int
    out: str
    image_root: str | None
    shaping: Shaping
    images: ImageSettings
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    costs: tuple[tuple[str, str], ...] = ()
    sample_hash: str | None = None
    built: str = ""
    first_number: int = 0

    @property
    def basename(self) -> str:
        """The name of the raw shard."""
        return shard_basename(self.first_number + self.shard)

    @property
    def label(self) -> str:
        return f"writing {self.basename}"


def write_planned_shard(task: WriteTask, advance: Advance) -> int:
    """Make, publish and record one shard; gives its raw size in bytes.

    Raises:
        ConvertError: the input is no longer what was planned.
        StorageError: the output cannot be written.
    """
    plan = _loaded_plan(task.directory, (Path(task.directory) / "plan.json").stat().st_mtime_ns)
    # Process numbers of several machines may be the same.
    name = f"{task.shard:05d}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    built = Path(task.built or f"{task.directory}/built") / name
    built.mkdir(parents=True, exist_ok=True)
    schema = plan.schema()
    config = config_text(schema, compression=task.compression, hashes=task.hashes, size_limit=task.size_limit)
    decodes = task.images.resizing is not None or not all(source.is_text for source in plan.sources)
    with (
        own_pixel_limit(task.images.max_pixels if decodes else None),
        ImageSupply(task.images) as supply,
    ):
        return _write(task, plan, schema, config, built, supply, advance)


def _write(
    task: WriteTask,
    plan: Plan,
    schema: Schema,
    config: bytes,
    built: Path,
    supply: ImageSupply,
    advance: Advance,
) -> int:
    source = ShardSamples(
        plan, task.shard, shaping=task.shaping, image_root=task.image_root, costs=task.costs, supply=supply
    )
    head = shard_head(source.sizes, config)
    with _room_for(len(head) + int(source.sizes.sum())) as content:
        content[: len(head)] = head
        end = len(head)
        reported_nbytes, reported = end, 0
        for number, end in enumerate(source.laid_into(content, len(head)), start=1):
            if end - reported_nbytes >= _REPORTED_NBYTES:
                advance(end - reported_nbytes, number - reported)
                reported_nbytes, reported = end, number
        advance(end - reported_nbytes, len(source.sizes) - reported)
        side_digest = None
        if task.sample_hash is not None:
            ends = len(head) + np.cumsum(source.sizes)
            samples = [content[end - nbytes : end] for end, nbytes in zip(ends, source.sizes, strict=True)]
            side_digest = write_side_file(built, task.basename, samples, task.sample_hash)
        info = store_shard(
            built,
            task.basename,
            schema,
            [content],
            len(source.sizes),
            compression=task.compression,
            hashes=task.hashes,
            size_limit=task.size_limit,
        )
    basename = info.stored.basename
    destination = open_destination(task.out, task.storage_options)
    if side_digest is not None:
        side = side_basename(info.raw.basename)
        destination.place(built / side, side)
    placed = destination.place(built / basename, basename)
    Journal(Path(task.directory)).record(task.shard, info, placed, source.costs, side_digest)
    for left in built.iterdir():
        left.unlink()
    built.rmdir()
    return info.raw.nbytes


@contextmanager
def _room_for(nbytes: int) -> Iterator[memoryview]:
    """Lend memory for one shard; what the last shard had is lent again, since fresh memory costs as much as a copy."""
    memory = _spare_memory.pop() if _spare_memory else np.empty(0, np.uint8)
    if len(memory) < nbytes:
        memory = np.empty(nbytes, np.uint8)
    yield memory.data[:nbytes]
    if len(memory) <= _KEPT_NBYTES:
        _spare_memory.append(memory)


@lru_cache(maxsize=1)
def _loaded_plan(directory: str, _version: int) -> Plan:
    return Plan.load(Path(directory))
