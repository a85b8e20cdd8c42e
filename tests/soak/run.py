"""A soak: one job that is never killed and a chain of jobs that are, on one cache, behind a network full of faults.

The steady job reads epoch after epoch, whole, and measures itself. The chain's jobs each have other ranks, workers,
batch sizes and cache limits than the one before, go on from its state, and are killed: all of them, one rank, one
worker, or interrupted; or a rank is stopped for some seconds, or all connections break. What link ``k`` of the chain
does, and when it is killed, depends on the seed and ``k`` alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from streamshard import MDSWriter
from tests.soak.faults import RandomFaults
from tests.soak.flatness import Trend, trend_of
from tests.support.faulty_proxy import FaultyProxy
from tests.support.ranks import Job, lines_of
from tests.support.seaweedfs import SeaweedServer
from tests.support.small_datasets import COLUMNS, text_samples

PER_SHARD = 20
ORDER: dict[str, Any] = {
    "shuffle": True,
    "num_canonical_nodes": 4,
    "shuffle_block_size": 40,
    "predownload": 40,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a soak is.

    Attributes:
        sizes: samples of the streams.
        limit: bytes of each stream's cache where there is a limit: less than half of the larger stream.
        timeout_s: of downloads; a silent connection costs a third of it.
    """

    sizes: tuple[int, int] = (1260, 840)
    limit: int = 40 << 10
    timeout_s: float = 24.0

    @property
    def num_samples(self) -> int:
        return sum(self.sizes)


STEADY_RANKS, STEADY_WORKERS = 2, 1
WAYS = ("all", "rank", "worker", "interrupt", "pause", "none")
_ENDS_WELL = ("pause", "none")
# So many batches may still come from a rank whose worker is dead; torch tells at once.
_BATCHES_UNMISSED = 20


