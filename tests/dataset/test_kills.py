"""Runs that are killed, interrupted or left: nothing to clean up, and the next run goes on with the right data."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset, World
from streamshard.storage.cache_directory import CacheDirectory
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.leftovers import left_in, left_in_shared_memory
from tests.support.loading import joined, numbers_of, text_dataset
from tests.support.ranks import Job, jobs, lines_of, processes_of_group, wait_for_group_end
from tests.support.seaweedfs import SeaweedServer
from tests.support.tiers import TIMES

RANKS, BATCH, EPOCHS = 2, 6, 2
SAMPLES, PER_SHARD = 600, 6
ORDER: dict[str, Any] = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 24}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("texts") / "set", SAMPLES, samples_per_shard=PER_SHARD)


def upload(s3: SeaweedServer, directory: Path) -> str:
    bucket = s3.make_bucket()
    s3.filesystem().put(str(directory), f"{bucket}/set", recursive=True)
    return f"{bucket}/set"


def batches_of(directory: Path, rank: int) -> dict[tuple[int, int], list[int]]:
    """What one rank gets, by epoch and the position that its state has afterwards."""
    loader = StreamingDataLoader(StreamingDataset(local=directory, world=World(rank, RANKS), **ORDER), BATCH)
    found = {}
    for epoch in range(EPOCHS):
        for batch in loader:
            found[epoch, loader.state_dict()["position"]] = numbers_of(batch)
    return found


def kill_soon(job: Job, log: Path, more_lines: int, rng: random.Random) -> set[int]:
    """Let a run get on by some batches, then kill it; the processes that it had are returned."""
    before = len(lines_of(log))
    with suppress(AssertionError):  # it may have nothing more to do
        job.until(lambda: len(lines_of(log)) >= before + more_lines, "its batches")
    with suppress(subprocess.TimeoutExpired):
        job.process.wait(rng.random() * (0.2 if more_lines else 3.0))
    pids = set(processes_of_group(job.process.pid))
    job.kill()
    return pids


def kill_and_restart(
    s3: SeaweedServer,
    directory: Path,
    tmp_path: Path,
    short_directory: Path,
    kills: int,
    cache_limit: str | None,
) -> None:
    expected = [batches_of(directory, rank) for rank in range(RANKS)]
    rng = random.Random(2026)
    cache, log, state = tmp_path / "cache", tmp_path / "log", tmp_path / "state.json"
    temporary = short_directory / "tmp"
    temporary.mkdir()
    options = {
        "dataset": {
            "remote": upload(s3, directory),
            "local": str(cache),
            "storage_options": s3.storage_options,
            "predownload": 12,  # so that there is something left to fetch for the runs to come
            "cache_limit": cache_limit,
            **ORDER,
        },
        "loader": {"kind": "streaming", "batch_size": BATCH, "num_workers": 2},
        "log": str(log),
        "state": str(state),
        "epochs": EPOCHS,
        "collective": True,
    }
    environment = {"TMPDIR": str(temporary)}
    pids: set[int] = set()
    for number in range(kills):
        with Job("train", RANKS, options, environment=environment) as job:
            steps = 0 if number % 5 == 4 else rng.randrange(1, 10)
            pids |= kill_soon(job, Path(f"{log}.0"), steps, rng)
    left, left_in_memory = left_in(temporary), left_in_shared_memory(pids)
    with Job("train", RANKS, options, environment=environment) as job:
        job.wait()

    for rank in range(RANKS):
        lines = lines_of(Path(f"{log}.{rank}"))
        for line in lines:
            assert line["numbers"] == expected[rank][line["epoch"], line["position"]]
        assert {(line["epoch"], line["position"]) for line in lines} == expected[rank].keys()
        # A kill between a batch and its state costs no more than what was under way.
        assert len(lines) <= len(expected[rank]) + 2 * kills
    # What the last ones to be killed left goes with the next user that fetches; had they fetched everything
    # already, no run above was that user.
    CacheDirectory(cache).sweep()
    hidden = cache / ".streamshard"
    assert left_in(hidden / "jobs") == left_in(hidden / "alive") == []
    for path in cache.glob("*.mds"):
        assert path.read_bytes() == (directory / path.name).read_bytes()
    if cache_limit is None:
        assert len(list(cache.glob("*.mds"))) == SAMPLES // PER_SHARD

    # torch's own, of tensors that were on their way and sockets to send them by; none has a name of ours.
    assert all(re.fullmatch(r"torch_\d+_\d+_\d+", name) for name in left_in_memory)
    assert all(name.startswith("pymp-") for name in left)


def test_b095_a_run_over_s3_that_is_killed_again_and_again_goes_on(
    s3: SeaweedServer, directory: Path, tmp_path: Path, short_directory: Path
) -> None:
    kill_and_restart(s3, directory, tmp_path, short_directory, 2, None)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("kills", "cache_limit"),
    [(round(5 * TIMES), None), (round(3 * TIMES), "12kb")],
    ids=["whole", "evicting"],
)
def test_b095_a_run_over_s3_that_is_killed_many_times_goes_on(
    s3: SeaweedServer,
    directory: Path,
    tmp_path: Path,
    short_directory: Path,
    kills: int,
    cache_limit: str | None,
) -> None:
    kill_and_restart(s3, directory, tmp_path, short_directory, kills, cache_limit)


@pytest.mark.slow
def test_b095_four_runs_at_once_share_a_cache_with_one_that_was_killed(
    directory: Path, tmp_path: Path
) -> None:
    def begin(name: str) -> Job:
        options = {
            "dataset": {"remote": directory.as_uri(), "local": str(tmp_path / "cache"), **ORDER},
            "loader": {"kind": "streaming", "batch_size": 8, "num_workers": 2},
            "log": str(tmp_path / name),
            "epochs": 1,
        }
        return Job("train", 0, options)

    with begin("killed") as job:
        job.until(lambda: lines_of(tmp_path / "killed.0"), "first batch")
        job.kill()
    names = [f"run-{number}" for number in range(4)]
    with jobs(*(begin(name) for name in names)) as begun:
        for job in begun:
            job.wait()
    runs = [[line["numbers"] for line in lines_of(tmp_path / f"{name}.0")] for name in names]
    assert sorted(joined(runs[0])) == list(range(SAMPLES))
    assert all(run == runs[0] for run in runs)


def test_b140_a_killed_worker_ends_its_trainer_and_blocks_nobody_else(
    s3: SeaweedServer, s3_proxy: FaultyProxy, directory: Path, tmp_path: Path
) -> None:
    # So long that only the death of the worker that holds a shard's lock can let the other run go on.
    patience = {"download_timeout": 3000, "download_retry": 0}
    stalled = "shard.00050.mds"

    def begin(name: str, endpoint_url: str) -> Job:
        options = {
            "dataset": {
                "remote": url,
                "local": str(tmp_path / "cache"),
                "storage_options": s3.options_for(endpoint_url),
                **patience,
            },
            "loader": {"kind": "streaming", "batch_size": 8, "num_workers": 1},
            "log": str(tmp_path / name),
            "epochs": 1,
        }
        return Job("train", 0, options)

    url = upload(s3, directory)
    s3_proxy.arm(Fault(stall_after=20, method="GET", path_contains=stalled))
    with begin("stalls", s3_proxy.endpoint_url) as one:
        one.until(lambda: s3_proxy.count("GET", stalled), "download that stalls")
        with begin("goes-on", s3.endpoint_url) as other:
            other.until(lambda: lines_of(tmp_path / "goes-on.0"), "first batch")
            (worker,) = psutil.Process(one.process.pid).children()
            os.kill(worker.pid, signal.SIGKILL)
            assert one.end() == 1
            assert "killed by signal" in one.printed()
            other.wait()
    numbers = joined(line["numbers"] for line in lines_of(tmp_path / "goes-on.0"))
    assert numbers == list(range(SAMPLES))


def test_a_worker_whose_trainer_is_killed_ends_though_nobody_takes_its_batches(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "set", columns={"blob": "bytes"}) as writer:
        for number in range(12):
            writer.write({"blob": bytes([number]) * 100_000})  # more than a pipe takes
    options = {"dataset": {"local": str(tmp_path / "set"), "batch_size": 1}, "log": str(tmp_path / "log")}
    # The launcher waits for the rank by a pipe whose other end the worker has inherited.
    with Job("stop_after_first", 1, options, group=False) as job:
        (line,) = job.until(lambda: lines_of(tmp_path / "log.0"), "first batch")
        os.kill(line["pid"], signal.SIGKILL)
        assert job.end() == 1
        assert "terminated with signal SIGKILL" in job.printed()
        wait_for_group_end(job.process.pid)


def many_loaders(directory: Path, cache: Path) -> dict[str, Any]:
    return {
        "dataset": {"remote": directory.as_uri(), "local": str(cache), "batch_size": 8},
        "ways": [
            {"kind": kind, "batch_size": 8, **workers}
            for kind, workers in itertools.product(
                ("streaming", "plain"),
                ({"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}),
            )
        ],
        "steps": 3,
    }


def test_a_process_that_leaves_every_loader_in_mid_epoch_ends_quietly(
    directory: Path, tmp_path: Path, short_directory: Path
) -> None:
    temporary = short_directory / "tmp"
    temporary.mkdir()
    options = many_loaders(directory, tmp_path / "cache")
    with Job("leave_early", 0, options, environment={"TMPDIR": str(temporary)}, anew=True) as job:
        assert job.wait() == "leaving\n"
        wait_for_group_end(job.process.pid)
    # torch terminates its workers here, so that multiprocessing does not get to removing its own directories.
    assert [name for name in left_in(temporary) if not name.startswith("pymp-")] == []


@pytest.mark.parametrize(
    "to_whom", [pytest.param("the trainer", marks=pytest.mark.slow), "the whole terminal"]
)
def test_an_interrupt_in_mid_epoch_leaves_no_workers(directory: Path, tmp_path: Path, to_whom: str) -> None:
    options = {
        "dataset": {"remote": directory.as_uri(), "local": str(tmp_path / "cache")},
        "loader": {"kind": "streaming", "batch_size": 1, "num_workers": 2},
        "log": str(tmp_path / "log"),
    }
    with Job("train", 0, options, anew=True) as job:
        job.until(lambda: lines_of(tmp_path / "log.0"), "first batch")
        if to_whom == "the trainer":
            os.kill(job.process.pid, signal.SIGINT)
        else:
            os.killpg(job.process.pid, signal.SIGINT)
        assert job.end() in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in job.printed()
        wait_for_group_end(job.process.pid)
