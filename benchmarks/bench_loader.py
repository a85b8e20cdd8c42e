"""Training's side of reading: batches by two workers, pictures, going on from a state, one epoch after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.bench_read import BLOB_SAMPLES, LITDATA, MOSAIC, TEXT_SAMPLES, WEBDATASET, ZEPHON, shares
from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.generate import SHAPES, dataset

WORKERS = 2
PHOTO_SAMPLES = 4_000
RESUME_SAMPLES = 200_000
EPOCH_SAMPLES = 50_000
EPOCHS = 10
_CLOCK = "benchmarks.timing"
_PEERS = {MOSAIC: "mosaic", LITDATA: "litdata", WEBDATASET: "webdataset", ZEPHON: "zephon"}
_NO_STATE = {WEBDATASET: "has no state to go on from"}
_NO_WORKERS = {ZEPHON: "a Pipeline ends with its epoch, and its process with it"}


def text_workers(setting: Setting) -> Iterator[Contest]:
    """Texts by two workers: integers as a tensor and a list of strings, in the training process."""
    goals = {MOSAIC: 12, f"{LITDATA}, not shuffled": 1.5}
    yield _batches(setting, "text", TEXT_SAMPLES, "text, 2 workers", goals)


def blob_workers(setting: Setting) -> Iterator[Contest]:
    """Blobs by two workers."""
    yield _batches(setting, "blob", BLOB_SAMPLES, "blob, 2 workers", {MOSAIC: 5, LITDATA: 1.1})


def pictures(setting: Setting) -> Iterator[Contest]:
    """JPEG files to uint8 arrays of 224 x 224 by two workers; every party has to come to the same pixels."""
    yield _batches(setting, "photo", PHOTO_SAMPLES, "JPEG to pixels, 2 workers", {MOSAIC: 1.3})


def resume(setting: Setting) -> Iterator[Contest]:
    """From nothing to the first batch: fresh, and at 90 % of an epoch."""
    count = setting.count(RESUME_SAMPLES)
    dataset(setting.directory, "text", count)
    peers = [
        Party(f"{name}, {where}", "time_resume", name, {"party": _PEERS[name], "share": share})
        for name in (MOSAIC, LITDATA, ZEPHON)
        for where, share in (("fresh", 0.0), ("at 90 %", 0.9))
    ]
    yield Contest(
        f"start to first batch, {WORKERS} workers: {count:,} × {SHAPES['text']}",
        _CLOCK,
        [
            Party(f"{OURS}, at 90 %", "time_resume", options={"party": "streamshard", "share": 0.9}),
            Party(f"{OURS}, fresh", "time_resume", options={"party": "streamshard", "share": 0.0}),
            *peers,
        ],
        "first_batch_s",
        False,
        {"kind": "text", "count": count, "directory": str(setting.directory), "workers": WORKERS},
        work="resume at 90 %",
        goals={f"{OURS}, fresh": 0.9},
        unable=_NO_STATE,
    )


def epochs(setting: Setting) -> Iterator[Contest]:
    """Ten epochs with workers that stay: the gap between two, and what memory the workers come to have."""
    count = setting.count(EPOCH_SAMPLES)
    dataset(setting.directory, "text", count)
    peers = [
        Party(name, "time_epochs", name, {"party": _PEERS[name]}) for name in (MOSAIC, LITDATA, WEBDATASET)
    ]
    yield Contest(
        f"{EPOCHS} epochs, {WORKERS} workers that stay: {count:,} × {SHAPES['text']}",
        _CLOCK,
        [Party(OURS, "time_epochs", options={"party": "streamshard"}), *peers],
        "gap_ms",
        False,
        {
            "kind": "text",
            "count": count,
            "directory": str(setting.directory),
            "workers": WORKERS,
            "epochs": EPOCHS,
        },
        work="gap between epochs",
        bounds={OURS: ("growth_mb", 1.0)},
        unable=_NO_WORKERS,
    )


def _batches(setting: Setting, kind: str, default: int, work: str, goals: Mapping[str, float]) -> Contest:
    count = setting.count(default)
    parts = shares(kind, count)
    if kind == "text":
        parts[LITDATA] = parts[MOSAIC]  # shuffled, its two workers are slow too
    for each in (count, parts[MOSAIC]):
        dataset(setting.directory, kind, each)
    ours: dict[str, Any] = {"party": "streamshard", "parts": sorted(set(parts.values()))}
    parties = [Party(OURS, "time_batches", options=ours)]
    for name, party in _PEERS.items():
        options: dict[str, Any] = {"party": party, "count": parts[name]}
        parties.append(Party(name, "time_batches", name, options))
        if name == LITDATA and kind != "photo":
            shuffle = {"party": party, "shuffle": False}
            parties.append(Party(f"{name}, not shuffled", "time_batches", name, shuffle))
    if kind == "photo":
        parties.append(Party(f"bare decoding, {WORKERS} processes", "time_decoding"))
    return Contest(
        f"{kind}, shuffled, {WORKERS} workers: {count:,} × {SHAPES[kind]}",
        _CLOCK,
        parties,
        "samples_per_s",
        True,
        {"kind": kind, "count": count, "directory": str(setting.directory), "workers": WORKERS},
        work=work,
        goals=goals,
    )
