"""Same input, same options, same bytes: for any number of workers, and whatever kills the conversion in between."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamshard import LocalDataset
from streamshard.convert import earlier, job
from streamshard.convert.journal import WORK_DIRECTORY, Journal, work_directory
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import (
    chat_rows,
    files_of,
    picture,
    run,
    shards_of,
    stopped_after,
    write_lines,
)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 chat records, 300 pictures, a few megabytes: several chunks to scan, many shards to write."""
    folder = tmp_path_factory.mktemp("chat")
    rows = chat_rows(3000, folder / "images", image_every=10)
    for row in rows:
        row["text"] = f"{row['id']} " * 60
    return write_lines(folder / "train.jsonl", rows)


_OPTIONS: dict[str, Any] = {"size_limit": 32768, "shuffle": 5}


@pytest.fixture(scope="module")
def wanted(chat: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("wanted") / "A"
    run(chat, out, **_OPTIONS)
    return files_of(out)


def _command(source: Path, out: Path, workers: int, *more: str) -> list[str]:
    code = "from streamshard.cli.main import main; main()"
    options = ["--out", str(out), "--workers", str(workers), "--size-limit", "32kb", "--shuffle=5", *more]
    return [sys.executable, "-c", code, "convert", str(source), *options]


def test_only_shards_and_the_index_are_left(wanted: dict[str, str]) -> None:
    assert len(wanted) > 30
    assert set(wanted) == {"index.json", *(f"shard.{number:05d}.mds" for number in range(len(wanted) - 1))}


@pytest.mark.parametrize("workers", [2, 5])
def test_any_number_of_workers_writes_the_same_bytes(
    chat: Path, wanted: dict[str, str], tmp_path: Path, workers: int
) -> None:
    run(chat, tmp_path / "A", workers=workers, **_OPTIONS)
    assert files_of(tmp_path / "A") == wanted


def test_the_locale_and_the_current_directory_have_no_say(
    chat: Path, wanted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "A"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        _command(chat, out, 2), env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=100
    )
    assert b"3000 samples in" in done.stdout
    assert files_of(out) == wanted


def _num_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_b077_after_sigkill_a_rerun_gives_the_same_bytes(
    chat: Path, wanted: dict[str, str], tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "A"
    kills = 0
    chance = random.Random(workers)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        process = subprocess.Popen(
            _command(chat, out, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Killed when it has laid down some more files: however quick it is, the first of them comes before its end.
        wanted_files = _num_files(out) + (1 if kills == 0 else chance.randint(1, 6))
        while kills < 4 and process.poll() is None and _num_files(out) < wanted_files:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.002)
        if kills == 4 or process.poll() is not None:
            assert process.wait() == 0
            if kills:
                break
            shutil.rmtree(out)  # this process was held up for so long: once more
            continue
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        kills += 1
        if not (out / "index.json").exists():
            assert psutil.wait_procs(children, timeout=5)[1] == [], "workers outlive their parent"
    assert kills > 0
    assert files_of(out) == wanted


def test_a_disk_that_takes_no_more_is_named_and_a_rerun_goes_on(tmp_path: Path) -> None:
    rows = [{"n": number, "text": "t" * 100} for number in range(30)]
    source = write_lines(tmp_path / "a.jsonl", [*rows, {"n": 30, "text": "t" * 300_000}])
    out = tmp_path / "A"
    command = [arg for arg in _command(source, out, 1, "--samples-per-shard", "10") if "shuffle" not in arg]
    full = subprocess.run(
        command,
        # As large as a file may become: what a quota or a full disk does to the last shard alone.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    assert "File too large" in full.stderr
    assert not (out / "index.json").exists()
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert "resumed: 3 shards were finished by an earlier run" in done.stdout
    run(source, tmp_path / "B", samples_per_shard=10, size_limit=32768)
    assert shards_of(out) == shards_of(tmp_path / "B")


def _interrupted(source: Path, out: Path, after: int, **options: Any) -> None:
    """Convert until ``after`` shards are written, then stop as if killed."""
    with stopped_after(after):
        run(source, out, **options)
    assert not (out / "index.json").exists()


def test_a_rerun_does_only_what_is_missing(
    chat: Path, wanted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "A"
    _interrupted(chat, out, 20, **_OPTIONS)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.mds")}
    assert len(before) == 20
    # A shard that was cut or lost meanwhile is made again; one that was only touched is hashed and kept.
    (out / "shard.00003.mds").write_bytes(b"cut")
    (out / "shard.00004.mds").unlink()
    os.utime(out / "shard.00005.mds", ns=(1, 1))
    content = bytearray((out / "shard.00006.mds").read_bytes())
    content[-1] ^= 1
    (out / "shard.00006.mds").write_bytes(content)
    scans: list[str] = []
    monkeypatch.setattr(job, "make_plan", lambda *_: scans.append("planned again"))
    summary = run(chat, out, workers=2, **_OPTIONS)
    assert scans == []
    assert summary.resumed_shards == 17
    assert files_of(out) == wanted
    untouched = set(before) - {f"shard.{number:05d}.mds" for number in (3, 4, 5, 6)}
    assert all((out / name).stat().st_mtime_ns == before[name] for name in untouched)


@pytest.mark.parametrize("change", ["source", "option", "no-resume"])
def test_other_input_or_options_are_planned_anew_and_said(tmp_path: Path, change: str) -> None:
    notes: list[str] = []

    class Notes(job.SilentProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    out = tmp_path / "A"
    _interrupted(source, out, 8, samples_per_shard=100)
    options: dict[str, Any] = {"samples_per_shard": 100}
    if change == "source":
        write_lines(source, [{"id": number} for number in range(250)])
    elif change == "option":
        options["samples_per_shard"] = 500
    else:
        options["resume"] = False
    job.convert(ConvertOptions((str(source),), str(out), workers=1, **options), Notes())
    run(source, tmp_path / "B", **{**options, "resume": True})
    assert files_of(out) == files_of(tmp_path / "B")
    said = {
        "source": "a.jsonl has changed",
        "option": "samples_per_shard was 100 and is 500",
        "no-resume": "",
    }[change]
    assert said in " ".join(notes)


def test_a_scan_is_not_repeated_for_another_shard_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert import worker

    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    _interrupted(source, tmp_path / "A", 1, samples_per_shard=100)
    monkeypatch.setitem(worker.FUNCTIONS, "scan", lambda *_: pytest.fail("scanned again"))
    assert run(source, tmp_path / "A", samples_per_shard=200).shards == 5


def test_mended_images_are_looked_at_again(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}])
    with pytest.raises(ConvertError, match="does not exist"):
        run(source, tmp_path / "A")
    (tmp_path / "a.png").write_bytes(picture())
    assert run(source, tmp_path / "A").samples == 1


def test_a_torn_work_directory_is_not_trusted(chat: Path, wanted: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "A"
    _interrupted(chat, out, 3, **_OPTIONS)
    work = out / WORK_DIRECTORY
    (work / "done" / "00001.json").write_text('{"stamp": [1')
    (work / "plan.json").unlink()
    for path in (work / "scan").glob("*.tally"):
        path.write_bytes(path.read_bytes()[:100])
    run(chat, out, **_OPTIONS)
    assert files_of(out) == wanted


def test_b076_a_finished_dataset_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    out = tmp_path / "A"
    run(source, out, samples_per_shard=100)
    (out / "notes.txt").write_text("mine")
    (out / "sub").mkdir()
    (out / "sub" / "shard.00000.mds").write_text("another dataset's")
    before = files_of(out)
    with pytest.raises(
        ConvertError, match=r"holds a finished dataset \(1000 samples in 10 shards\), not made by this job"
    ):
        run(source, out, samples_per_shard=500)
    other = write_lines(tmp_path / "b.jsonl", [{"id": 1}])
    with pytest.raises(ConvertError, match="of other records or images"):
        run(other, out, samples_per_shard=100)
    assert files_of(out) == before
    run(source, out, samples_per_shard=500, overwrite=True)
    after = files_of(out)
    assert set(after) == {
        "index.json",
        "notes.txt",
        "sub/shard.00000.mds",
        "shard.00000.mds",
        "shard.00001.mds",
    }
    assert after["notes.txt"] == before["notes.txt"]
    assert len(LocalDataset(str(out))) == 1000


def test_the_same_job_over_its_own_finished_dataset_has_nothing_to_do(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(10)])
    run(source, tmp_path / "A")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "A").rglob("*")}
    summary = run(source, tmp_path / "A", workers=2)
    assert summary.finished_before
    assert summary.samples == 10
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "A").rglob("*")} == before
    with pytest.raises(ConvertError, match="--overwrite"):
        run(source, tmp_path / "A", resume=False)
    (tmp_path / "A" / "shard.00000.mds").unlink()
    with pytest.raises(ConvertError, match=r"shard\.00000\.mds is not there"):
        run(source, tmp_path / "A")


