"""Groups of processes that get the same samples: each reads for itself, or the first reads and the others receive."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.digest import digest_of_samples
from benchmarks.generate import dataset

PEERS = 4
BATCH_SIZE = 32
WORK = (("text", 50_000, 0), ("blob", 3_000, 0), ("picture", 1_000, 0), ("picture", 1_000, 1))
TITLES = {
    "text": "{int, 150-byte str}",
    "blob": "{int, 20-60 kB bytes, str}",
    "picture": "{int, JPEG of 256 x 256}, decoded to uint8 (3, 224, 224)",
}


def replication(setting: Setting) -> Iterator[Contest]:
    """Text, blobs and pictures to be decoded; the last also with one worker for each process that reads."""
    for kind, default, workers in WORK:
        count = setting.count(default)
        place = dataset(setting.directory, kind, count)
        yield Contest(
            f"{PEERS} peers, gloo, workers={workers}: {count:,} x {TITLES[kind]}",
            "benchmarks.bench_replication",
            [
                Party(f"{OURS}, read once", "epoch", options={"once": True}),
                Party(f"{OURS}, each reads", "epoch", options={"once": False}),
            ],
            "samples_per_s",
            True,
            {
                "directory": str(place),
                "scratch": str(setting.directory),
                "kind": kind,
                "workers": workers,
            },
        )


def epoch(
    directory: str, scratch: str, kind: str, workers: int, once: bool, *, check: bool
) -> dict[str, Any]:
    """Let all peers fetch the shards and read an epoch, then time the next one. Rates are of the group's samples."""
    import torch.multiprocessing

    with tempfile.TemporaryDirectory(dir=scratch) as place:
        options = {
            "directory": directory, "place": place, "kind": kind, "workers": workers, "once": once, "check": check,
        }  # fmt: skip
        torch.multiprocessing.start_processes(_peer, (options,), nprocs=PEERS, start_method="fork")
        found = [json.loads((Path(place) / f"{rank}.json").read_text()) for rank in range(PEERS)]
        caches = [path for path in Path(place).glob("cache-*/*.mds*") if path.is_file()]
        nbytes = sum(path.stat().st_size for path in caches)
    if check:
        (digest,) = {each["digest"] for each in found}
        return {"digest": digest}
    seconds = max(each["seconds"] for each in found)
    (samples,) = {each["samples"] for each in found}
    return {
        "samples_per_s": samples / seconds,
        "cpu_s_per_1000": sum(each["cpu_s"] for each in found) / samples * 1000,
        "fetched_mib": nbytes / 2**20,
    }


def _peer(rank: int, options: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from streamshard import StreamingDataLoader, StreamingDataset, World

    torch.set_num_threads(1)
    place = Path(options["place"])
    dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=PEERS)
    samples = StreamingDataset(
        remote=options["directory"],
        local=place / f"cache-{rank}",
        shuffle=True,
        world=World(0, 1),
        transform=_TRANSFORMS.get(options["kind"]),
    )
    group = dist.group.WORLD if options["once"] else None
    loader = StreamingDataLoader(samples, BATCH_SIZE, num_workers=options["workers"], read_once=group)
    result: dict[str, Any]
    if options["check"]:
        result = {"digest": digest_of_samples(_apart(loader))}
    else:
        for _ in loader:
            pass
        dist.barrier()
        begin, cpu, count = time.perf_counter(), _cpu_s(), 0
        for batch in loader:
            count += len(batch["number"])
        dist.barrier()
        result = {"seconds": time.perf_counter() - begin, "cpu_s": _cpu_s() - cpu, "samples": count}
    (place / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def _apart(loader: Any) -> Iterator[dict[str, Any]]:
    for batch in loader:
        columns = {name: [_plain(value) for value in values] for name, values in batch.items()}
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _plain(value: Any) -> Any:
    if not hasattr(value, "numpy"):
        return value
    return value.item() if value.ndim == 0 else value.numpy().tobytes()


def _pixels(sample: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    picture = sample["picture"].resize((224, 224))
    return {"number": sample["number"], "pixels": np.asarray(picture).transpose(2, 0, 1)}


_TRANSFORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"picture": _pixels}


def _cpu_s() -> float:
    """CPU seconds of this process and its ended workers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
