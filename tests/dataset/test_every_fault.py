"""Each fault between a bucket and a batch, with no workers and with two: right data, or the named error.

Whatever happened, the next run over the same cache directory gives the whole epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard.storage.cache_directory import CacheDirectory
from tests.support import damage
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.hardships import batches_in
from tests.support.loading import text_dataset
from tests.support.nursery import Child, Nursery, Outcome
from tests.support.small_datasets import text_samples, write_dataset
from tests.support.small_server import SmallServer, small_server

SAMPLES, PER_SHARD, BATCH, BAD = 96, 12, 6, 5
SHARD = f"shard.{BAD:05d}.mds"
EPOCH = "hardships.read_epoch"
BEFORE = list(range(BAD * PER_SHARD))
ALL = list(range(SAMPLES))
FOR_EVER = 10_000
RETRIES = 2
# What is told in the end: an error of this package by its name, and the shard.
QUICK = {"download_retry": RETRIES, "download_timeout": 3}

both = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("set") / "set", SAMPLES, samples_per_shard=PER_SHARD)


@pytest.fixture(scope="module")
def _server() -> Iterator[SmallServer]:
    with small_server() as server:
        yield server


@pytest.fixture(scope="module")
def _proxy(_server: SmallServer) -> Iterator[FaultyProxy]:
    with FaultyProxy("127.0.0.1", _server.server_address[1]) as proxy:
        yield proxy


class Place:
    """A bucket that can be harmed, the proxy in front of it, and an empty cache."""

    def __init__(self, server: SmallServer, proxy: FaultyProxy, directory: Path, tmp_path: Path) -> None:
        self.server, self.proxy, self.directory = server, proxy, directory
        self.cache, self.log = tmp_path / "cache", tmp_path / "log"
        self.publish(directory)

    def publish(self, directory: Path) -> None:
        """Put a dataset into the bucket, in place of what is there."""
        self.server.files.clear()
        for path in directory.iterdir():
            if path.is_file():
                self.server.files[f"set/{path.name}"] = path.read_bytes()

    def reading(self, workers: int, *, via_proxy: bool = True, **more: Any) -> dict[str, Any]:
        host = f"127.0.0.1:{self.proxy.port}" if via_proxy else self.server.host
        dataset = {
            "remote": f"http://{host}/set",
            "local": str(self.cache),
            **QUICK,
            **more.pop("dataset", {}),
        }
        return {"dataset": dataset, "workers": workers, "batch_size": BATCH, "log": str(self.log), **more}

    def before_the_error(self) -> list[int]:
        """Numbers of the samples that came before the error."""
        return [number for batch in batches_in(self.log) for number in batch]


@pytest.fixture
def place(_server: SmallServer, _proxy: FaultyProxy, directory: Path, tmp_path: Path) -> Iterator[Place]:
    _server.trouble, _server.key = "", ""
    _proxy.requests.clear()
    yield Place(_server, _proxy, directory, tmp_path)
    _proxy.calm()
    _proxy.drop_connections()


def check_epoch(outcome: Outcome) -> None:
    assert outcome.result == {"numbers": ALL}, outcome.printed


def check_error(outcome: Outcome, error: str, *words: str) -> None:
    assert outcome.error == error, outcome.printed
    for pattern in words:
        assert re.search(pattern, outcome.message, re.DOTALL | re.IGNORECASE), outcome.message


FAULTS = {
    "503": Fault(status=(503, "SlowDown"), method="GET", path_contains=SHARD),
    "reset": Fault(cut_after=500, method="GET", path_contains=SHARD),
    "stall": Fault(stall_after=500, method="GET", path_contains=SHARD),
    "short": Fault(half_body=True, method="GET", path_contains=SHARD),
}


@both
@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_wrong_twice_is_tried_again(nursery: Nursery, place: Place, kind: str, workers: int) -> None:
    place.proxy.arm(FAULTS[kind], times=RETRIES)
    slow = {"dataset": {"download_timeout": 6}} if kind == "stall" else {}
    check_epoch(nursery.run(EPOCH, place.reading(workers, **slow)))
    assert place.proxy.count("GET", SHARD) == 1 + RETRIES


@both
@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_wrong_for_ever_is_an_error_with_place_attempts_and_cause(
    nursery: Nursery, place: Place, kind: str, workers: int
) -> None:
    place.proxy.arm(FAULTS[kind], times=FOR_EVER)
    # A socket that is silent is given a third of the time limit, so that is told after three. Else there is time enough
    # on a busy machine, too.
    patient = {} if kind == "stall" else {"dataset": {"download_timeout": 60}}
    attempts = r"\d" if kind == "stall" else 1 + RETRIES
    told = rf"http://127.*/set/{SHARD}: failed after {attempts} attempts in [\d.]+ s \(.+\)"
    check_error(nursery.run(EPOCH, place.reading(workers, **patient)), "StorageError", told)
    assert place.before_the_error() == BEFORE
    # Each worker that needs the shard tries for itself.
    assert 1 < place.proxy.count("GET", SHARD) <= (1 + RETRIES) * max(1, workers)
    place.proxy.calm()
    check_epoch(nursery.run(EPOCH, place.reading(workers)))


@contextlib.contextmanager
def held(place: Place, nursery: Nursery, options: dict[str, Any], **conditions: Any) -> Iterator[Child]:
    """A run whose request for SHARD is under way until the block ends; then its connection breaks."""
    place.proxy.arm(Fault(stall_after=0, method="GET", path_contains=SHARD))
    options["dataset"]["download_timeout"] = 60
    with nursery.begin(EPOCH, options, **conditions) as child:
        child.until(lambda: place.proxy.count("GET", SHARD), "request")
        yield child


@both
@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "not renewed"])
def test_b145_credentials_that_expire_in_mid_epoch(
    nursery: Nursery, place: Place, tmp_path: Path, renewed: bool, workers: int
) -> None:
    def allow(key: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=secret\n")
        fresh.replace(tmp_path / "credentials")

    allow("FIRST")
    place.server.key = "FIRST"
    environment = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_ENDPOINT_URL": place.proxy.endpoint_url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": None,
        "AWS_SECRET_ACCESS_KEY": None,
    }
    options = place.reading(workers, dataset={"remote": "s3://set"})
    with held(place, nursery, options, environment=environment) as child:
        place.server.key = "SECOND"
        if renewed:
            allow("SECOND")
        place.proxy.drop_connections()
        outcome = child.end()
    if renewed:
        check_epoch(outcome)
        return
    told = r"s3://set/shard\.\d+\.mds: permission denied .*credentials used: .*not expired"
    check_error(outcome, "AccessDeniedError", told)
    allow("SECOND")
    check_epoch(nursery.run(EPOCH, options, environment=environment))


@both
def test_an_object_that_is_deleted_under_way_is_named(nursery: Nursery, place: Place, workers: int) -> None:
    options = place.reading(workers)
    with held(place, nursery, options) as child:
        del place.server.files[f"set/{SHARD}"]
        place.proxy.drop_connections()
        check_error(child.end(), "BlobNotFoundError", rf"/set/{SHARD}: not found")
    assert place.before_the_error() == BEFORE
    assert place.proxy.count("GET", SHARD) <= 1 + max(1, workers)
    place.publish(place.directory)
    check_epoch(nursery.run(EPOCH, options))


def other_values(directory: Path) -> Path:
    """A dataset whose files have the names and sizes of the sound one and other values."""
    samples = [{**sample, "text": sample["text"].replace("text", "TEXT")} for sample in text_samples(SAMPLES)]
    write_dataset(directory, samples, samples_per_shard=PER_SHARD)
    return directory


@both
def test_a_dataset_rewritten_with_equal_names_and_sizes_under_way_is_noticed(
    nursery: Nursery, place: Place, tmp_path: Path, workers: int
) -> None:
    options = place.reading(workers)
    with held(place, nursery, options) as child:
        place.publish(other_values(tmp_path / "other"))
        place.proxy.drop_connections()
        check_error(child.end(), "ChecksumError", r"shard '.*\.mds': xxh64 of .* is \w+, the index says \w+")
    place.publish(place.directory)
    check_epoch(nursery.run(EPOCH, options))


@both
def test_a_dataset_rewritten_between_two_runs_is_fetched_anew(
    nursery: Nursery, place: Place, tmp_path: Path, workers: int
) -> None:
    place.publish(other_values(tmp_path / "other"))
    first = nursery.run("hardships.read_texts", place.reading(workers))
    assert {text[:4] for text in first.result} == {"TEXT"}
    place.publish(place.directory)
    check_epoch(nursery.run(EPOCH, place.reading(workers)))


@both
def test_an_index_of_another_version_than_the_shards_is_an_error(
    nursery: Nursery, place: Place, tmp_path: Path, workers: int
) -> None:
    index = place.server.files["set/index.json"]
    longer = text_dataset(tmp_path / "longer", SAMPLES, samples_per_shard=PER_SHARD + 4)
    place.publish(longer)
    place.server.files["set/index.json"] = index
    outcome = nursery.run(EPOCH, place.reading(workers))
    check_error(outcome, "WrongSizeError", r"shard\.00000\.mds: the file has \d+ bytes, expected \d+")
    place.publish(place.directory)
    check_epoch(nursery.run(EPOCH, place.reading(workers)))


@both
def test_a_disk_that_is_full_at_any_write_is_told_and_breaks_no_later_run(
    nursery: Nursery, place: Place, workers: int
) -> None:
    told = 0
    # From no byte at all over markers of some 90 bytes to shards of some 700: a file may be no larger than this.
    for most in (0, 40, 100, 400, 740):
        outcome = nursery.run(EPOCH, place.reading(workers, log=None), file_nbytes=most)
        if outcome.error:
            full = (
                rf"cache directory {place.cache}: .*File too large.*local=|no usable temporary .*set TMPDIR"
            )
            check_error(outcome, "StorageError", full)
            told += 1
        else:
            check_epoch(outcome)
    assert told >= 4
    check_epoch(nursery.run(EPOCH, place.reading(workers)))
    for path in place.cache.glob("*.mds"):
        assert path.read_bytes() == (place.directory / path.name).read_bytes()


@both
def test_others_go_on_where_the_process_that_downloads_is_stopped(
    nursery: Nursery, place: Place, tmp_path: Path, workers: int
) -> None:
    place.proxy.arm(FAULTS["stall"])
    with nursery.begin(EPOCH, place.reading(workers, dataset={"download_timeout": 60})) as stopped:
        stopped.until(lambda: place.proxy.count("GET", SHARD), "download that stalls")
        stopped.signal(signal.SIGSTOP, group=True)
        options = place.reading(workers, dataset={"download_timeout": 5}, log=str(tmp_path / "other"))
        check_epoch(nursery.run(EPOCH, options))
        place.proxy.drop_connections()
        stopped.signal(signal.SIGCONT, group=True)
        check_epoch(stopped.end())


@both
def test_a_file_cut_under_a_running_reader_is_an_error_and_no_signal(
    nursery: Nursery, place: Place, tmp_path: Path, workers: int
) -> None:
    # A shuffled epoch has all shards open, and the gate keeps its later batches from having been read.
    options = place.reading(workers, dataset={"shuffle": True}, gate=[3, str(tmp_path / "gate")])
    with nursery.begin(EPOCH, options) as child:
        child.until(lambda: len(batches_in(place.log)) == 3, "three batches")
        for path in place.cache.glob("*.mds"):
            os.truncate(path, 200)
        (tmp_path / "gate").touch()
        outcome = child.end()
    check_error(outcome, "FormatError", r"shard '.*': index says \d+ bytes, file .* (now )?has 200")
    outcome = nursery.run(EPOCH, place.reading(workers))
    check_epoch(outcome)


@both
def test_the_clock_may_jump_and_files_may_bear_any_time(nursery: Nursery, place: Place, workers: int) -> None:
    years = 10 * 365 * 86_400.0
    options = place.reading(workers, dataset={"cache_limit": 4000})
    check_epoch(nursery.run(EPOCH, options, clock_s=years))
    check_epoch(nursery.run(EPOCH, place.reading(workers), clock_s=years))
    for seconds in (0, 4_000_000_000):
        for path in place.cache.rglob("*"):
            os.utime(path, (seconds, seconds))
        before = len(place.proxy.requests)
        check_epoch(nursery.run(EPOCH, place.reading(workers)))
        assert not [path for _, path in place.proxy.requests[before:] if ".mds" in path]


def ranks(
    place: Place, tmp_path: Path, workers: int, **more: Any
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for rank in range(2):
        options = place.reading(workers, log=str(tmp_path / f"rank-{rank}"), **more)
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        found.append((options, environment))
    return found


@both
def test_nobody_waits_for_a_slow_rank_0(nursery: Nursery, place: Place, tmp_path: Path, workers: int) -> None:
    (slow, environment), (quick, other) = ranks(place, tmp_path, workers)
    place.proxy.arm(Fault(stall_after=0, method="GET", path_contains="index.json"))
    slow["dataset"]["download_timeout"] = 60
    with nursery.begin(EPOCH, slow, environment=environment) as first:
        first.until(lambda: place.proxy.count("GET", "index.json"), "first request")
        first.signal(signal.SIGSTOP, group=True)
        numbers = nursery.run(EPOCH, quick, environment=other).result["numbers"]
        place.proxy.drop_connections()
        first.signal(signal.SIGCONT, group=True)
        assert sorted(numbers + first.end().result["numbers"]) == ALL


@both
def test_a_rank_that_leaves_the_epoch_early_keeps_nobody_from_the_next(
    nursery: Nursery, place: Place, tmp_path: Path, workers: int
) -> None:
    limit = {"dataset": {"cache_limit": 4000}}
    (leaves, environment), (stays, other) = ranks(place, tmp_path, workers, epochs=2, **limit)
    leaves["leave_after"] = 2
    with (
        nursery.begin(EPOCH, leaves, environment=environment) as first,
        nursery.begin(EPOCH, stays, environment=other) as second,
    ):
        left, stayed = first.end(), second.end()
    half = SAMPLES // 2
    assert len(stayed.result["numbers"]) == 2 * half, stayed.printed
    assert len(left.result["numbers"]) == 2 * BATCH + half, left.printed
    assert sorted(left.result["numbers"][-half:] + stayed.result["numbers"][half:]) == ALL


def test_b147_sixteen_processes_at_once_on_an_empty_cache(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    place.proxy.arm(Fault(latency_s=0.2), times=8)
    options = place.reading(0, dataset={"download_timeout": 60})
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(nursery.begin(EPOCH, {**options, "log": str(tmp_path / f"log-{number}")}))
            for number in range(16)
        ]
        for child in children:
            check_epoch(child.end())
    counts = {path.name: place.proxy.count("GET", path.name) for path in place.cache.glob("*.mds")}
    assert counts == {f"shard.{number:05d}.mds": 1 for number in range(SAMPLES // PER_SHARD)}


@both
@pytest.mark.parametrize("whom", ["trainer", "worker"])
def test_b140_a_kill_at_any_moment_leaves_nothing_that_breaks_the_next_run(
    nursery: Nursery, place: Place, tmp_path: Path, whom: str, workers: int
) -> None:
    import psutil

    if whom == "worker" and not workers:
        pytest.skip("there are no workers")
    gate = tmp_path / "gate"
    # Killed with a file half here, and after the first batch.
    for number, half in enumerate((True, False)):
        if half:
            place.proxy.arm(FAULTS["stall"])
        place.cache, place.log = tmp_path / f"cache-{number}", tmp_path / f"log-{number}"
        options = place.reading(workers, dataset={"download_timeout": 60}, gate=[1, str(gate)])
        before = place.proxy.count("GET", SHARD)

        def reached(half: bool = half, before: int = before) -> Any:
            return place.proxy.count("GET", SHARD) > before if half else batches_in(place.log)

        with nursery.begin(EPOCH, options) as child:
            child.until(reached, "moment")
            if whom == "trainer":
                child.signal(signal.SIGKILL, group=True)
                assert child.end().code == -signal.SIGKILL
            else:
                (first, *_) = child.until(lambda pid=child.pid: psutil.Process(pid).children(), "workers")
                os.kill(first.pid, signal.SIGKILL)
                gate.touch()
                check_error(child.end(), "RuntimeError", "killed by signal|exited unexpectedly")
                gate.unlink()
        place.proxy.calm()
        place.proxy.drop_connections()
        check_epoch(nursery.run(EPOCH, place.reading(workers)))
        # Had the killed ones fetched everything, the run above did not sweep.
        CacheDirectory(place.cache).sweep()
        hidden = place.cache / ".streamshard"
        assert [*(hidden / "jobs").iterdir(), *(hidden / "alive").iterdir()] == []


@both
def test_an_interrupt_while_a_file_is_half_here_ends_the_run_and_breaks_no_later_one(
    nursery: Nursery, place: Place, workers: int
) -> None:
    # As a terminal sends it: to all processes at once.
    place.proxy.arm(FAULTS["stall"])
    with nursery.begin(EPOCH, place.reading(workers, dataset={"download_timeout": 600})) as child:
        child.until(lambda: place.proxy.count("GET", SHARD), "request")
        child.signal(signal.SIGINT, group=True)
        check_error(child.end(), "KeyboardInterrupt")
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)
    place.proxy.calm()
    check_epoch(nursery.run(EPOCH, place.reading(workers)))


@both
def test_a_file_in_the_cache_that_went_bad_is_fetched_again(
    nursery: Nursery, place: Place, workers: int
) -> None:
    check_epoch(nursery.run(EPOCH, place.reading(workers)))
    damage.flip_bit(place.cache, BAD)
    check_epoch(nursery.run(EPOCH, place.reading(workers)))
    assert place.proxy.count("GET", SHARD) == 2
    assert (place.cache / SHARD).read_bytes() == (place.directory / SHARD).read_bytes()


@both
def test_wrong_bytes_from_the_origin_are_told_with_both_hashes(
    nursery: Nursery, place: Place, workers: int
) -> None:
    content = bytearray(place.server.files[f"set/{SHARD}"])
    content[-1] ^= 1
    place.server.files[f"set/{SHARD}"] = bytes(content)
    outcome = nursery.run(EPOCH, place.reading(workers))
    check_error(
        outcome, "ChecksumError", rf"{SHARD}'.* is \w+, the index says \w+.*the same after {1 + RETRIES}"
    )
    assert place.before_the_error() == BEFORE
    assert not (place.cache / SHARD).exists()
    place.publish(place.directory)
    check_epoch(nursery.run(EPOCH, place.reading(workers)))


def test_the_promises_are_told_in_json(nursery: Nursery) -> None:
    """The nursery itself: what a child says, how it ends, and that a hang would be seen."""
    assert json.loads(json.dumps(nursery.run("hardships.say", {"value": [1]}).result)) == {"value": [1]}
    assert nursery.run("hardships.say", {"exit": 3}).error == "SystemExit"
    with nursery.begin("hardships.say", {"sleep_s": 3600}) as child:
        child.signal(signal.SIGKILL)
        assert child.end().code == -signal.SIGKILL
