"""Making one shard of the plan: the unit of work that any process can do, at any time, with the same bytes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.convert.destination import open_destination
from streamshard.convert.images import own_pixel_limit
from streamshard.convert.journal import Journal
from streamshard.convert.plan import Plan
from streamshard.convert.ready_samples import ReadySamples
from streamshard.convert.samples import ShardSamples
from streamshard.convert.scan import Advance
from streamshard.convert.shaping import Shaping
from streamshard.convert.supply import ImageSettings, ImageSupply
from streamshard.format.sample_hashes import digest_function, side_basename
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, shard_head
from streamshard.write.encode import publish_side_file, shard_basename, store_shard


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
    source: ReadySamples | ShardSamples
    if plan.ready:
        source = ReadySamples(plan, task.shard, image_root=task.image_root, supply=supply)
    else:
        source = ShardSamples(
            plan,
            task.shard,
            shaping=task.shaping,
            image_root=task.image_root,
            costs=task.costs,
            supply=supply,
        )
    digests: list[bytes] = []
    info = store_shard(
        built,
        task.basename,
        schema,
        chain([shard_head(source.sizes, config)], _passing(source, task.sample_hash, digests, advance)),
        len(source.sizes),
        compression=task.compression,
        hashes=task.hashes,
        size_limit=task.size_limit,
    )
    side_digest = None
    if task.sample_hash is not None:
        side_digest = publish_side_file(built, task.basename, b"".join(digests), task.sample_hash)
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


def _passing(
    source: ReadySamples | ShardSamples, sample_hash: str | None, digests: list[bytes], advance: Advance
) -> Iterator[memoryview]:
    """Give the samples on in blocks, report them, and put the hashes of the samples into ``digests``."""
    digest = None if sample_hash is None else digest_function(sample_hash)
    number = 0
    for block, count in source.blocks():
        if digest is not None:
            sizes = source.sizes[number : number + count]
            digests += [
                digest(block[end - nbytes : end]) for end, nbytes in zip(np.cumsum(sizes), sizes, strict=True)
            ]
        yield block
        advance(len(block), count)
        number += count


@lru_cache(maxsize=1)
def _loaded_plan(directory: str, _version: int) -> Plan:
    return Plan.load(Path(directory))
