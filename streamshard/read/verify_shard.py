"""Check one shard of a dataset: its files against index and hashes, its header, each of its samples."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamshard.errors import BlobNotFoundError, FormatError, MissingDependencyError, StreamshardError
from streamshard.format.hashing import hash_file, known_hashes
from streamshard.read.inflate import inflate_shard
from streamshard.read.keys import key_in
from streamshard.read.raw_file import open_regular
from streamshard.read.report import Problem, ShardReport
from streamshard.read.sample_check import reading_from
from streamshard.read.shard_reader import ShardReader

if TYPE_CHECKING:
    from streamshard.format.decoder import SampleDecoder
    from streamshard.format.index import FileInfo, ShardInfo
    from streamshard.format.schema import Schema
    from streamshard.read.sample_check import SampleCheck, SideFile
    from streamshard.storage.store import Store

# Decoded at once: bounded so that a shard of pictures does not unfold in memory.
_CHUNK_ROWS = 256
_CHUNK_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShardTask:
    """What a worker needs to check one shard; picklable.

    ``side``: the file with the hashes of its samples; None where there are none. ``most_rows``: bad samples that are
    listed singly; None for all.
    """

    store: Store
    split: str | None
    info: ShardInfo
    first_sample_id: int
    decode: bool
    allow_unsafe_types: bool
    side: SideFile | None = None
    most_rows: int | None = None


def verify_shard(task: ShardTask) -> ShardReport:
    """Check one shard and collect what is wrong; raises nothing for bad data."""
    report = ShardReport()
    with tempfile.TemporaryDirectory(prefix="streamshard-verify-") as scratch:
        raw = _check_files(task, Path(scratch), report)
        if raw is not None:
            _check_samples(task, raw, report)
    return report


def _check_files(task: ShardTask, scratch: Path, report: ShardReport) -> Path | None:
    """Check size and hashes of the shard's files; return a raw file if there is one to look into."""
    info = task.info
    raw = compressed = None
    if info.compressed is not None:
        compressed = _check_file(task, info.compressed, scratch, report, required=True)
        # With compression the raw file is somebody's leftover or cache: checked where it lies, not
        # required.
        raw = _check_file(task, info.raw, scratch, report, required=False)
    else:
        raw = _check_file(task, info.raw, scratch, report, required=True)
    if compressed is None:
        return raw
    inflated = scratch / "inflated"
    try:
        with inflated.open("wb") as target:
            inflate_shard(compressed, target, info)
    except (StreamshardError, OSError) as error:
        _add(report, info.raw.basename, str(error))
        return raw
    _check_hashes(inflated, info.raw, report, what="decompressed, ")
    return inflated


def _check_file(
    task: ShardTask, file: FileInfo, scratch: Path, report: ShardReport, *, required: bool
) -> Path | None:
    """Return the file's path on this machine if it is there and has the right size."""
    key = key_in(task.split, file.basename)
    try:
        if not required and not task.store.exists(key):
            return None
        path = task.store.local_path(key)
        if path is None:
            nbytes = task.store.size(key)
            if nbytes == file.nbytes:
                path = scratch / f"fetched-{'needed' if required else 'spare'}"
                nbytes = task.store.fetch_to(key, path)
        else:
            fd = open_regular(path, shard=file.basename)
            nbytes = os.fstat(fd).st_size
            os.close(fd)
        if nbytes != file.nbytes or path is None:
            _add(
                report,
                file.basename,
                f"shard {file.basename!r}: index says {file.nbytes:,} bytes, file has {nbytes:,}",
            )
            return None
        report.nbytes += nbytes
        _check_hashes(path, file, report, what="")
    except BlobNotFoundError:
        _add(report, file.basename, f"shard {file.basename!r}: the file is missing, the index lists it")
        return None
    except (StreamshardError, OSError) as error:
        _add(report, file.basename, f"shard {file.basename!r}: {error}")
        return None
    return path


