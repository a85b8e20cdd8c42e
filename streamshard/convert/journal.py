"""The work directory: what an interrupted conversion has done already, so that the next run does only the rest.

lock          held by the running conversion
job.json      inputs and options that the work belongs to
replaced.json files of an older dataset that go when the new one is published
sources/      inputs that had to be fetched, unpacked or rewritten
scan/         findings of scanned chunks
plan.json, rows, begins.npy, samples
done/         one record for each published shard, written after the shard has its final name
built/        shards being made
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard.convert.destination import Destination
from streamshard.convert.places import local_path
from streamshard.errors import ConvertError, FormatError, StorageError
from streamshard.format.index import ShardInfo, index_text, parse_index
from streamshard.format.sample_hashes import side_basename
from streamshard.storage.opening import is_local

WORK_DIRECTORY = ".streamshard-convert"
_logger = logging.getLogger(__name__)


def work_directory(out: str, work_dir: str | None) -> Path:
    """Where the work on an output lies: inside a directory; for a URL in a private folder of this user."""
    if is_local(out) and work_dir is None:
        return local_path(out) / WORK_DIRECTORY
    name = hashlib.sha256(out.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    if work_dir is not None:
        return local_path(work_dir) / f"streamshard-convert-{name}"
    try:
        cache = local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    except StorageError as error:
        raise ConvertError(
            f"no place for the plan of {out}: {error}; name one with --work-dir DIR"
        ) from error
    return cache / "streamshard" / "convert" / name


class Done(NamedTuple):
    """A published shard: its index entry, its size and time as published, the sum of each cost of its samples.

    ``side_digest``: that of the file with the hashes of its samples, None where there is no such file.
    """

    info: ShardInfo
    stamp: list[int | None]
    costs: list[int]
    side_digest: str | None = None

    @property
    def basenames(self) -> list[str]:
        """The files of the shard."""
        side = [] if self.side_digest is None else [side_basename(self.info.raw.basename)]
        return [self.info.stored.basename, *side]


class Journal:
    """One work directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextlib.contextmanager
    def locked(self, output: str) -> Iterator[None]:
        """Make the directory if needed and hold its lock; the kernel lets go of it when this process dies.

        Raises:
            ConvertError: another conversion into the same output is running.
        """
        while True:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self.directory / "lock"
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # the run before us was just removing the directory
            try:
                _take(file, output)
                if _is_same_file(file, path):
                    os.ftruncate(file, 0)
                    os.pwrite(file, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
                    yield
                    return
            finally:
                os.close(file)

    def accept(self, job: Mapping[str, Any]) -> list[str]:
        """Keep what an earlier run has left if it belongs to the same job; else forget it.

        ``job`` has two parts: ``scan`` decides what the scan finds, ``write`` how shards are made. Gives the
        differences that made work useless, in words; empty where there was nothing or all of it is still good.
        """
        before = self._read("job.json")
        if not isinstance(before, dict):
            self.forget(scan=True)
            differences = []
        else:
            differences = _differences(before, job)
            if differences:
                self.forget(scan=before.get("scan") != job["scan"] or before.get("version") != job["version"])
        self._write("job.json", job)
        return differences

    def forget(self, *, scan: bool) -> None:
        """Drop the plan and the records of shards, with ``scan`` also the scan; remember the shards as orphans."""
        self.replace_later(name for done in self.done().values() for name in done.basenames)
        for name in ("plan.json", "rows", "rows.scanned", "begins.npy", "samples"):
            (self.directory / name).unlink(missing_ok=True)
        for name in ("done", "built", *(("scan", "sources") if scan else ())):
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def replace_later(self, names: Any) -> None:
        """Note files that must be gone when the new dataset is published, unless it has files of these names."""
        known = set(self.replaced()) | set(names)
        if known:
            self._write("replaced.json", sorted(known))

    def replaced(self) -> list[str]:
        """The files noted by :meth:`replace_later`."""
        names = self._read("replaced.json")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def record(
        self,
        shard: int,
        info: ShardInfo,
        stamp: Sequence[int | None],
        costs: Sequence[int] = (),
        side_digest: str | None = None,
    ) -> None:
        """Note that a shard is published."""
        (self.directory / "done").mkdir(exist_ok=True)
        self._write(
            f"done/{shard:05d}.json",
            {
                "stamp": list(stamp),
                "shard": json.loads(index_text([info]))["shards"][0],
                "costs": list(costs),
                "side_digest": side_digest,
            },
        )

    def done(self) -> dict[int, Done]:
        """The published shards by number."""
        found: dict[int, Done] = {}
        folder = self.directory / "done"
        if not folder.is_dir():
            return found
        for path in folder.glob("*.json"):
            record = self._read(f"done/{path.name}")
            if record is None:
                continue
            try:
                text = json.dumps({"shards": [record["shard"]], "version": 2}).encode()
                info = parse_index(text, source=str(path)).shards[0]
                found[int(path.stem)] = Done(
                    info, list(record["stamp"]), list(record["costs"]), record["side_digest"]
                )
            except (KeyError, TypeError, ValueError, FormatError):
                continue  # torn by a crash of the machine: the shard is made again
        return found

    def still_there(
        self, destination: Destination, *, sample_hash: str | None = None
    ) -> dict[int, ShardInfo]:
        """The recorded shards whose files are as they were published.

        Size and time must agree. A file whose size agrees and whose time does not (copied, restored) is hashed.
        """
        good: dict[int, ShardInfo] = {}
        for shard, done in self.done().items():
            info, stamp = done.info, done.stamp
            name = info.stored.basename
            found = destination.stamp(name)
            if found is None or found[0] != stamp[0]:
                continue
            if found != stamp and not _hash_agrees(destination, info):
                continue
            if sample_hash is not None and not _side_agrees(destination, done, sample_hash):
                continue
            good[shard] = info
        return good

    def remove(self) -> None:
        """Remove the work directory, the lock last."""
        # A worker of a killed run may be making its last file; it dies within moments.
        deadline = time.monotonic() + 5
        while True:
            try:
                for entry in self.directory.iterdir():
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    elif entry.name != "lock":
                        entry.unlink(missing_ok=True)
                shutil.rmtree(self.directory)
            except FileNotFoundError:
                if not self.directory.exists():
                    return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or time.monotonic() > deadline:
                    raise
            else:
                return

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.directory / name).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def _write(self, name: str, shown: Any) -> None:
        part = self.directory / f"{name}.{os.getpid()}.part"
        with part.open("w", encoding="ascii") as file:
            json.dump(shown, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.directory / name)