def test_other_images_under_the_same_names_are_not_the_same_job(tmp_path: Path) -> None:
    for name, size in (("a", 8), ("b", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(picture("BMP", size=(size, size)))
    source = write_lines(tmp_path / "a.jsonl", [{"image": "1.png"}])
    run(source, tmp_path / "A", image_root=str(tmp_path / "a"))
    assert run(source, tmp_path / "A", image_root=str(tmp_path / "a")).finished_before
    with pytest.raises(ConvertError, match="of other records or images"):
        run(source, tmp_path / "A", image_root=str(tmp_path / "b"))


def test_a_finished_dataset_of_many_records_is_compared_by_a_sample_of_its_images(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = chat_rows(3000, tmp_path / "images", image_every=3)
    rows[5]["image"] = "nope.png"
    source = write_lines(tmp_path / "a.jsonl", rows)
    run(source, tmp_path / "A", on_error="skip", workers=2)
    assert run(source, tmp_path / "A", on_error="skip").finished_before
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(picture("BMP"))
    with pytest.raises(ConvertError, match="of other records or images"):
        run(source, tmp_path / "A", on_error="skip")


def test_a_kill_between_index_and_clean_up_leaves_a_dataset_that_the_rerun_tidies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(10)])
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "A")
    assert (tmp_path / "A" / WORK_DIRECTORY).is_dir()
    assert run(source, tmp_path / "A").finished_before
    assert set(files_of(tmp_path / "A")) == {"index.json", "shard.00000.mds"}


