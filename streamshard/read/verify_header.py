"""Check one shard without reading its samples: sizes, and of a raw file the header, by range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamshard.errors import BlobNotFoundError, StreamshardError
from streamshard.format.shard import parse_header
from streamshard.read.keys import key_in
from streamshard.read.report import Problem, ShardReport
from streamshard.read.spot import RangeRead

if TYPE_CHECKING:
    from streamshard.read.verify_shard import ShardTask

# Longer than almost any config, so that one request gets the whole header.
_CONFIG_NBYTES = 2048
# Of more, the ends of the table are looked at before the rest is read.
_MANY_SAMPLES = 1 << 18


def verify_header(task: ShardTask) -> ShardReport:
    """Check presence and sizes of a shard's files, and its header where the raw file is stored.

    Of a compressed shard the header cannot be had without reading more. Raises nothing for bad data.
    """
    report = ShardReport()
    info = task.info
    stored = info.stored
    if _has_size(task, stored.basename, stored.nbytes, f"shard {stored.basename!r}", report):
        if info.compressed is None:
            _check_header(task, report)
        else:
            report.notes.append("of compressed shards only the sizes were checked; --deep reads them")
    if task.side is not None:
        _has_size(task, task.side.name, task.side.nbytes, repr(task.side.name), report)
    return report


def _has_size(task: ShardTask, basename: str, nbytes: int, shown: str, report: ShardReport) -> bool:
    try:
        found = task.store.size(key_in(task.split, basename))
    except BlobNotFoundError:
        message = f"{shown}: the file is missing, the index lists it"
    except (StreamshardError, OSError) as error:
        message = f"{shown}: {error}"
    else:
        if found == nbytes:
            return True
        message = f"{shown}: index says {nbytes:,} bytes, file has {found:,}"
    report.problems.append(Problem(basename, None, message))
    return False


def _check_header(task: ShardTask, report: ShardReport) -> None:
    info = task.info
    name, nbytes = info.raw.basename, info.raw.nbytes
    read = RangeRead(task.store, key_in(task.split, name), name)
    try:
        # The index tells how many samples there are, so that a header that claims others costs no more.
        ahead = min(nbytes, 8 + 4 * min(info.num_samples, _MANY_SAMPLES) + _CONFIG_NBYTES)
        head = read(0, ahead)
        report.nbytes += len(head)

        def from_head(begin: int, end: int) -> bytes:
            if end <= len(head):
                return head[begin:end]
            report.nbytes += end - begin
            return read(begin, end)

        parse_header(from_head, nbytes, shard=name, expected=info)
        report.headers += 1
    except (StreamshardError, OSError) as error:
        report.problems.append(Problem(name, None, str(error)))