def _is_same_file(file: int, path: Path) -> bool:
    """Whether the path still leads to the open file: the lock of a file that was unlinked protects nothing."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _take(file: int, output: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 200, 0).decode("utf-8", "replace") or "another process"
        raise ConvertError(
            f"{output}: another convert is writing there ({holder}); wait for it, end it, or choose another --out"
        ) from None
    except OSError as error:
        # Some network file systems have no locks. Renames keep the output right even so.
        _logger.warning("%s: no file locks there (%s); see to it that only one convert runs", output, error)


def _differences(before: Any, job: Mapping[str, Any]) -> list[str]:
    if not isinstance(before, dict) or before.get("version") != job["version"]:
        return ["it was left by another version of streamshard"]
    found = []
    for part in ("scan", "write"):
        was = before.get(part)
        for key in {**(was if isinstance(was, dict) else {}), **job[part]}:
            value = job[part].get(key)
            old = was.get(key) if isinstance(was, dict) else None
            if old == value:
                continue
            if key == "sources":
                found += _changed_sources(old, value)
            else:
                found.append(f"{key} was {old!r} and is {value!r}")
    return found


def _changed_sources(old: Any, new: list[list[Any]]) -> list[str]:
    before = {row[0]: row for row in old or []}
    changed = [f"{row[0]} has changed" for row in new if row[0] in before and before[row[0]] != row]
    return changed or ["the list of sources is another one"]


def _side_agrees(destination: Destination, done: Done, algorithm: str) -> bool:
    from streamshard.format.hashing import hash_bytes

    content = destination.read(side_basename(done.info.raw.basename))
    return content is not None and hash_bytes(algorithm, content) == done.side_digest


def _hash_agrees(destination: Destination, info: ShardInfo) -> bool:
    from streamshard.format.hashing import hash_bytes

    content = destination.read(info.stored.basename) if info.stored.hashes else None
    return content is not None and all(
        hash_bytes(name, content) == digest for name, digest in info.stored.hashes.items()
    )