@dataclass(frozen=True, slots=True)
class Link:
    """One job of the chain.

    Attributes:
        batches: how many of rank 0 come before it is killed.
        way: what is killed, of ``WAYS``.
        limited: whether it shares the steady job's cache, which has a limit; else it has one of its own.
        moment: in [0, 1): which of the processes, and how much later than the batch.
    """

    ranks: int
    workers: int
    batch: dict[str, int]
    batches: int
    way: str
    limited: bool
    moment: float

    @classmethod
    def draw(cls, seed: int, number: int, num_samples: int = Scale().num_samples) -> Link:
        rng = random.Random(f"{seed} link {number}")
        ranks, workers = rng.choice([(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (4, 0)])
        batch = rng.choice([{"batch_size": rng.randint(2, 9)}, {"global_batch_size": rng.randint(ranks, 40)}])
        ways = [way for way in WAYS if workers or way != "worker"]
        per_batch = batch.get("global_batch_size") or ranks * batch["batch_size"]
        batches = rng.randint(1, max(1, num_samples // per_batch))
        return cls(ranks, workers, batch, batches, rng.choice(ways), rng.random() < 0.7, rng.random())


@dataclass(slots=True)
class Outcome:
    """What a soak has seen so far. ``wrong`` is empty as long as all is well."""

    seed: int
    links: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    chain_epochs: int = 0
    steady_epochs: int = 0
    samples: int = 0
    wrong: list[str] = field(default_factory=list)
    largest_cache: int = 0

    @property
    def ok(self) -> bool:
        return not self.wrong


class Soak:
    """Everything that one soak needs, in ``directory``."""

    def __init__(
        self,
        server: SeaweedServer,
        directory: Path,
        seed: int,
        *,
        say: Callable[[str], None],
        scale: Scale | None = None,
    ) -> None:
        self._scale = scale or Scale()
        self._server = server
        self._directory = directory
        self._say = say
        self.outcome = Outcome(seed)
        self._faults = RandomFaults(str(seed))
        self._bucket = server.make_bucket()
        self._reached = (0, 0)
        self._learned: dict[int, list[int]] = {}
        self._steady_seen: Counter[int] = Counter()
        self._trends: dict[str, Trend] = {}
        self._courses: dict[str, list[float]] = {}

    def run(self, seconds: float, *, first_link: int = 0) -> dict[str, Any]:
        """Soak for so long, and sum up what was seen."""
        self._write_datasets()
        began = time.monotonic()
        with FaultyProxy("127.0.0.1", self._server.port, choose=self._faults) as proxy:
            self._proxy = proxy
            stop = threading.Event()
            watch = threading.Thread(target=self._watch_cache, args=(stop,))
            watch.start()
            try:
                with self._begin_steady(seconds) as steady:
                    self._run_chain(began + seconds, first_link, steady)
                    code = steady.end()
                    if code:
                        self._wrong(f"the steady job ended with {code}: {steady.printed()}")
            except AssertionError as error:  # a job that does not end
                self._wrong(str(error))
            finally:
                stop.set()
                watch.join()
            self._check_steady()
            requests = len(proxy.requests)
        return self._summary(time.monotonic() - began, requests)

    def _write_datasets(self) -> None:
        samples = text_samples(self._scale.num_samples)
        begin = 0
        for number, (size, compression) in enumerate(zip(self._scale.sizes, (None, "zstd"), strict=True)):
            with MDSWriter(
                out=f"{self._bucket}/{number}",
                columns=COLUMNS,
                samples_per_shard=PER_SHARD,
                compression=compression,
                sample_hash="xxh64",
                storage_options=self._server.storage_options,
            ) as writer:
                for sample in samples[begin : begin + size]:
                    writer.write(sample)
            begin += size

    def _dataset(self, cache: Path, limit: int | None) -> dict[str, Any]:
        return {
            "streams": [
                {"remote": f"{self._bucket}/{number}", "local": str(cache / str(number)), "name": str(number)}
                for number in range(len(self._scale.sizes))
            ],
            "storage_options": self._server.options_for(self._proxy.endpoint_url),
            "download_timeout": self._scale.timeout_s,
            "validate_samples": True,
            "cache_limit": limit,
            **ORDER,
        }

    @property
    def _shared_cache(self) -> Path:
        return self._directory / "shared"

    def _begin_steady(self, seconds: float) -> Job:
        options = {
            "dataset": {**self._dataset(self._shared_cache, self._scale.limit), "batch_size": 10},
            "loader": {
                "kind": "streaming",
                "batch_size": None,
                "num_workers": STEADY_WORKERS,
                "persistent_workers": True,
            },
            "log": str(self._directory / "steady"),
            "until": time.time() + seconds,
        }
        # One heap: else glibc gives each of many short threads one of some, and each of them grows to its own height.
        return Job("soaking.steady", STEADY_RANKS, options, environment={"MALLOC_ARENA_MAX": "1"}, anew=True)

    def _run_chain(self, deadline: float, first_link: int, steady: Job) -> None:
        number = first_link
        while time.monotonic() < deadline and self.outcome.ok:
            if steady.process.poll():
                return
            self._run_link(number)
            number += 1

    def _run_link(self, number: int) -> None:
        link = Link.draw(self.outcome.seed, number, self._scale.num_samples)
        log, state = self._directory / f"log-{number}", self._directory / "state.json"
        own = self._directory / f"cache-{number % 2}"
        if not link.limited and number % 8 < 2:
            shutil.rmtree(own, ignore_errors=True)
        cache = self._shared_cache if link.limited else own
        options = {
            "dataset": {**self._dataset(cache, self._scale.limit if link.limited else None), **link.batch},
            "loader": {"kind": "streaming", "batch_size": None, "num_workers": link.workers},
            "log": str(log),
            "state": str(state),
            "collective": True,
            **({"steps": 2 * link.batches} if link.way in _ENDS_WELL else {}),
        }
        with Job("train", link.ranks, options, anew=True) as job:
            self._end_link(link, job, Path(f"{log}.0"))
            code = job.process.poll()
            printed = job.printed()
        self.outcome.links += 1
        self.outcome.ends[f"{link.way}: {code}"] += 1
        self._say(f"link {number}: {link} ended with {code}")
        if (code == 0) != (link.way in _ENDS_WELL):
            self._wrong(f"link {number} ({link}) ended with {code}: {printed}")
        self._learn(link, log, state, number)

    def _end_link(self, link: Link, job: Job, log: Path) -> None:
        """Let it come to its moment, and see it end."""
        with suppress(AssertionError):  # it has ended by itself, which its code will tell
            job.until(lambda: len(lines_of(log)) >= link.batches, "its batches")
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(link.moment * 0.2)
        if link.way == "all":
            job.kill()
            return
        if link.way == "worker":
            self._kill_a_worker_that_is_needed(link, job, log)
        elif victims := self._victims(link, job):
            victim = victims[int(link.moment * len(victims))]
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if link.way == "interrupt":
                    os.killpg(job.process.pid, signal.SIGINT)
                elif link.way == "pause":
                    victim.suspend()
                    with suppress(subprocess.TimeoutExpired):
                        job.process.wait(3 * link.moment)
                    victim.resume()
                elif link.way == "none":
                    self._proxy.drop_connections()
                else:
                    victim.kill()
        job.end()  # by itself, and in time

    def _kill_a_worker_that_is_needed(self, link: Link, job: Job, log: Path) -> None:
        """Kill a worker, and another one if none is missed: it may have given its last batch of the epoch."""
        while victims := self._victims(link, job):
            with suppress(psutil.NoSuchProcess):
                victims[int(link.moment * len(victims))].kill()
            unmissed = len(lines_of(log)) + _BATCHES_UNMISSED
            try:
                job.until(
                    lambda unmissed=unmissed: len(lines_of(log)) > unmissed, "batches that come all the same"
                )
            except AssertionError:
                return  # it has ended, or stands still

    @staticmethod
    def _victims(link: Link, job: Job) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(job.process.pid).children()
            if link.way != "worker":
                return ranks
            return [worker for rank in ranks for worker in rank.children()]
        return []

    def _learn(self, link: Link, log: Path, state: Path, number: int) -> None:
        """Count what the job has learned: the batches up to its last state."""
        size = self._scale.num_samples
        before, self._reached = self._reached, _place_in(state)
        for rank in range(link.ranks):
            path = Path(f"{log}.{rank}")
            for line in lines_of(path):
                place = (line["epoch"], line["position"] or size)
                if place <= before:
                    self._wrong(f"link {number}, rank {rank}: batch at {place}, which is before {before}")
                # What was under way when the job was killed is read again by the next one: it was never learned.
                if place <= self._reached:
                    numbers = line["numbers"]
                    kept = numbers[: len(numbers) - line["padding"]]
                    self._learned.setdefault(line["epoch"], []).extend(kept)
            path.unlink(missing_ok=True)
        for epoch in sorted(self._learned):
            if epoch < self._reached[0]:
                self.outcome.chain_epochs += 1
                self._check_epoch(f"chain, epoch {epoch}", self._learned.pop(epoch))
            else:
                learned = self._learned[epoch]
                if len(set(learned)) != len(learned) or len(learned) != self._reached[1]:
                    self._wrong(
                        f"link {number}: epoch {epoch} at position {self._reached[1]}: {len(learned)} samples, "
                        f"{len(set(learned))} of them different"
                    )

    def _check_epoch(self, what: str, numbers: list[int]) -> None:
        self.outcome.samples += len(numbers)
        if sorted(numbers) != list(range(self._scale.num_samples)):
            counts = Counter(numbers)
            missing = [number for number in range(self._scale.num_samples) if number not in counts]
            double = [number for number, count in counts.items() if count > 1]
            self._wrong(f"{what}: missing {missing[:20]}, more than once {double[:20]}")

    def _check_steady(self) -> None:
        logs = [lines_of(Path(f"{self._directory / 'steady'}.{rank}")) for rank in range(STEADY_RANKS)]
        if self.outcome.ok and (len({len(log) for log in logs}) != 1 or not logs[0]):
            self._wrong(f"steady job: epochs of its ranks {[len(log) for log in logs]}")
        for lines in zip(*logs, strict=False):
            self.outcome.steady_epochs += 1
            numbers = [number for line in lines for number in line["numbers"]]
            self._check_epoch(f"steady job, epoch {lines[0]['epoch']}", numbers)
        for name, values in _series(logs):
            self._trends[name] = trend_of(values)
            self._courses[name] = [round(value, 1) for value in values[:: max(1, len(values) // 20)]]
        for name, trend in self._trends.items():
            if not trend.is_flat(allowed_growth(name, trend)):
                self._wrong(f"{name} grows: {trend}")

    def _watch_cache(self, stop: threading.Event) -> None:
        """Sample what the shared cache takes on the disk."""
        while not stop.wait(0.05):
            for number in range(len(self._scale.sizes)):
                nbytes = _disk_use(self._shared_cache / str(number))
                self.outcome.largest_cache = max(self.outcome.largest_cache, nbytes)
                if nbytes > self._scale.limit and self.outcome.ok:
                    self._wrong(
                        f"cache of stream {number}: {nbytes} bytes of shards, limit {self._scale.limit}"
                    )

    def _wrong(self, what: str) -> None:
        self.outcome.wrong.append(what)
        self._say(f"WRONG: {what}")

    def _summary(self, seconds: float, requests: int) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "ok": outcome.ok,
            "seed": outcome.seed,
            "minutes": round(seconds / 60, 2),
            "requests": requests,
            "faults": dict(self._faults.met),
            "links": outcome.links,
            "ends": dict(sorted(outcome.ends.items())),
            "chain_epochs": outcome.chain_epochs,
            "steady_epochs": outcome.steady_epochs,
            "samples_of_whole_epochs": outcome.samples,
            "largest_cache": outcome.largest_cache,
            "cache_limit": self._scale.limit,
            "trends": {
                name: {
                    "mean": round(trend.mean, 2),
                    "growth": round(trend.growth, 2),
                    "surely": round(trend.surely, 2),
                    "epochs": trend.count,
                    "course": self._courses[name],
                }
                for name, trend in self._trends.items()
            },
            "wrong": outcome.wrong,
        }


def allowed_growth(name: str, trend: Trend) -> float:
    """How much a quantity may grow over the later two thirds of a soak, however long that is."""
    return 2.0 + 0.02 * trend.mean if "MB" in name else 1.0


def _series(logs: list[list[dict[str, Any]]]) -> Iterator[tuple[str, list[float]]]:
    """Give each quantity of each process of the steady job, epoch by epoch."""
    for rank, lines in enumerate(logs):
        for process in range(min((len(line["holds"]) for line in lines), default=0)):
            who = f"rank {rank}" if process == 0 else f"rank {rank} worker {process - 1}"
            holds = [line["holds"][process] for line in lines]
            yield f"{who}: MB", [each["nbytes"] / 1e6 for each in holds]
            yield f"{who}: descriptors", [float(each["descriptors"]) for each in holds]
            yield f"{who}: threads", [float(each["threads"]) for each in holds]


def _place_in(state: Path) -> tuple[int, int]:
    """Epoch and position of a state that may not have been saved yet."""
    if not state.exists():
        return 0, 0
    saved = json.loads(state.read_text())
    return saved["epoch"], saved["position"]


def _disk_use(directory: Path) -> int:
    nbytes = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False) and ".mds" in entry.name:
                    nbytes += entry.stat().st_size
    return nbytes
