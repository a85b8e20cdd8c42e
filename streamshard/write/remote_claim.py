"""One writer for a URL at a time, where nothing can be locked: claims that all writers put and list.

A claim is a small object below ``.streamshard-writing/``, with a random name that no other writer uses. A writer puts
its own, and then lists: whoever lists second sees the other one, so that two never both find none. One that finds
another living claim withdraws. All that is asked of a store is that a list shows what was put before it, which
the large clouds' stores and file servers promise; conditional puts, which many do not have, are not needed.

A writer that lives puts its claim again every ``BEAT_S`` seconds. A claim is dead when its process is, where that can
be seen (same machine), or when it is ``LEASE_S`` older than the newcomer's own one, by the clock of the store that has
both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamshard.errors import AccessDeniedError, BlobNotFoundError, DirectoryInUseError, StreamshardError
from streamshard.storage.cancel import pause

if TYPE_CHECKING:
    from streamshard.storage.store import Store

logger = logging.getLogger(__name__)

CLAIMS = ".streamshard-writing"
BEAT_S = 20.0
LEASE_S = 180.0
_MOST_NBYTES = 4096
_TRIES = 3

# Claims of this process's writers, by name: its own pid lives, whatever became of the writer.
_held: set[str] = set()


def is_claim(key: str) -> bool:
    """Whether a file of a store is no more than a writer's claim."""
    return CLAIMS in key.split("/")[:-1]


class _Rival(NamedTuple):
    key: str
    is_writing: bool
    shown: str


