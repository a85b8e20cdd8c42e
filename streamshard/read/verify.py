"""verify_dataset: look at everything a dataset's index promises and list all that does not hold."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import numpy as np

from streamshard.errors import StreamshardError
from streamshard.format.index import INDEX_BASENAME, side_basenames
from streamshard.read.catalog import load_index
from streamshard.read.keys import key_in
from streamshard.read.report import Problem, Report, ShardReport
from streamshard.read.sample_check import SideFile
from streamshard.read.verify_header import verify_header
from streamshard.read.verify_shard import ShardTask, verify_shard
from streamshard.storage import open_store

if TYPE_CHECKING:
    from streamshard.format.index import Index
    from streamshard.storage.store import Store

_MAX_ORPHANS_LISTED = 100
MAX_ROW_PROBLEMS = 1000
# Looking at a header is waiting for an answer, from most places.
_HEADER_THREADS = 16


def verify_dataset(
    source: str | os.PathLike[str] | Store,
    *,
    split: str | None = None,
    decode: bool = True,
    workers: int = 1,
    allow_unsafe_types: bool = False,
    deep: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a dataset in a directory, at a URL or in a store, and list every problem.

    Always looked at: the index; names that two shards share; of each shard the presence and size of its files,
    and the header with all offsets, which of a place on another machine is read by range. ``deep`` reads the
    rest too: all hashes in the index, decompression, the hash of each sample where there are such, and
    (``decode``) each sample. Files of another machine are fetched for that, one at a time per worker, into a
    temporary directory. Memory stays near one shard's offsets per worker or thread.

    Args:
        source: directory, URL, or an open store.
        split: sub-directory to look at.
        decode: decode every sample, pictures included.
        workers: processes; 1 works in this one.
        allow_unsafe_types: decode ``pkl`` columns too, which can run code.
        deep: True reads everything, and lists every bad sample; False reads sizes and headers only. Default: as True
            for a directory of this machine, of each shard at most 1,000 bad samples listed; False for other places.
        storage_options: for the store, if ``source`` is a URL.
        progress: called with (shards done, shards in all).

    Returns:
        The report. Bad data never raises; only arguments that make no sense do.

    Raises:
        ValueError: ``workers`` below 1.
        StorageError: a ``source`` that can be no place, such as ``s3:/x``.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: at least 1")
    store = (
        open_store(source, storage_options=storage_options)
        if isinstance(source, (str, os.PathLike))
        else source
    )
    report = Report(source=f"{store.url.rstrip('/')}/{key_in(split, '')}".rstrip("/"))
    try:
        index, _ = load_index(store, split=split)
    except (StreamshardError, OSError, ValueError) as error:
        report.problems.append(Problem(None, None, str(error)))
        return report
    all_rows, report.deep = deep is True, _is_here(store) if deep is None else deep
    report.num_shards = len(index.shards)
    report.num_samples = index.num_samples
    _check_names(index, report)
    _note_orphans(store, split, index, report)
    tasks = (
        ShardTask(
            store,
            split,
            info,
            int(index.begins[shard]),
            decode,
            allow_unsafe_types,
            SideFile.of(index, shard),
            None if all_rows else MAX_ROW_PROBLEMS,
        )
        for shard, info in enumerate(index.shards)
    )
    results: Iterator[ShardReport]
    if not report.deep:
        report.notes.append("only sizes and headers were read; with --deep (deep=True) the samples are too")
        results = _in_threads(tasks)
    else:
        results = map(verify_shard, tasks) if workers == 1 else _in_processes(tasks, workers)
    for done, result in enumerate(results, 1):
        report.add(result)
        if progress is not None:
            progress(done, report.num_shards)
    return report


def _check_names(index: Index, report: Report) -> None:
    """List names that several shards claim, and shards without samples."""
    files = Counter(index.table.basenames())
    for name, count in files.items():
        if count > 1:
            report.problems.append(
                Problem(
                    name,
                    None,
                    f"file {name!r} stands {count} times in the index: its samples would be repeated",
                )
            )
    folded = Counter(name.casefold() for name in files)
    report.notes += [
        f"file {name!r} differs from another only in upper and lower case; some file systems cannot hold both"
        for name in files
        if folded[name.casefold()] > 1
    ]
    report.notes += [
        f"shard {index.shards[shard].raw.basename!r} holds no sample"
        for shard in np.flatnonzero(index.samples_per_shard == 0).tolist()
    ]
    if not index.num_samples:
        report.notes.append("the dataset holds no sample")


def _note_orphans(store: Store, split: str | None, index: Index, report: Report) -> None:
    """Note shard files that the index does not name: leftovers of another run, or of another index."""
    inside = key_in(split, "")
    known = {*index.table.basenames(), *side_basenames(index), INDEX_BASENAME}
    try:
        keys = store.list(inside)
    except (StreamshardError, OSError) as error:
        report.notes.append(f"files that the index does not name were not looked for: {error}")
        return
    names = [key[len(inside) :] for key in sorted(keys) if key.startswith(inside)]
    orphans = [name for name in names if name not in known and ".mds" in name.rpartition("/")[2]]
    report.notes += [f"file {name!r} is not in the index" for name in orphans[:_MAX_ORPHANS_LISTED]]
    if len(orphans) > _MAX_ORPHANS_LISTED:
        report.notes.append(f"{len(orphans) - _MAX_ORPHANS_LISTED:,} more files are not in the index")


def _is_here(store: Store) -> bool:
    return store.local_path(INDEX_BASENAME) is not None


def _in_threads(tasks: Iterator[ShardTask]) -> Iterator[ShardReport]:
    """Look at headers, many at once; reports in order."""
    running: deque[Future[ShardReport]] = deque()
    pool = ThreadPoolExecutor(_HEADER_THREADS, thread_name_prefix="streamshard-verify")
    try:
        for task in tasks:
            running.append(pool.submit(verify_header, task))
            if len(running) >= 2 * _HEADER_THREADS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _in_processes(tasks: Iterator[ShardTask], workers: int) -> Iterator[ShardReport]:
    """Check shards in worker processes, reports in order; a worker that dies is a problem listed."""
    broken: list[ShardTask] | None = []
    while broken is not None:
        broken = yield from _until_broken(tasks, workers)
        for task in broken or ():
            # Which of the shards in flight ended the worker is not known: each one gets a worker of its
            # own.
            if (yield from _until_broken(iter([task]), 1)):
                name = task.info.raw.basename
                message = f"shard {name!r}: the process that checked it died (out of memory, or killed)"
                yield ShardReport(problems=[Problem(name, None, message)])


def _until_broken(
    tasks: Iterator[ShardTask], workers: int
) -> Generator[ShardReport, None, list[ShardTask] | None]:
    """Give reports until the tasks end (return None) or a worker dies (return the tasks left)."""
    # Spawn: a fork of a process that has threads (a progress bar, fsspec's loop) may deadlock.
    context = multiprocessing.get_context("spawn")
    running: deque[tuple[ShardTask, Future[ShardReport]]] = deque()
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        for task in tasks:
            try:
                running.append((task, pool.submit(verify_shard, task)))
            except BrokenProcessPool:
                return [*(task for task, _ in running), task]
            if len(running) >= 2 * workers:
                yield running[0][1].result()
                running.popleft()
        while running:
            yield running[0][1].result()
            running.popleft()
    except BrokenProcessPool:
        return [task for task, _ in running]
    finally:
        pool.shutdown(cancel_futures=True)
    return None
