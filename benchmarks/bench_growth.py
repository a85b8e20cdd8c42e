"""How cost grows: with samples, shards, columns and workers, each alone; a picture is made of the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.bench_read import MOSAIC
from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.generate import WIDTHS, Source, dataset

ORDER_SHARDS = 1_000
ORDER_SAMPLES = (100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
PEER_SAMPLES = 10_000_000
SIZE_LIMITS = ("32mb", "8mb", "2mb", "500kb")
WORKERS = (0, 1, 2, 4)
_TEXTS = 200_000
_ROWS = 50_000
_ORDER, _CLOCK = "benchmarks.bench_order", "benchmarks.timing"


def growth(setting: Setting) -> Iterator[Contest]:
    """One contest a point; at most two runs each, for there are many."""
    for samples in ORDER_SAMPLES:
        count = setting.count(samples)
        shards = min(ORDER_SHARDS, count)
        peer = [Party(MOSAIC, "order_mosaic", MOSAIC)] if samples <= PEER_SAMPLES else []
        yield Contest(
            f"growth: first batch of {count:,} samples in {shards:,} shards",
            _ORDER,
            [Party(OURS, "order_streamshard"), *peer],
            "seconds",
            False,
            {"samples": count, "shards": shards},
            cache="none",
            checked=False,
            axis=("samples", count),
        )
    texts = setting.count(_TEXTS)
    for size_limit in SIZE_LIMITS:
        place = dataset(setting.directory, "text", texts, size_limit=size_limit)
        shards = len(list(place.glob("*.mds")))
        options = {**_source(setting, "text", texts), "size_limit": size_limit}
        title = f"{texts:,} texts in {shards:,} shards of {size_limit}"
        yield _read(title, "time_samples", options, ("shards", shards))
    rows = setting.count(_ROWS)
    for width in WIDTHS:
        dataset(setting.directory, f"columns-{width}", rows)
        options = _source(setting, f"columns-{width}", rows)
        yield _read(f"{rows:,} rows of {width} integers", "time_samples", options, ("columns", width))
    dataset(setting.directory, "text", texts)
    for workers in WORKERS:
        options = {**_source(setting, "text", texts), "workers": workers}
        yield _read(f"{texts:,} texts by {workers} workers", "time_batches", options, ("workers", workers))


def _source(setting: Setting, kind: str, count: int) -> dict[str, Any]:
    source = Source(kind, count, str(setting.directory))
    return {"kind": source.kind, "count": source.count, "directory": source.directory}


def _read(title: str, clock: str, options: Mapping[str, Any], axis: tuple[str, float]) -> Contest:
    return Contest(
        f"growth: {title}",
        _CLOCK,
        [
            Party(OURS, clock, options={"party": "streamshard"}),
            Party(MOSAIC, clock, MOSAIC, {"party": "mosaic"}),
        ],
        "samples_per_s",
        True,
        options,
        axis=axis,
    )
