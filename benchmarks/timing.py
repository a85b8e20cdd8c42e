"""The clock, one for all parties: what ``benchmarks.parties`` offer is iterated, timed, and checked for losses."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import resource
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from benchmarks.digest import digest_of_samples
from benchmarks.generate import SAMPLES, Source, bytes_to_pixels
from benchmarks.memory import private_nbytes_of_children

_COPIED_NBYTES = 1 << 20
_DECODED_AT_ONCE = 32
_KEPT_NBYTES = 16 << 20
_PICTURES: list[bytes] = []  # which forked processes inherit


def time_samples(
    party: str,
    opener: str = "samples",
    parts: Sequence[int] = (),
    read_column: str = "",
    *,
    check: bool,
    **source: Any,
) -> dict[str, Any]:
    """Time one epoch by samples: construction, time to the first one, and the rate from there on.

    Args:
        party: module of ``benchmarks.parties``.
        opener: its function.
        parts: with ``check``: also digests of the samples whose numbers are less than these.
        read_column: all bytes of this column's values are read once, as whoever uses them does: their words summed up.
        check: give digests.
        **source: of ``Source``; ``shuffle`` is passed to the opener.
    """
    given, extra = _split(source)
    begin = time.perf_counter()
    samples = function_of(party, opener)(given, **extra)
    constructed = time.perf_counter()
    if check:
        return _digests(samples, given, parts)
    cpu = cpu_s()
    start = time.perf_counter()
    first, total, count = start, 0, 0
    for sample in samples:  # one loop: asked for an iterator once more, some begin anew
        if not count:
            first = time.perf_counter()
        if read_column:
            _read(sample[read_column])
        total += sample["number"]
        count += 1
    end, used = time.perf_counter(), cpu_s() - cpu
    del sample, samples
    gc.collect()
    _check_sum(int(total), count, given.count)
    return {
        "samples_per_s": max(1, count - 1) / (end - first),
        "first_sample_s": first - start,
        "construct_s": constructed - begin,
        "cpu_s_per_million": used / count * 1e6,
    }


def _read(value: Any) -> int:
    import numpy as np

    return int(np.frombuffer(value, np.uint64, len(value) // 8).sum())


def time_copy(*, check: bool, **source: Any) -> dict[str, Any]:
    """Time the copying of all shards' bytes, from memory, a MiB at a time into one place."""
    given, _ = _split(source)
    if check:
        return {}
    files = [memoryview(path.read_bytes()) for path in sorted(given.place("mds").glob("*.mds"))]
    place = memoryview(bytearray(_COPIED_NBYTES))
    pieces = [file[at : at + _COPIED_NBYTES] for file in files for at in range(0, len(file), _COPIED_NBYTES)]
    cpu, start = cpu_s(), time.perf_counter()
    for piece in pieces:
        place[: len(piece)] = piece
    return {
        "samples_per_s": given.count / (time.perf_counter() - start),
        "cpu_s_per_million": (cpu_s() - cpu) / given.count * 1e6,
    }


def time_decoding(workers: int, *, check: bool, **source: Any) -> dict[str, Any]:
    """Time processes that make pixels of pictures and hand nothing over, in a heap that keeps what is freed."""
    given, _ = _split(source)
    if check:
        return {}
    _PICTURES[:] = [sample["picture"] for sample in SAMPLES[given.kind][1](given.count)]
    parts = [(begin, begin + _DECODED_AT_ONCE) for begin in range(0, given.count, _DECODED_AT_ONCE)]
    bytearray(_KEPT_NBYTES)  # see streamshard.dataset.heap
    cpu = cpu_s()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.map(_decode, parts[:workers], chunksize=1)  # until all have begun
        start = time.perf_counter()
        count = sum(pool.imap_unordered(_decode, parts))
        seconds = time.perf_counter() - start
        pool.close()
        pool.join()
    return {
        "samples_per_s": count / seconds,
        "cpu_s_per_million": (cpu_s() - cpu) / given.count * 1e6,
    }


def _decode(part: tuple[int, int]) -> int:
    return sum(bytes_to_pixels(picture) is not None for picture in _PICTURES[slice(*part)])


def time_batches(
    party: str,
    opener: str = "batches",
    workers: int | None = None,
    parts: Sequence[int] = (),
    *,
    check: bool,
    **source: Any,
) -> dict[str, Any]:
    """The same by batches, which are dicts of columns."""
    given, extra = _split(source)
    if workers is not None:
        extra["workers"] = workers
    begin = time.perf_counter()
    loader = function_of(party, opener)(given, **extra)
    constructed = time.perf_counter()
    if check:
        return _digests(samples_of(loader), given, parts)
    cpu = cpu_s()
    start = time.perf_counter()
    first, total, count, first_count = start, 0, 0, 0
    for batch in loader:
        if not count:
            first, first_count = time.perf_counter(), len(batch["number"])
        total += int(batch["number"].sum())
        count += len(batch["number"])
    end = time.perf_counter()
    del batch, loader
    gc.collect()
    _check_sum(total, count, given.count)
    return {
        "samples_per_s": (
            count / (end - start) if count == first_count else (count - first_count) / (end - first)
        ),
        "first_batch_s": first - start,
        "construct_s": constructed - begin,
        "cpu_s_per_million": (cpu_s() - cpu) / count * 1e6,
    }


