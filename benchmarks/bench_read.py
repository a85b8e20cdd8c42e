"""Reading in one process: an epoch in shuffled order, by samples and by columns; and random access by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.generate import SHAPES, dataset

TEXT_SAMPLES = 1_000_000
BLOB_SAMPLES = 30_000
MOSAIC, LITDATA, WEBDATASET, ZEPHON = "mosaicml-streaming", "litdata", "webdataset", "zephon"
PEERS = (MOSAIC, LITDATA, WEBDATASET, ZEPHON)
_CLOCK = "benchmarks.timing"


def text(setting: Setting) -> Iterator[Contest]:
    """{int, 150-byte str}: in shards of 64 MiB (few), and of 1 MiB (many, all of them live in the shuffle)."""
    yield _epoch(setting, "text", TEXT_SAMPLES, "64mb", "text", {MOSAIC: 40, LITDATA: 2})
    yield _epoch(setting, "text", TEXT_SAMPLES, "1mb", "", {}, only=[MOSAIC, LITDATA])


def blob(setting: Setting) -> Iterator[Contest]:
    """{int, 20-60 kB bytes, short str}."""
    goals = {MOSAIC: 10, LITDATA: 1.1, "bare loop": 0.7}
    contest = _epoch(setting, "blob", BLOB_SAMPLES, "64mb", "blob", goals)
    yield contest
    # A view costs nothing until it is looked at, and then what was put off.
    yield replace(
        contest,
        title=contest.title.replace("one process", "one process, each blob read once by the consumer"),
        work="blob, read once",
        parties=[each for each in contest.parties if each.name in (OURS, MOSAIC, LITDATA, "bare loop")],
        unable=dict.fromkeys((WEBDATASET, ZEPHON), "gives bytes, as above"),
        options={**contest.options, "read_column": "blob"},
    )


def columns(setting: Setting) -> Iterator[Contest]:
    """The texts by batches of columns, beside the fastest peer, which gives samples only."""
    count = setting.count(TEXT_SAMPLES)
    dataset(setting.directory, "text", count)
    yield Contest(
        f"text by columns, shuffled, one process: {count:,} × {SHAPES['text']}",
        _CLOCK,
        [
            Party(f"{OURS}, columns", "time_batches", options=_of("streamshard", opener="columns")),
            Party(OURS, "time_samples", options=_of("streamshard")),
            Party(LITDATA, "time_samples", LITDATA, _of("litdata")),
        ],
        "samples_per_s",
        True,
        {"kind": "text", "count": count, "directory": str(setting.directory)},
        work="text by columns",
        goals={LITDATA: 5},
        unable=dict.fromkeys((MOSAIC, WEBDATASET, ZEPHON), "gives samples one by one in one process"),
    )


def access(setting: Setting) -> Iterator[Contest]:
    """``dataset[number]`` at random numbers."""
    count = setting.count(TEXT_SAMPLES)
    dataset(setting.directory, "text", count)
    yield Contest(
        f"random access ds[i]: {count:,} × {SHAPES['text']}",
        _CLOCK,
        [
            Party(OURS, "time_access", options=_of("streamshard")),
            Party(MOSAIC, "time_access", MOSAIC, _of("mosaic")),
            Party(LITDATA, "time_access", LITDATA, _of("litdata")),
        ],
        "samples_per_s",
        True,
        {
            "kind": "text",
            "count": count,
            "directory": str(setting.directory),
            "accesses": min(count, 200_000),
        },
        work="ds[i], text",
        goals={MOSAIC: 6},
        unable={
            WEBDATASET: "reads tar files from their start; has no index",
            ZEPHON: "its source of work for a mixture is not indexable",
        },
    )


def shares(kind: str, count: int) -> dict[str, int]:
    """How many of the samples the slower peers are given: of texts a part, whose rate is that of all."""
    divisors = {MOSAIC: 5, WEBDATASET: 10, ZEPHON: 5} if kind == "text" else dict.fromkeys(PEERS, 1)
    return {name: max(1, count // divisor) for name, divisor in divisors.items()}


def _epoch(
    setting: Setting,
    kind: str,
    default: int,
    size_limit: str,
    work: str,
    goals: Mapping[str, float],
    only: list[str] | None = None,
) -> Contest:
    count = setting.count(default)
    parts = shares(kind, count)
    for each in (count, parts[MOSAIC]):
        dataset(setting.directory, kind, each, size_limit=size_limit)
    parties = [
        Party(OURS, "time_samples", options=_of("streamshard", parts=sorted(set(parts.values())))),
        Party(MOSAIC, "time_samples", MOSAIC, _of("mosaic", count=parts[MOSAIC])),
        Party(LITDATA, "time_samples", LITDATA, _of("litdata")),
        Party(f"{LITDATA}, not shuffled", "time_samples", LITDATA, _of("litdata", shuffle=False)),
        *(
            [
                Party(
                    f"{LITDATA}, as bytes", "time_samples", LITDATA, _of("litdata", opener="samples_as_bytes")
                )
            ]
            if kind == "blob"
            else []
        ),
        Party(WEBDATASET, "time_samples", WEBDATASET, _of("webdataset", count=parts[WEBDATASET])),
        Party(ZEPHON, "time_samples", ZEPHON, _of("zephon", count=parts[ZEPHON])),
        Party("bare loop", "time_samples", options=_of("bare")),
        *([Party("memory copy", "time_copy")] if kind == "blob" else []),
    ]
    return Contest(
        f"{kind}, shuffled, one process: {count:,} × {SHAPES[kind]}, shards of {size_limit}",
        _CLOCK,
        [each for each in parties if only is None or each.peer is None or each.peer in only],
        "samples_per_s",
        True,
        {"kind": kind, "count": count, "directory": str(setting.directory), "size_limit": size_limit},
        work=work,
        goals=goals,
    )


def _of(party: str, **options: Any) -> dict[str, Any]:
    return {"party": party, **options}