def _check_hashes(path: Path, file: FileInfo, report: ShardReport, *, what: str) -> None:
    known = [name for name in sorted(file.hashes) if name in known_hashes()]
    for name in sorted(set(file.hashes) - set(known)):
        report.notes.append(f"hash {name!r} is not known here and was not checked")
    for name in known:
        with path.open("rb") as opened:
            actual = hash_file(name, opened)
        if actual != file.hashes[name].lower():
            _add(
                report,
                file.basename,
                f"shard {file.basename!r}: {what}{name} is {actual}, the index says {file.hashes[name]}",
            )
    if known:
        report.hashed_files += 1
    else:
        report.unhashed_files += 1


def _check_samples(task: ShardTask, raw: Path, report: ShardReport) -> None:
    info = task.info
    try:
        decoder = _decoder(task, report)
        check = _check_side(task, report)
        with ShardReader(raw, info, decoder, first_sample_id=task.first_sample_id, check=check) as reader:
            report.headers += 1
            if task.decode or check is not None:
                _read_all(reader, report, task.most_rows, decode=task.decode)
            if check is not None:
                report.hashed_samples += len(check)
    except (StreamshardError, OSError, ValueError) as error:
        _add(report, info.raw.basename, str(error))


def _check_side(task: ShardTask, report: ShardReport) -> SampleCheck | None:
    if task.side is None:
        return None
    try:
        return task.side.load(reading_from(task.store, task.split))
    except BlobNotFoundError:
        _add(report, task.side.name, f"{task.side.name!r}: the file is missing, the index lists it")
    except (StreamshardError, OSError) as error:
        _add(report, task.side.name, str(error))
    return None


def _decoder(task: ShardTask, report: ShardReport) -> SampleDecoder:
    decoder, unsafe = safe_decoder(task.info.schema, task.allow_unsafe_types)
    if unsafe:
        report.notes.append(f"not decoded, since pkl can run code: {', '.join(map(repr, unsafe))}")
    return decoder


def safe_decoder(schema: Schema, allow_unsafe_types: bool) -> tuple[SampleDecoder, list[str]]:
    """Make a decoder of all columns that run no code, or of all; return the names of those left out too."""
    unsafe = [
        name for name, encoding in zip(schema.names, schema.encodings, strict=True) if encoding == "pkl"
    ]
    if not unsafe or allow_unsafe_types:
        return schema.decoder(allow_unsafe_types=allow_unsafe_types), []
    return schema.decoder([name for name in schema.names if name not in unsafe]), unsafe


def _read_all(reader: ShardReader, report: ShardReport, most_rows: int | None, *, decode: bool) -> None:
    step = max(1, min(_CHUNK_ROWS, _CHUNK_NBYTES * len(reader) // reader.info.raw.nbytes))
    wrong = 0
    for begin in range(0, len(reader), step):
        rows = np.arange(begin, min(begin + step, len(reader)))
        try:
            if decode:
                report.decoded_samples += len(reader.samples(rows))
            else:
                reader.gather(rows)
            continue
        except MissingDependencyError:
            raise  # of this machine, not of a sample
        except Exception as error:  # noqa: BLE001 a user's own encoding may raise anything; found again below
            first_error = error
        before = wrong
        for row in rows.tolist():
            try:
                if decode:
                    reader.sample(row)
                    report.decoded_samples += 1
                else:
                    reader.raw(row)
            except Exception as error:  # noqa: BLE001 as above; listed
                wrong += 1
                if most_rows is None or wrong <= most_rows:
                    message = (
                        str(error)
                        if isinstance(error, FormatError)
                        else (f"shard {reader.name!r}, row {row}: {type(error).__name__}: {error}")
                    )
                    report.problems.append(Problem(reader.name, row, message))
        if wrong == before:
            _add(
                report,
                reader.name,
                f"shard {reader.name!r}, rows {rows[0]} to {rows[-1]} together: {first_error}",
            )
    if most_rows is not None and wrong > most_rows:
        more = wrong - most_rows
        _add(report, reader.name, f"shard {reader.name!r}: {more:,} more samples cannot be decoded")


def _add(report: ShardReport, shard: str, message: str) -> None:
    report.problems.append(Problem(shard, None, message))