def time_epochs(party: str, workers: int, epochs: int, *, check: bool, **source: Any) -> dict[str, Any]:
    """Time from an epoch's last batch to the next one's first, and private memory of the workers, epoch by epoch."""
    given, _ = _split(source)
    loader = function_of(party, "batches")(given, workers=workers, keep=True)
    if check:
        return _digests(samples_of(loader), given, ())
    gaps, batch_s, nbytes = [], [], []
    ended = 0.0
    for epoch in range(epochs):
        total = count = batches = 0
        for batch in loader:
            if batches == 0:
                began = time.perf_counter()
                if epoch:
                    gaps.append(began - ended)
            total += int(batch["number"].sum())
            count += len(batch["number"])
            batches += 1
            if count == given.count:  # the epoch's last batch: all workers are there
                nbytes.append(private_nbytes_of_children())
        ended = time.perf_counter()
        batch_s.append((ended - began) / max(1, batches - 1))
        _check_sum(total, count, given.count)
    steady = min(1, epochs - 1)
    return {
        "gap_ms": statistics.median(gaps or [0.0]) * 1e3,
        "batch_ms": statistics.median(batch_s) * 1e3,
        "workers_mb": nbytes[-1] / 1e6,
        "growth_mb": (nbytes[-1] - nbytes[steady]) / 1e6,
    }


def time_resume(party: str, workers: int, share: float, *, check: bool, **source: Any) -> dict[str, Any]:
    """Time to the first batch of a loader that goes on at ``share`` of an epoch; 0: of a fresh one.

    The state is made as in training: by reading up to there.
    """
    given, _ = _split(source)
    loader = function_of(party, "batches")(given, workers=workers)
    goal = int(share * given.count)
    before: list[Any] = []
    count = 0
    for batch in loader:
        count += len(batch["number"])
        if check and share:
            before.append(batch)
        if count >= goal:
            state = function_of(party, "save")(loader) if share else None
            break
    del batch, loader
    gc.collect()
    begin = time.perf_counter()
    if share:
        loader = function_of(party, "resume")(given, workers, state)
    else:
        loader = function_of(party, "batches")(given, workers=workers)
    if check:
        return _digests(samples_of(itertools.chain(before, loader)), given, ())
    for _ in loader:
        seconds = time.perf_counter() - begin
        break
    return {"first_batch_s": seconds}


def time_access(party: str, accesses: int, *, check: bool, **source: Any) -> dict[str, Any]:
    """Time ``dataset[number]`` at random numbers."""
    import random

    given, _ = _split(source)
    samples = function_of(party, "access")(given)
    numbers = random.Random(1).sample(range(len(samples)), accesses)
    if check:
        return {"digest": digest_of_samples(samples[number] for number in numbers)}
    for number in numbers[:1000]:
        samples[number]
    cpu, start = cpu_s(), time.perf_counter()
    for number in numbers:
        samples[number]
    seconds = time.perf_counter() - start
    return {
        "samples_per_s": accesses / seconds,
        "cpu_s_per_million": (cpu_s() - cpu) / accesses * 1e6,
    }


def samples_of(batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Take batches apart; a column has to be a tensor or an array of integers or pixels, or a list."""
    for batch in batches:
        columns = {}
        for name, column in batch.items():
            if name == "pixels":
                columns[name] = [bytes(each.numpy().tobytes()) for each in column]
            elif isinstance(column, list):
                columns[name] = column
            else:
                columns[name] = column.tolist()
                if str(column.dtype).rpartition(".")[2] != "int64":
                    raise TypeError(f"column {name} came as {column.dtype}, expected int64")
        yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _digests(samples: Iterable[Mapping[str, Any]], source: Source, parts: Sequence[int]) -> dict[str, str]:
    """Digests of all samples, and of those whose numbers are less than each of ``parts``."""
    bounds = sorted({source.count, *(part for part in parts if part < source.count)})
    found = digest_of_samples(samples, bounds)
    return {f"digest of {bound:,} samples": digest for bound, digest in zip(bounds, found, strict=True)}


def _split(arguments: Mapping[str, Any]) -> tuple[Source, dict[str, Any]]:
    fields = {name: value for name, value in arguments.items() if name in Source.__dataclass_fields__}
    extra = {name: value for name, value in arguments.items() if name not in fields}
    return Source(**fields), extra


def function_of(party: str, name: str) -> Any:
    """A function of ``benchmarks.parties.of_PARTY``."""
    return getattr(import_module(f"benchmarks.parties.of_{party}"), name)


def _check_sum(total: int, count: int, expected: int) -> None:
    if count != expected or total != count * (count - 1) // 2:
        raise ValueError(
            f"{count} samples came, whose numbers add up to {total}; expected {expected}, each number once"
        )


def cpu_s() -> float:
    """Seconds of CPU of this process and of those that it has started and that are over."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