def test_an_interrupted_overwrite_still_deletes_the_orphans(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    out = tmp_path / "A"
    run(source, out, samples_per_shard=10)
    _interrupted(source, out, 1, samples_per_shard=500, overwrite=True)
    # The old shards are there still, the old index is not.
    assert len(list(out.glob("*.mds"))) == 100
    run(source, out, samples_per_shard=500)
    assert set(files_of(out)) == {"index.json", "shard.00000.mds", "shard.00001.mds"}


def test_a_kill_between_index_and_orphans_leaves_a_dataset_that_the_rerun_tidies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    out = tmp_path / "A"
    run(source, out, samples_per_shard=10, compression="zstd")
    with monkeypatch.context() as patched:
        patched.setattr(
            earlier.EarlierOutput, "remove_leftovers", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run(source, out, samples_per_shard=500, overwrite=True)
    assert (out / "index.json").exists()
    assert len(list(out.glob("*.zstd"))) == 100
    assert run(source, out, samples_per_shard=500).finished_before
    assert set(files_of(out)) == {"index.json", "shard.00000.mds", "shard.00001.mds"}


def test_a_shard_that_was_published_and_not_recorded_is_no_orphan_of_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    out = tmp_path / "A"
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(source, out, samples_per_shard=100, compression="zstd")
    assert (out / "shard.00000.mds.zstd").exists()
    run(source, out, samples_per_shard=500)
    assert set(files_of(out)) == {"index.json", "shard.00000.mds", "shard.00001.mds"}


def test_shards_of_unknown_origin_are_not_written_over(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}])
    out = tmp_path / "A"
    out.mkdir()
    (out / "shard.00007.mds").write_text("of a writer that was killed")
    with pytest.raises(ConvertError, match=r"1 shard files without index\.json"):
        run(source, out)
    assert set(files_of(out)) == {"shard.00007.mds"}
    run(source, out, overwrite=True)
    assert len(LocalDataset(str(out))) == 1
    assert set(files_of(out)) == {"index.json", "shard.00000.mds"}


