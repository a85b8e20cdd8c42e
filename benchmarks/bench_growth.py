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
_MOST_RUNS = 2
_ORDER, _CLOCK = "benchmarks.bench_order", "benchmarks.timing"


def growth(setting: Setting) -> Iterator[Contest]:
    """One contest a point; two runs each, for there are many. Products are compared at one point of each axis."""
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
            most_runs=_MOST_RUNS,
            axis=("samples", count),
        )
    texts = setting.count(_TEXTS)
    for size_limit in SIZE_LIMITS:
        place = dataset(setting.directory, "text", texts, size_limit=size_limit)
        shards = len(list(place.glob("*.mds")))
        options = {**_source(setting, "text", texts), "size_limit": size_limit}
        title = f"{texts:,} texts in {shards:,} shards of {size_limit}"
        yield _read(title, "time_samples", options, ("shards", shards), checked=size_limit == SIZE_LIMITS[-1])
    rows = setting.count(_ROWS)
    for width in WIDTHS:
        dataset(setting.directory, f"columns-{width}", rows)
        options = _source(setting, f"columns-{width}", rows)
        title = f"{rows:,} rows of {width} integers"
        yield _read(title, "time_samples", options, ("columns", width), checked=width == WIDTHS[-1])
    dataset(setting.directory, "text", texts)
    for workers in WORKERS:
        options = {**_source(setting, "text", texts), "workers": workers}
        title = f"{texts:,} texts by {workers} workers"
        yield _read(title, "time_batches", options, ("workers", workers), checked=workers == WORKERS[-1])


def _source(setting: Setting, kind: str, count: int) -> dict[str, Any]:
    source = Source(kind, count, str(setting.directory))
    return {"kind": source.kind, "count": source.count, "directory": source.directory}


def _read(
    title: str, clock: str, options: Mapping[str, Any], axis: tuple[str, float], *, checked: bool
) -> Contest:
    return Contest(
        f"growth: {title}",
        _CLOCK,
        [
            Party(OURS, clock, options={"party": "streamshard"}),
            Party(MOSAIC, clock, MOSAIC, {"party": "mosaic"}),
        ],
        "samples_per_s",
        True,
        options if checked else {**options, "check": False},
        checked=checked,
        most_runs=_MOST_RUNS,
        axis=axis,
    )