class RemoteClaim:
    """Holds a URL for one writer until ``release``, or for ``LEASE_S`` seconds after the end of its process.

    Where each put is a commit (``hf://``) nothing is held.

    Args:
        store: the place.
        on_lost: called, by a thread, once another writer has taken over. That can happen to a process that was stopped,
            or cut off, for ``LEASE_S`` seconds.

    Raises:
        DirectoryInUseError: another writer, of any process or machine, has it.
        StorageError: the place cannot be written to or listed.
    """

    def __init__(self, store: Store, *, on_lost: Callable[[], None] | None = None) -> None:
        self._store = store
        self._owner = os.getpid()
        self._name = secrets.token_hex(8)
        self._key = f"{CLAIMS}/{self._name}"
        self._lost = ""
        self._buried: list[str] = []
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_held = not store.url.startswith("hf://")
        if not self._is_held:
            return
        self._acquire()
        self._drop = weakref.finalize(self, _forget, self._name, self._stop)
        self._thread = threading.Thread(
            target=_beat_on, args=(weakref.ref(self), self._stop), name="streamshard-claim", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Make sure that the place is still this writer's, by asking the store.

        Raises:
            DirectoryInUseError: another writer has taken it over.
            StorageError: the store does not answer.
        """
        if self._is_held and not self._lost:
            self._look()
        if self._lost:
            raise DirectoryInUseError(self._lost)

    @property
    def is_lost(self) -> bool:
        """Whether it is known that another writer has taken over."""
        return bool(self._lost)

    def release(self) -> None:
        """Let others write here. May be called twice; without effect in a forked child."""
        if not self._is_held or os.getpid() != self._owner:
            return
        self._is_held = False
        self._drop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._delete(self._key)

    def _acquire(self) -> None:
        rivals: list[_Rival] = []
        for attempt in range(_TRIES):
            if attempt:  # it may have been about to withdraw itself
                pause((0.1 + secrets.randbelow(400) / 1000) * attempt)
            _held.add(self._name)
            try:
                self._put("asking")
                # Again after a burial: who was only late may have come back meanwhile.
                while not (rivals := list(self._rivals(bury=True))) and self._buried:
                    self._buried.clear()
                if not rivals:
                    self._put_again("writing")
                    return
            except BaseException:
                self._withdraw()
                raise
            self._withdraw()
        rival = rivals[0]
        raise DirectoryInUseError(
            f"{self._store.url}: another writer is writing here ({rival.shown}), and two would overwrite each other's"
            " shards; give each a place of its own (merge_index() joins them), or wait until it has finished. If it is"
            f" dead, its claim lapses {LEASE_S:.0f} s after its last sign of life; to go on at once, delete"
            f" {self._store.url}/{rival.key}"
        )

    def _withdraw(self) -> None:
        _held.discard(self._name)
        self._delete(self._key)

    def _rivals(self, *, bury: bool) -> Iterator[_Rival]:
        """Give the living claims of others; with ``bury``, the dead ones are deleted."""
        own_time: float | None = None
        for key in self._store.list(CLAIMS + "/"):
            if key == self._key:
                continue
            if own_time is None:
                own_time = self._store.modified(self._key)
            try:
                claim = _parsed(self._store.read(key, limit=_MOST_NBYTES))
                modified = self._store.modified(key)
            except BlobNotFoundError:
                continue  # withdrawn meanwhile
            age_s = None if own_time is None or modified is None else own_time - modified
            if _is_dead(key, claim, age_s):
                if bury:
                    logger.warning(
                        "%s: taking over from a writer that is dead (%s)", self._store.url, _shown(claim)
                    )
                    self._buried.append(key)
                    self._delete(key)
                continue
            seen = "" if age_s is None else f", last sign of life {max(0.0, age_s):.0f} s ago"
            yield _Rival(key, claim.get("state") != "asking", _shown(claim) + seen)

    def _look(self) -> None:
        """Find out whether somebody else has taken over."""
        if not self._store.exists(self._key):
            rival = next(self._rivals_of_the_lost(), "another writer")
        else:
            writing = [rival for rival in self._rivals(bury=False) if rival.is_writing]
            if not writing:
                return
            rival = writing[0].shown
        self._lost = (
            f"{self._store.url}: this writer gave no sign of life for {LEASE_S:.0f} s, and {rival} has taken the place"
            " over; nothing is published, write the dataset again"
        )

    def _rivals_of_the_lost(self) -> Iterator[str]:
        for key in self._store.list(CLAIMS + "/"):
            with contextlib.suppress(BlobNotFoundError):
                yield _shown(_parsed(self._store.read(key, limit=_MOST_NBYTES)))

    def beat(self) -> None:
        """Give a sign of life; a store that does not answer is asked again at the next one."""
        try:
            self._look()
            if not self._lost:
                self._put_again("writing")
        except StreamshardError as error:
            logger.warning("%s: no sign of life could be given: %s", self._store.url, error)
        if self._lost:
            self._stop.set()
            logger.error("%s", self._lost)
            if self._on_lost is not None:
                self._on_lost()

    def _put(self, state: str) -> None:
        claim = {
            "state": state,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "machine": _machine(),
            "started": _started(os.getpid()),
            "beat": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._store.put_bytes(self._key, json.dumps(claim).encode())

    def _put_again(self, state: str) -> None:
        try:
            self._put(state)
        except AccessDeniedError as error:  # a store that never lets a file be replaced
            logger.warning("%s: this writer cannot show that it lives: %s", self._store.url, error)

    def _delete(self, key: str) -> None:
        try:
            self._store.delete(key)
        except BlobNotFoundError:
            logger.debug("%s/%s is already gone", self._store.url, key)
        except StreamshardError as error:
            logger.warning("%s/%s may have been left behind: %s", self._store.url, key, error)


def _forget(name: str, stop: threading.Event) -> None:
    stop.set()
    _held.discard(name)


def _beat_on(reference: weakref.ref[RemoteClaim], stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        claim = reference()
        if claim is None:
            return
        claim.beat()
        del claim


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        claim = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return claim if isinstance(claim, dict) else {}


def _shown(claim: dict[str, Any]) -> str:
    host, pid = claim.get("host"), claim.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int):
        return "a claim that does not say whose it is"
    return f"process {pid} on {host[:100]!r}"


def _is_dead(key: str, claim: dict[str, Any], age_s: float | None) -> bool:
    if age_s is not None and age_s > LEASE_S:
        return True
    pid = claim.get("pid")
    if not isinstance(pid, int) or claim.get("machine") is None or claim["machine"] != _machine():
        return False
    if pid == os.getpid():
        return key.rpartition("/")[2] not in _held
    return _started(pid) != claim.get("started")


def _machine() -> str | None:
    """Name the running kernel and the space of process numbers; None where they cannot be told apart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since the machine was; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