@pytest.mark.parametrize("name", ["train.jsonl", "index.json", "folder", WORK_DIRECTORY])
def test_an_old_index_cannot_have_other_files_deleted(tmp_path: Path, name: str) -> None:
    out = tmp_path / "A"
    (out / "folder").mkdir(parents=True)
    source = write_lines(out / "train.jsonl", [{"id": 1}])
    run(source, tmp_path / "B")
    index = json.loads((tmp_path / "B" / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["basename"] = name
    (out / "index.json").write_text(json.dumps(index), encoding="ascii")
    run(source, out, overwrite=True)
    assert set(files_of(out)) == {"index.json", "shard.00000.mds", "train.jsonl"}
    assert (out / "folder").is_dir()


def test_an_index_that_is_no_index_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}])
    (tmp_path / "A").mkdir()
    (tmp_path / "A" / "index.json").write_text("{")
    with pytest.raises(ConvertError, match="not a sound one"):
        run(source, tmp_path / "A")
    assert run(source, tmp_path / "A", overwrite=True).samples == 1


def test_two_conversions_into_one_directory_are_refused_by_name(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}])
    journal = Journal(work_directory(str(tmp_path / "A"), None))
    with (
        journal.locked("A"),
        pytest.raises(ConvertError, match=rf"another convert is writing there \(process {os.getpid()}"),
    ):
        run(source, tmp_path / "A")
    assert run(source, tmp_path / "A").samples == 1


def test_b094_a_file_system_without_locks_is_warned_about_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert run(write_lines(tmp_path / "a.jsonl", [{"id": 1}]), tmp_path / "A").samples == 1
    assert "see to it that only one convert runs" in caplog.text


def test_a_file_system_that_does_not_force_names_to_the_disk_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_directories(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse_directories)
    run(write_lines(tmp_path / "a.jsonl", [{"id": 1}]), tmp_path / "A", workers=1)
    assert len(LocalDataset(str(tmp_path / "A"))) == 1


def test_an_error_under_the_lock_is_the_error_that_is_raised(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="some file"),
        Journal(tmp_path / "work").locked("A"),
    ):
        raise FileNotFoundError("some file")


def test_the_lock_of_a_removed_work_directory_protects_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "work")
    with journal.locked("A"):
        shutil.rmtree(tmp_path / "work")
        with Journal(tmp_path / "work").locked("A"):
            assert (tmp_path / "work" / "lock").exists()


