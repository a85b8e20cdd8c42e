"""What a conversion has made, or would make, summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamshard.convert.options import ConvertOptions
from streamshard.convert.plan import Plan
from streamshard.convert.summary import Summary
from streamshard.format.costs import COSTS_KEY
from streamshard.format.index import ShardInfo
from streamshard.format.shard import config_text, packed_size


def summary_of_plan(plan: Plan, options: ConvertOptions, out: str, seconds: float) -> Summary:
    """What would be made, before compression."""
    schema = plan.schema()
    config = config_text(
        schema, compression=options.compression, hashes=options.hashes, size_limit=options.size_limit
    )
    heads = sum(packed_size(n, 0, config) for n in np.diff(plan.begins).tolist())
    return Summary(
        out=out,
        samples=plan.num_samples,
        shards=plan.num_shards,
        nbytes=plan.payload_nbytes + heads,
        raw_nbytes=plan.payload_nbytes + heads,
        seconds=seconds,
        columns=dict(zip(schema.names, schema.encodings, strict=True)),
        images=plan.extra["images"],
        files=plan.extra.get("files", {}),
        skipped=plan.skipped,
        skips=plan.skips,
        warnings=plan.warnings,
        dry_run=True,
    )


def summary_of_shards(
    infos: Sequence[ShardInfo],
    extra: Mapping[str, Any],
    *,
    out: str,
    seconds: float,
    plan: Plan | None,
    samples_before: int,
    resumed_shards: int,
    finished_before: bool,
) -> Summary:
    """What was made: ``extra`` stands with the shards in the index; ``plan`` where it was made by this very run."""
    schema = infos[0].schema if infos else None
    return Summary(
        out=out,
        samples=sum(info.num_samples for info in infos),
        shards=len(infos),
        nbytes=sum(info.stored.nbytes for info in infos),
        raw_nbytes=sum(info.raw.nbytes for info in infos),
        seconds=seconds,
        columns=dict(zip(schema.names, schema.encodings, strict=True)) if schema is not None else {},
        images=extra.get("images", {}),
        files=extra.get("files", {}),
        costs={name: cost["total"] for name, cost in extra.get(COSTS_KEY, {}).items()},
        skipped=extra.get("convert", {}).get("skipped", {}),
        skips=plan.skips if plan is not None else (),
        warnings=plan.warnings if plan is not None else (),
        samples_before=samples_before,
        resumed_shards=resumed_shards,
        finished_before=finished_before,
    )
