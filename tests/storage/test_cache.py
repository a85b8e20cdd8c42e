"""The node cache within one process: what it trusts, what it fetches again, and what it never touches."""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import ChecksumError, FormatError, StorageError
from streamshard.storage import Blob, NodeCache, RetryPolicy
from streamshard.storage import locks as locks_module
from streamshard.storage.local_store import LocalStore
from tests.support.cache_client import SlowStore, blob_of, body_of, check_of, fill
from tests.support.interrupting import interrupted

QUICK = RetryPolicy(attempts=3, timeout_s=5, backoff_s=0.001)
NBYTES = 5_000


class Place:
    """A source of ten files, an empty cache directory, and a count of downloads."""

    def __init__(self, root: Path) -> None:
        self.source = root / "source"
        self.directory = root / "cache"
        self.log = root / "downloads"
        self.names = fill(self.source, 10, NBYTES)

    def cache(self, digest: str = "digest", **options: Any) -> NodeCache:
        store = SlowStore(self.source, self.log)
        return NodeCache(self.directory, store, digest=digest, retry=options.pop("retry", QUICK), **options)

    @property
    def downloads(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def visible(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name != ".streamshard")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_file_is_fetched_once_and_has_its_content(place: Place) -> None:
    cache, name = place.cache(), place.names[0]
    assert not cache.present(blob_of(name, NBYTES))
    assert cache.ensure(blob_of(name, NBYTES)) == place.directory / name
    assert (place.directory / name).read_bytes() == body_of(name, NBYTES)
    assert cache.present(blob_of(name, NBYTES))
    cache.ensure(blob_of(name, NBYTES))
    assert place.downloads == [name]
    assert place.visible() == [name]


def test_nothing_is_made_before_the_first_fetch(place: Place) -> None:
    cache = place.cache()
    assert not cache.present(blob_of(place.names[0], NBYTES))
    assert not place.directory.exists()


def test_names_may_have_sub_directories(place: Place) -> None:
    (place.source / "en/a").mkdir(parents=True)
    (place.source / "en/a/x.mds").write_bytes(b"1234")
    path = place.cache().ensure(Blob("en/a/x.mds", 4, "en/a/x.mds", 4))
    assert path == place.directory / "en/a/x.mds"
    assert path.read_bytes() == b"1234"


def test_an_open_file_is_read_through_its_descriptor_and_closed_twice_without_harm(place: Place) -> None:
    with place.cache().open(blob_of(place.names[0], NBYTES)) as file:
        assert os.pread(file.fileno(), 10, 0) == body_of(place.names[0], NBYTES)[:10]
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.fileno()


def test_a_cache_can_be_pickled_after_use(place: Place) -> None:
    cache = place.cache()
    cache.ensure(blob_of(place.names[0], NBYTES))
    copy = pickle.loads(pickle.dumps(cache))
    copy.ensure(blob_of(place.names[0], NBYTES))
    assert place.downloads == [place.names[0]]


def test_many_threads_make_one_download(place: Place) -> None:
    store = SlowStore(place.source, place.log, seconds=0.2)
    cache = NodeCache(place.directory, store, digest="digest", retry=QUICK)
    barrier = threading.Barrier(8)

    def read(_: int) -> bytes:
        barrier.wait(20)
        return cache.ensure(blob_of(place.names[0], NBYTES)).read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {body_of(place.names[0], NBYTES)}
    assert len(place.downloads) == 1


class Counting:
    """A check that counts its runs."""

    def __init__(self, name: str) -> None:
        self.runs = 0
        self._check = check_of(name, NBYTES)

    def __call__(self, path: Path) -> None:
        self.runs += 1
        self._check(path)


def counted(name: str) -> tuple[Blob, Counting]:
    check = Counting(name)
    return Blob(name, NBYTES, name, NBYTES, check=check), check


def test_a_healthy_restart_neither_downloads_nor_hashes(place: Place) -> None:
    blob, check = counted(place.names[0])
    place.cache().ensure(blob)
    assert check.runs == 1
    place.cache().ensure(blob)
    assert check.runs == 1
    assert len(place.downloads) == 1


def test_b073_a_flipped_byte_in_the_cache_is_noticed_and_fetched_again_once(place: Place) -> None:
    blob, check = counted(place.names[0])
    path = place.cache().ensure(blob)
    body = bytearray(path.read_bytes())
    body[100] ^= 1
    path.write_bytes(body)
    for _ in range(3):
        assert place.cache().ensure(blob).read_bytes() == body_of(place.names[0], NBYTES)
    assert len(place.downloads) == 2
    assert check.runs == 3
    assert place.visible() == [place.names[0]]


def test_a_flipped_byte_is_noticed_by_a_cache_that_has_used_the_file_before(place: Place) -> None:
    cache = place.cache()
    path = cache.ensure(blob_of(place.names[0], NBYTES))
    os.utime(path, ns=(1, 1))
    path.write_bytes(b"x" * NBYTES)
    assert cache.ensure(blob_of(place.names[0], NBYTES)).read_bytes() == body_of(place.names[0], NBYTES)


@pytest.mark.parametrize("nbytes", [0, NBYTES - 1, NBYTES + 1])
def test_b068_a_cached_file_of_another_size_is_never_used(place: Place, nbytes: int) -> None:
    blob = blob_of(place.names[0], NBYTES, checked=False)
    path = place.cache().ensure(blob)
    path.write_bytes(b"\0" * nbytes)
    assert not place.cache().present(blob)
    assert place.cache().ensure(blob).read_bytes() == body_of(place.names[0], NBYTES)


def test_a_new_index_keeps_files_that_pass_its_check_and_fetches_the_others(place: Place) -> None:
    same, other = place.names[:2]
    for name in (same, other):
        place.cache("old").ensure(blob_of(name, NBYTES))
    changed = b"new content".ljust(NBYTES, b".")
    (place.source / other).write_bytes(changed)

    def check_other(path: Path) -> None:
        if path.read_bytes() != changed:
            raise ChecksumError("old content")

    cache = place.cache("new")
    cache.ensure(blob_of(same, NBYTES))
    assert cache.ensure(Blob(other, NBYTES, other, NBYTES, check=check_other)).read_bytes() == changed
    assert place.downloads == [same, other, other]
    place.cache("new").ensure(blob_of(same, NBYTES))
    assert place.downloads == [same, other, other]


def test_a_new_index_without_hashes_trusts_no_file_of_the_old_one(place: Place) -> None:
    blob = blob_of(place.names[0], NBYTES, checked=False)
    place.cache("old").ensure(blob)
    place.cache("new").ensure(blob)
    place.cache("new").ensure(blob)
    assert len(place.downloads) == 2


def test_b073_a_source_that_stays_bad_is_an_error_with_all_the_facts_and_leaves_nothing(place: Place) -> None:
    name = place.names[0]
    (place.source / name).write_bytes(b"\0" * NBYTES)
    with pytest.raises(ChecksumError) as caught:
        place.cache().ensure(blob_of(name, NBYTES))
    for fact in (name, "sha256 is", "expected", "3 attempts", str(place.source)):
        assert fact in str(caught.value)
    assert len(place.downloads) == 3
    assert place.visible() == []
    assert list((place.directory / ".streamshard/jobs").iterdir()) == []


def test_b073_a_download_that_is_wrong_once_is_repeated(place: Place) -> None:
    name = place.names[0]
    stumbles = [1, 1]

    def check(path: Path) -> None:
        if stumbles:
            stumbles.pop()
            raise ChecksumError("flipped on the way")

    blob = Blob(name, NBYTES, name, NBYTES, check_source=check)
    assert place.cache().ensure(blob).read_bytes() == body_of(name, NBYTES)
    assert len(place.downloads) == 3


def unpacked(place: Place, name: str = "a.raw", **options: Any) -> Blob:
    (place.source / "a.packed").write_bytes(b"packed")

    def unpack(source: Path, target: Path) -> None:
        if source.read_bytes() != b"packed":
            raise FormatError("not packed")
        target.write_bytes(b"the unpacked content")

    return Blob(name, 20, "a.packed", 6, unpack=unpack, **options)


def test_a_packed_file_is_unpacked_and_only_the_result_stays(place: Place) -> None:
    assert place.cache().ensure(unpacked(place)).read_bytes() == b"the unpacked content"
    assert place.visible() == ["a.raw"]


def test_a_kept_source_serves_again_when_the_result_is_gone(place: Place) -> None:
    blob = unpacked(place, keep_source=True)
    place.cache().ensure(blob).unlink()
    assert place.visible() == ["a.packed"]
    assert place.cache().ensure(blob).read_bytes() == b"the unpacked content"
    assert place.visible() == ["a.packed", "a.raw"]
    assert place.downloads == ["a.packed"]


def test_a_kept_source_that_has_changed_is_fetched_again(place: Place) -> None:
    blob = unpacked(place, keep_source=True)
    place.cache().ensure(blob).unlink()
    (place.directory / "a.packed").write_bytes(b"PACKED")
    assert place.cache().ensure(blob).read_bytes() == b"the unpacked content"
    assert (place.directory / "a.packed").read_bytes() == b"packed"
    assert len(place.downloads) == 2


def test_an_unpacker_that_gives_another_size_is_an_error(place: Place) -> None:
    blob = unpacked(place)
    wrong = Blob(blob.name, 21, blob.source, 6, unpack=blob.unpack)
    with pytest.raises(StorageError, match="20 bytes, expected 21"):
        place.cache().ensure(wrong)
    assert place.visible() == []


def test_a_source_of_another_size_is_an_error_naming_both(place: Place) -> None:
    (place.source / place.names[0]).write_bytes(b"short")
    with pytest.raises(StorageError, match=f"{place.names[0]}.*5 bytes, expected {NBYTES}"):
        place.cache().ensure(blob_of(place.names[0], NBYTES))


def test_b090_foreign_files_are_ignored_and_never_deleted(place: Place) -> None:
    place.directory.mkdir()
    foreign = {
        f"{place.names[0]}.tmp": b"half a shard",
        f"{place.names[0]}.lock": b"",
        ".lock": b"",
        "notes.txt": b"mine",
        "shard.99999.mds": b"another dataset's",
    }
    for name, body in foreign.items():
        (place.directory / name).write_bytes(body)
    cache = place.cache(limit_bytes=2 * NBYTES)
    for name in place.names:
        assert cache.ensure(blob_of(name, NBYTES)).read_bytes() == body_of(name, NBYTES)
    for name, body in foreign.items():
        assert (place.directory / name).read_bytes() == body


def test_a_right_file_that_somebody_put_there_is_used_but_never_deleted(place: Place) -> None:
    place.directory.mkdir()
    name = place.names[0]
    shutil.copy(place.source / name, place.directory / name)
    blob, check = counted(name)
    cache = place.cache(limit_bytes=2 * NBYTES)
    for _ in range(2):
        cache.ensure(blob)
        place.cache().ensure(blob)
    assert check.runs == 1
    for other in place.names[1:]:
        cache.ensure(blob_of(other, NBYTES))
    assert (place.directory / name).exists()
    assert name not in place.downloads


def test_a_wrong_file_that_somebody_put_there_is_moved_aside_not_deleted(place: Place) -> None:
    place.directory.mkdir()
    name = place.names[0]
    (place.directory / name).write_bytes(b"somebody's own shard")
    assert place.cache().ensure(blob_of(name, NBYTES)).read_bytes() == body_of(name, NBYTES)
    assert (place.directory / f"{name}.found-0").read_bytes() == b"somebody's own shard"


def test_leftovers_of_dead_processes_are_removed_by_the_next_download(place: Place) -> None:
    dead = place.directory / ".streamshard/jobs/0123456789abcdef.0.5000"
    dead.mkdir(parents=True)
    (dead / "source").write_bytes(b"half")
    alive = place.directory / ".streamshard/alive/fedcba9876543210"
    alive.parent.mkdir()
    alive.touch()
    place.cache().ensure(blob_of(place.names[0], NBYTES))
    assert not dead.exists()
    assert not alive.exists()


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/x",
        "a/../../x",
        "",
        ".streamshard/x",
        ".Streamshard/x",
        "a\0b",
        ".x.streamshard-tmp",
        "a//b",
    ],
)
def test_a_name_cannot_leave_the_directory_or_meet_its_hidden_files(place: Place, name: str) -> None:
    with pytest.raises(StorageError):
        place.cache().ensure(Blob(name, NBYTES, place.names[0], NBYTES))
    assert place.downloads == []


