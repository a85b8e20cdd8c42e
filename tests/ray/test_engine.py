"""Conversions on a Ray cluster: the bytes of the local engine, whatever dies; nodes that see other files."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamshard import convert_records
from streamshard.cli.main import main
from streamshard.convert import ray_engine
from streamshard.convert.job import convert, dry_run
from streamshard.convert.journal import WORK_DIRECTORY
from streamshard.convert.options import ConvertOptions
from streamshard.convert.processes import Workers
from streamshard.convert.progress import SilentProgress
from streamshard.errors import ConvertError
from streamshard.storage import open_store
from tests.support.jsonl_inputs import chat_rows, files_of, noise, run, write_lines
from tests.support.ray_cluster import (
    LocalCluster,
    can_hide,
    hanging_unit,
    sightless_unit,
    telling_unit,
)
from tests.support.seaweedfs import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

_OPTIONS: dict[str, Any] = {"size_limit": 16384, "shuffle": 5, "sample_hash": "xxh64"}


class Notes(SilentProgress):
    """Keeps what is told; may break off: when ``phase`` has ended, or of shards, at the first one."""

    def __init__(self, *, interrupt: bool = False, phase: str = "writing shards") -> None:
        self.notes: list[str] = []
        self.phases: list[tuple[str, int, int | None]] = []
        self.done = [0, 0]
        self._interrupt = interrupt
        self._phase = phase

    def begin(self, phase: str, total_nbytes: int, total_samples: int | None) -> None:
        self.phases.append((phase, total_nbytes, total_samples))
        self.done = [0, 0]

    def advance(self, nbytes: int, samples: int) -> None:
        self.done[0] += nbytes
        self.done[1] += samples
        if self._interrupt and self.phases[-1][0] == "writing shards":
            raise KeyboardInterrupt

    def end(self) -> None:
        if self._interrupt and self.phases[-1][0] == self._phase:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 chat records, 60 pictures in a folder beside them."""
    folder = tmp_path_factory.mktemp("chat")
    rows = chat_rows(600, folder / "images", image_every=10)
    for row in rows:
        row["text"] = f"{row['id']} " * 60
    return write_lines(folder / "train.jsonl", rows)


@pytest.fixture(scope="module")
def wanted(chat: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("wanted") / "A"
    run(chat, out, **_OPTIONS)
    return files_of(out)


def _options(cluster: LocalCluster, source: Path, out: Path | str, **more: Any) -> ConvertOptions:
    given = {**_OPTIONS, "engine": "ray", "address": cluster.address, **more}
    return ConvertOptions(sources=(str(source),), out=str(out), **given)


def test_a_node_killed_in_the_middle_changes_no_byte(
    cluster: LocalCluster,
    chat: Path,
    wanted: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = []

    def kill() -> None:
        killed.append(cluster.pipe.read_text())
        cluster.kill(cluster.doomed)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    monkeypatch.setattr(ray_engine, "run_unit", hanging_unit)
    notes = Notes()
    summary = convert(_options(cluster, chat, tmp_path / "A"), notes)
    killer.join(30)
    assert killed == ["here"]
    assert files_of(tmp_path / "A") == wanted
    assert summary.shards > 10
    assert summary.resumed_shards == 0
    # A unit that was begun twice counts once.
    assert notes.phases[-1] == ("writing shards", notes.phases[-1][1], 600)
    assert notes.done[1] == 600


def test_tasks_have_the_resources_that_are_asked_for_on_several_nodes(
    cluster: LocalCluster, chat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "run_unit", telling_unit)
    convert(_options(cluster, chat, tmp_path / "A", task_cpus=0.5, task_memory=50 << 20))
    told = [json.loads(path.read_text()) for path in tmp_path.glob("told-*.json")]
    assert len(told) > 10
    assert {(each["CPU"], each["memory"]) for each in told} == {(0.5, 50 << 20)}
    assert len({each["node"] for each in told}) > 1


def test_engines_go_on_with_what_the_other_has_left(
    cluster: LocalCluster, chat: Path, wanted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "A"
    with pytest.raises(KeyboardInterrupt):
        convert(_options(cluster, chat, out, workers=1), Notes(interrupt=True))
    made = list((out / WORK_DIRECTORY / "done").iterdir())
    assert made
    with pytest.raises(KeyboardInterrupt):
        convert(
            ConvertOptions(sources=(str(chat),), out=str(out), workers=1, **_OPTIONS), Notes(interrupt=True)
        )
    assert len(list((out / WORK_DIRECTORY / "done").iterdir())) >= len(made)
    summary = convert(_options(cluster, chat, out))
    assert summary.resumed_shards >= len(made)
    assert files_of(out) == wanted


@pytest.mark.parametrize("phase", ["checking records and images", "writing shards"])
def test_a_cluster_goes_on_where_samples_were_made_ready_for_processes(
    phase: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "0.jpg").write_bytes(noise())
    source = write_lines(tmp_path / "a.jsonl", [{"id": i, "image": "0.jpg"} for i in range(20)])
    run(source, tmp_path / "A", **_OPTIONS)
    out = tmp_path / "B"
    with pytest.raises(KeyboardInterrupt):
        convert(
            ConvertOptions(sources=(str(source),), out=str(out), workers=1, **_OPTIONS),
            Notes(interrupt=True, phase=phase),
        )
    assert list((out / WORK_DIRECTORY).glob("scan/*.ready" if phase[0] == "c" else "samples"))
    convert(_options(cluster, source, out))
    assert files_of(out) == files_of(tmp_path / "A")


def test_nodes_read_packed_files_and_tables_themselves(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps({"id": i, "text": f"t{i} " * 40}) + "\n" for i in range(300))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "in" / "b.jsonl").write_text(json.dumps([json.loads(line) for line in lines.splitlines()]))
    run(tmp_path / "in", tmp_path / "wanted", **_OPTIONS)
    here: list[Any] = []
    real = Workers.run

    def noted(self: Workers, function: str, tasks: Any, *more: Any) -> None:
        here.extend(tasks)
        real(self, function, tasks, *more)

    monkeypatch.setattr(Workers, "run", noted)
    convert(_options(cluster, tmp_path / "in", tmp_path / "A"))
    assert here == []
    monkeypatch.setattr(ray_engine, "run_unit", sightless_unit)
    convert(_options(cluster, tmp_path / "in", tmp_path / "B"))
    assert len(here) == 2
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B") == files_of(tmp_path / "wanted")
    (tmp_path / "in" / "a.jsonl").write_bytes(gzip.compress(lines.encode())[:-20])
    monkeypatch.undo()
    with pytest.raises(ConvertError, match=r"a\.jsonl.*the file was cut"):
        convert(_options(cluster, tmp_path / "in", tmp_path / "C"))


def test_splits_and_rows_from_python(cluster: LocalCluster, chat: Path, tmp_path: Path) -> None:
    ray_options = ["--engine", "ray", "--address", cluster.address]
    for name, more in (("local", ["--workers", "1"]), ("ray", ray_options)):
        out = str(tmp_path / name)
        command = ["convert", str(chat), "--out", out, "--split", "a=0.7,b=0.3", "--quiet", *more]
        assert CliRunner().invoke(main, command).exit_code == 0
    assert files_of(tmp_path / "ray" / "a") == files_of(tmp_path / "local" / "a")
    assert files_of(tmp_path / "ray" / "b") == files_of(tmp_path / "local" / "b")
    rows = [{"n": number, "raw": bytes(number)} for number in range(40)]
    convert_records(rows, tmp_path / "rows", engine="ray", address=cluster.address)
    convert_records(rows, tmp_path / "wanted", workers=1)
    assert files_of(tmp_path / "rows") == files_of(tmp_path / "wanted")


def test_the_command_and_its_errors(cluster: LocalCluster, chat: Path, tmp_path: Path) -> None:
    broken = write_lines(tmp_path / "broken.jsonl", [{"image": "no.png"}, {"image": "images/none.png"}])
    command = [
        "convert",
        str(broken),
        "--engine",
        "ray",
        "--address",
        cluster.address,
        "--task-memory",
        "64mb",
    ]
    done = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "A"), "--quiet"])
    assert done.exit_code == 1
    assert "no.png" in done.output
    assert "none.png" in done.output
    shown = dry_run(_options(cluster, chat, tmp_path / "B"))
    assert (shown.samples, shown.dry_run) == (600, True)
    assert not (tmp_path / "B").exists()