def test_a_worker_that_is_killed_is_a_named_error_and_a_rerun_goes_on(
    chat: Path, wanted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "A"
    process = subprocess.Popen(
        _command(chat, out, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(process.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.005)
    children[0].send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed by SIGKILL (most often the kernel's out-of-memory killer" in errors
    assert "run the same command again" in errors
    assert not (out / "index.json").exists()
    subprocess.run(_command(chat, out, 2), check=True, capture_output=True, timeout=100)
    assert files_of(out) == wanted


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_stops_cleanly_and_says_how_to_go_on(
    chat: Path, wanted: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "A"
    process = subprocess.Popen(
        _command(chat, out, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not psutil.Process(process.pid).children() and time.monotonic() < deadline:
        time.sleep(0.005)
    children = psutil.Process(process.pid).children()
    for child in children:
        child.suspend()  # else all may be done before the signal is there
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again to go on" in errors
    assert "Traceback" not in errors
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert not (out / "index.json").exists()
    subprocess.run(_command(chat, out, 2), check=True, capture_output=True, timeout=100)
    assert files_of(out) == wanted


# The interrupt comes in a hook that Python calls around each fork, where it drops what a handler raises.
_INTERRUPTED_IN_FORK = """
import os, signal, sys
from streamshard.cli.main import main
from streamshard.convert.copies import may_copy

hook, fork, name = (sys.argv.pop(1) for _ in range(3))
forks = []

def interrupt():
    forks.append(1)
    if len(forks) == int(fork):
        os.kill(os.getpid(), getattr(signal, name))

assert may_copy()
os.register_at_fork(**{hook: interrupt})
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
@pytest.mark.parametrize("fork", [1, 2])
def test_an_interrupt_amid_a_fork_is_not_lost(
    chat: Path, wanted: dict[str, str], tmp_path: Path, fork: int, hook: str, name: str
) -> None:
    out = tmp_path / "A"
    command = _command(chat, out, 2)[3:]
    stopped = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IN_FORK, hook, str(fork), name, *command],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "run the same command again to go on" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert not (out / "index.json").exists()
    subprocess.run(_command(chat, out, 2), check=True, capture_output=True, timeout=100)
    assert files_of(out) == wanted


def test_an_error_in_a_worker_is_the_same_error_here(tmp_path: Path) -> None:
    rows = [{"id": number, "text": "x" * 1000, "image": "nope.png"} for number in range(1500)]
    source = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConvertError, match="1500 records cannot be converted"):
        run(source, tmp_path / "A", workers=2)


def test_skipping_gives_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": number, "text": "x" * 1000} for number in range(2000)]
    for number in range(0, 2000, 7):
        rows[number]["image"] = "nope.png"
    source = write_lines(tmp_path / "a.jsonl", rows)
    one = run(source, tmp_path / "A", on_error="skip", size_limit=1 << 16)
    two = run(source, tmp_path / "B", on_error="skip", size_limit=1 << 16, workers=2)
    assert one.skipped == two.skipped == {"missing image": 286}
    assert one.skips == two.skips
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    assert json.loads((tmp_path / "A" / "index.json").read_bytes())["streamshard"]["convert"]["skipped"] == {
        "missing image": 286
    }


def test_overwriting_a_merged_index_leaves_the_datasets_it_points_at(tmp_path: Path) -> None:
    from streamshard import merge_index

    out = tmp_path / "A"
    for name in ("a", "b"):
        run(write_lines(tmp_path / f"{name}.jsonl", [{"id": name}]), out / name)
    merge_index(str(out))
    before = {name: digest for name, digest in files_of(out).items() if "/" in name}
    assert len(before) == 4
    assert len(LocalDataset(str(out))) == 2
    run(write_lines(tmp_path / "c.jsonl", [{"id": "c"}]), out, overwrite=True)
    after = files_of(out)
    assert {name: digest for name, digest in after.items() if "/" in name} == before
    assert [sample["id"] for sample in LocalDataset(str(out))] == ["c"]


@pytest.mark.parametrize("form", ["jsonl", "tar", "mds"])
def test_a_source_that_is_rewritten_to_its_size_after_the_scan_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    source = given = write_lines(tmp_path / "a.jsonl", [{"text": f"{number:04}"} for number in range(50)])
    if form == "tar":
        source = given = tmp_path / "a.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(tmp_path / "a.jsonl", "0001.txt")
    elif form == "mds":
        given = tmp_path / "old"
        run(source, given)
        (source,) = given.glob("*.mds")
    content = source.read_bytes()
    real = job._Job._write

    def rewritten(*args: Any) -> Any:
        before = source.stat()
        source.write_bytes(content.replace(b"0007", b"7000"))
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(job._Job, "_write", rewritten)
        with pytest.raises(
            ConvertError, match=f"{source.name}: the file was written to since it was scanned"
        ):
            run(given, tmp_path / "out")
    assert not (tmp_path / "out" / "index.json").exists()
    if form != "mds":  # a shard has a hash
        run(given, tmp_path / "out")
        assert "7000" in str(list(LocalDataset(str(tmp_path / "out"))))


def test_a_source_that_is_gone_after_the_scan_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": "x"}])
    real = job._Job._write

    def gone(*args: Any) -> Any:
        source.unlink()
        return real(*args)

    monkeypatch.setattr(job._Job, "_write", gone)
    with pytest.raises(ConvertError, match=r"a\.jsonl: cannot be read \(No such file.*run again"):
        run(source, tmp_path / "out")