def test_links_inside_the_directory_are_not_followed(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"precious")
    place.directory.mkdir()
    (place.directory / "sub").symlink_to(outside)
    with pytest.raises(StorageError, match="symbolic link"):
        place.cache().ensure(Blob("sub/a", NBYTES, place.names[0], NBYTES))
    (place.directory / place.names[1]).symlink_to(outside / "a")
    place.cache().ensure(blob_of(place.names[1], NBYTES))
    assert not (place.directory / place.names[1]).is_symlink()
    assert sorted(os.listdir(outside)) == ["a"]
    assert (outside / "a").read_bytes() == b"precious"


def test_hidden_files_behind_a_link_are_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    place.directory.mkdir()
    (place.directory / ".streamshard").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="symbolic link"):
        place.cache().ensure(blob_of(place.names[0], NBYTES))
    assert os.listdir(tmp_path / "outside") == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_b094_without_file_locks_there_is_one_warning_and_the_right_data(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(locks_module, "_warned", set())
    with caplog.at_level(logging.WARNING):
        cache = place.cache(limit_bytes=3 * NBYTES)
        for name in place.names * 2:
            with cache.open(blob_of(name, NBYTES)) as file:
                assert os.pread(file.fileno(), NBYTES, 0) == body_of(name, NBYTES)
    assert len([record for record in caplog.records if "no file locks" in record.message]) == 1
    assert len(place.visible()) <= 3


def test_b093_a_directory_that_cannot_be_made_is_named_with_the_option(place: Place) -> None:
    place.directory.write_bytes(b"a file where the cache should be")
    with pytest.raises(StorageError, match=r"cache directory .*cache: cannot be written.*local="):
        place.cache().ensure(blob_of(place.names[0], NBYTES))
    assert place.downloads == []


@pytest.mark.parametrize("hidden", [False, True], ids=["read-only", "below a closed directory"])
def test_b093_a_directory_without_permission_is_named_with_the_option(hidden: bool, tmp_path: Path) -> None:
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv to be somebody else")
    above = tmp_path / "above"
    directory = above / "cache"
    directory.mkdir(parents=True)
    directory.chmod(0o555)
    program = f"""
import sys
from pathlib import Path
from streamshard.storage import Blob, NodeCache, open_store
blob = Blob("a", 1, "a", 1)
store = open_store("memory://x"); store.put_bytes("a", b"1")
NodeCache(Path({str(directory)!r}), store, digest="d").ensure(blob)
"""
    for parent in directory.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    above.chmod(0o700 if hidden and os.getuid() == 0 else 0o600 if hidden else 0o755)
    command = [sys.executable, "-c", program]
    if os.getuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
        )
    finally:
        above.chmod(0o755)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"StorageError: cache directory {directory}: cannot be written" in last
    assert "local=" in last