@pytest.mark.skipif(not can_hide(), reason="needs the right to make a mount namespace (root)")
def test_nodes_that_do_not_see_the_files(
    cluster: LocalCluster,
    s3: SeaweedServer,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mine = cluster.hidden
    (mine / "images").mkdir()
    (mine / "images" / "a.jpg").write_bytes(noise())
    uri = "data:image/jpeg;base64," + base64.b64encode(noise(seed=1)).decode()
    inline = write_lines(
        mine / "inline.jsonl", [{"id": i, "image": uri, "text": "t" * 300} for i in range(300)]
    )
    files = write_lines(mine / "files.jsonl", [{"id": i, "image": "images/a.jpg"} for i in range(300)])
    local = tmp_path / "A"
    run(inline, local, **_OPTIONS)
    store = {"storage_options": s3.storage_options}
    with pytest.raises(ConvertError, match="not every node of the Ray cluster can write") as caught:
        convert(_options(cluster, inline, mine / "A"))
    assert "does not see it" in str(caught.value)
    assert "s3://" in str(caught.value)
    out, notes = f"{s3.make_bucket()}/A", Notes()
    convert(_options(cluster, inline, out, work_dir=str(mine), **store), notes)
    assert any("sent from this machine" in note for note in notes.notes)
    # Nothing is counted as missing because a node did not see it.
    with pytest.raises(ConvertError, match=r"images in .*hidden.*does not see this folder"):
        convert(
            _options(cluster, files, f"{s3.make_bucket()}/B", work_dir=str(mine), on_error="skip", **store)
        )
    there = open_store(out, storage_options=s3.storage_options)
    assert {name: there.read(name) for name in there.list()} == {
        path.name: path.read_bytes() for path in local.iterdir()
    }
    said = capfd.readouterr()
    for secret in map(str, s3.storage_options.values()):
        if len(secret) > 6 and not secret.startswith("http"):
            assert secret not in said.out + said.err


def test_what_a_task_carries_is_not_shown() -> None:
    from streamshard.convert.ray_node import Sealed

    assert "sesame" not in repr(Sealed("scan", {"key": "open sesame"}))
    assert Sealed("scan", {"key": "open sesame"}).opened() == ("scan", {"key": "open sesame"})


def test_a_connection_of_its_own_and_no_cluster_there(
    cluster: LocalCluster, chat: Path, wanted: dict[str, str], tmp_path: Path
) -> None:
    import ray

    with pytest.raises(ConvertError, match=r"connected to the Ray cluster at"):
        convert(_options(cluster, chat, tmp_path / "A", address="127.0.0.1:1"))
    ray.shutdown()
    try:
        with pytest.raises(ConvertError, match=r"no Ray cluster answers there.*ray start --head"):
            convert(_options(cluster, chat, tmp_path / "A", address="127.0.0.1:1"))
        convert(_options(cluster, chat, tmp_path / "A"))
        assert not ray.is_initialized()
    finally:
        cluster.connect()
    assert files_of(tmp_path / "A") == wanted