def test_b093_a_home_that_is_not_set_is_named_with_the_option(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    cache = NodeCache(Path("~/cache"), LocalStore(place.source), digest="d")
    with pytest.raises(StorageError, match=r"~/cache.*home directory.*local="):
        cache.ensure(blob_of(place.names[0], NBYTES))


class FullDisk(LocalStore):
    def fetch_to(self, key: str, path: Path, **options: Any) -> int:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_at_once_with_what_to_do(place: Place) -> None:
    cache = NodeCache(place.directory, FullDisk(place.source), digest="d", retry=QUICK)
    with pytest.raises(
        StorageError, match=r"cannot be written.*No space left.*bytes free, 5000 needed.*cache_limit="
    ):
        cache.ensure(blob_of(place.names[0], NBYTES))
    assert list((place.directory / ".streamshard/jobs").iterdir()) == []


def test_a_read_only_directory_that_is_filled_serves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.directory.mkdir()
    for name in place.names:
        shutil.copy(place.source / name, place.directory / name)

    def refuse(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    cache = place.cache()
    for name in place.names * 2:
        assert cache.ensure(blob_of(name, NBYTES)).read_bytes() == body_of(name, NBYTES)
    assert place.downloads == []


def test_a_directory_that_became_read_only_serves_whatever_the_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in place.names:
        place.cache().ensure(blob_of(name, NBYTES))
    downloads = len(place.downloads)
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    for limit_bytes in (None, 10 * NBYTES, NBYTES):
        cache = place.cache(limit_bytes=limit_bytes)
        for name in place.names:
            assert cache.ensure(blob_of(name, NBYTES)).read_bytes() == body_of(name, NBYTES)
    assert len(place.downloads) == downloads


def test_b097_many_caches_leave_no_descriptors_behind(place: Place) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        cache = NodeCache(place.directory / str(number), LocalStore(place.source), digest="d", retry=QUICK)
        with cache.open(blob_of(place.names[0], NBYTES)):
            pass
    del cache
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_cached_file_does_not_pass_for_one_of_another_size_under_the_same_digest(place: Place) -> None:
    cache = place.cache()
    cache.ensure(blob_of(place.names[0], NBYTES, checked=False))
    assert not cache.present(Blob(place.names[0], NBYTES + 1, place.names[0], NBYTES + 1))
    assert not place.cache().present(Blob(place.names[0], NBYTES + 1, place.names[0], NBYTES + 1))


def test_a_process_whose_sign_of_life_is_swept_before_it_is_locked_makes_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    sweeper: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        alive = place.directory / ".streamshard/alive"
        if not sweeper and alive.exists() and (found := list(alive.iterdir())):
            # Another process has just locked the new file, and will unlink it in a moment.
            sweeper.append(os.open(found[0], os.O_RDWR))
            real(sweeper[0], fcntl.LOCK_EX)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    cache = place.cache()
    cache.ensure(blob_of(place.names[0], NBYTES))
    alive = place.directory / ".streamshard/alive"
    os.close(sweeper[0])
    # One was given up to the sweep, and the other one is held: it cannot be locked.
    held = []
    for path in alive.iterdir():
        descriptor = os.open(path, os.O_RDWR)
        held.append(not locks_module.try_lock(descriptor, shared=False, place=place.directory))
        os.close(descriptor)
    assert held.count(True) == 1


def test_opening_that_is_interrupted_anywhere_holds_no_file(place: Place) -> None:
    cache = place.cache()
    cache.ensure(blob_of(place.names[0], NBYTES))
    before = len(os.listdir("/proc/self/fd"))
    for line in itertools.count():
        with interrupted(NodeCache.open, line) as came:
            cache.open(blob_of(place.names[0], NBYTES)).close()
        assert len(os.listdir("/proc/self/fd")) == before
        if not came.yes:
            break
    assert line > 2
