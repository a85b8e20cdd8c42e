"""Each benchmark runs, small, and compares what its parties produced. No claim about time."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import (
    bench_cloud,
    bench_images,
    bench_planning,
    bench_replication,
    bench_scale,
    bench_streams,
)
from benchmarks.__main__ import ALONE, BENCHMARKS, main, run
from benchmarks.child import FailedError, call
from benchmarks.contest import Contest, MismatchError, Party, Setting, hold
from benchmarks.digest import digest_of_samples
from benchmarks.generate import dataset
from benchmarks.growth_picture import PANELS, draw
from benchmarks.peers import interpreters
from benchmarks.summary import BEGIN, END, summarize
from benchmarks.table import render
from tests.support.nursery import Nursery

SAMPLES = {
    "text": 300,
    "columns": 300,
    "text-workers": 300,
    "blob": 12,
    "blob-workers": 40,
    "access": 300,
    "pictures": 40,
    "resume": 320,
    "epochs": 64,
    "order": 20_000,
    "quality": 320,
    "scale": 20,
    "streams": 16,
    "write": 40,
    "start": 1,
    "growth": 64,
    "convert": 30,
    "replication": 40,
    "cloud": 64,
    "images": 8,
    "planning": 400,
}


def test_a_size_is_known_for_every_benchmark() -> None:
    assert set(SAMPLES) == set(BENCHMARKS)


_BESIDE_PEERS = [name for name in BENCHMARKS if name not in ALONE]
_WITH_WORKERS = ("text-workers", "blob-workers", "pictures", "resume", "epochs", "growth")


@pytest.fixture
def _forked(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our parties run in copies of a process that has what they import, a peer's once for both of its turns.

    One that has nothing yet is tested below.
    """
    measured: dict[str, Any] = {}

    def called(
        python: str, module: str, function: str, options: Mapping[str, Any], *, limit_s: float | None = None
    ) -> Any:
        work = {"module": module, "function": function, "options": dict(options)}
        if python != sys.executable:
            if not options.get("check"):
                return measured.pop(function, None) or call(
                    python, module, function, options, limit_s=limit_s
                )
            found, measured[function] = call(
                python, "tests.support.measuring", "measure_twice", work, limit_s=limit_s
            )
            return found
        outcome = nursery.run("measuring.measure", work)
        if outcome.error:
            raise FailedError(outcome.printed)
        return outcome.result

    monkeypatch.setattr("benchmarks.contest.call", called)


@pytest.mark.usefixtures("_forked")
@pytest.mark.slow
def test_replication_runs_on_text(tmp_path: Path) -> None:
    setting = Setting({}, 1, tmp_path, SAMPLES["replication"])
    result = hold(next(bench_replication.replication(setting)), setting)
    _check([result])
    fetched = [party["median"]["fetched_mib"] for party in result["parties"].values()]
    assert 4 * fetched[0] == pytest.approx(fetched[1])


@pytest.mark.usefixtures("_forked")
@pytest.mark.s3
@pytest.mark.slow
def test_cloud_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and with fewer ranks."""
    monkeypatch.setattr(bench_cloud, "RANKS", 2)
    monkeypatch.setattr(
        "benchmarks.contest.call", lambda _, module, name, options, **__: _called(module, name, options)
    )
    setting = Setting({}, 1, tmp_path, SAMPLES["cloud"])
    results = [hold(contest, setting) for contest in bench_cloud.cloud(setting)]
    assert len(results) == 5
    _check(results)
    told = summarize(results)
    assert ", cold where it says cloud;" in told
    assert re.search(r"\| cloud: waste \| streamshard: times_needed \| 1\S* \| ≤ 1.02 \|", told)


def _called(module: str, name: str, options: dict[str, Any]) -> Any:
    return getattr(import_module(module), name)(**options)


@pytest.mark.usefixtures("_forked")
@pytest.mark.s3
@pytest.mark.slow
def test_images_run(tmp_path: Path) -> None:
    setting = Setting({}, 1, tmp_path, SAMPLES["images"])
    results = [hold(contest, setting) for contest in bench_images.images(setting)]
    _check(results)
    requests = [[party["median"]["requests"] for party in each["parties"].values()] for each in results]
    # One for each image; the serial loop measures fewer images, and asks twice for each in a bucket.
    assert requests == [[8, 8, 2], [8, 8, 1]]


def test_planning_runs(tmp_path: Path) -> None:
    setting = Setting({}, 1, tmp_path, SAMPLES["planning"])
    asked = next(bench_planning.planning(setting))
    measured = bench_planning.planned(**asked.options)
    assert measured["peak_private_mb"] > 1
    lines = (tmp_path / "lines-400.jsonl").read_text().splitlines(keepends=True)
    assert {len(line) for line in lines} == {200}
    assert [json.loads(line)["id"] for line in lines] == [f"line-{number:09}" for number in range(400)]


@pytest.mark.usefixtures("_forked")
@pytest.mark.slow
def test_scale_runs_but_for_its_spawned_workers(tmp_path: Path) -> None:
    setting = Setting({}, 1, tmp_path, SAMPLES["scale"])
    chosen = [contest for contest in bench_scale.scale(setting) if "spawn" not in contest.title]
    assert len(chosen) == 4
    results = [hold(contest, setting) for contest in chosen]
    for result in results:
        for party in result["parties"].values():
            party["median"].pop("above_mb", None)  # so few shards need no more memory than one does
    _check(results)


def test_streams_of_any_number_have_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSHARD_CACHE", "")  # set by each party
    for contest in bench_streams.streams(Setting({}, 1, tmp_path, SAMPLES["streams"])):
        work = getattr(bench_streams, contest.parties[0].function)
        parties = [party for party in contest.parties if "files" not in party.options]
        assert [len(party.options["folders"]) for party in parties] == [4, 1, 1]
        options = [{**contest.options, **party.options} for party in parties]
        products = [work(**each, check=True) for each in options]
        assert products[0] == products[1] == products[2]
        measured = work(**options[0])
        measured.pop("private_mb", None)  # of this process, which frees what other tests have left meanwhile
        assert all(value >= 0 for value in measured.values())


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")  # growth, on few cores
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in _WITH_WORKERS)) for name in _BESIDE_PEERS],
)
def test_our_parties_do_the_same_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: what starting one for each party adds is tested with the command, below."""
    for attribute in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, attribute, getattr(os, attribute))  # one party puts nothing in their place
    contests = 0
    for contest in BENCHMARKS[name](Setting({}, 1, tmp_path, SAMPLES[name])):
        assert isinstance(contest, Contest)
        agreed: dict[str, str] = {}
        for party in contest.parties:
            function = getattr(import_module(contest.module), party.function)
            if party.peer is not None:
                continue
            options = {**contest.options, **party.options}
            for key, digest in (function(**options, check=True) if contest.checked else {}).items():
                assert agreed.setdefault(key, digest) == digest, (party.name, key)
            if party is contest.parties[0]:
                measured = function(**options, **({"check": False} if contest.checked else {}))
                assert measured[contest.metric] >= 0
        assert bool(agreed) == contest.checked
        contests += 1
    assert contests


def test_quality_runs_without_peers(tmp_path: Path) -> None:
    _check(run(["quality"], Setting({}, 1, tmp_path, SAMPLES["quality"])))


@pytest.mark.usefixtures("_forked")
@pytest.mark.mosaic
@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "access", "write", "convert"])
def test_benchmark_runs_beside_mosaicml_streaming(name: str, tmp_path: Path) -> None:
    python = os.environ.get("STREAMSHARD_MOSAIC_PYTHON")
    if not python:
        pytest.skip("needs STREAMSHARD_MOSAIC_PYTHON, see python -m benchmarks setup")
    setting = Setting(interpreters([python], None), 1, tmp_path, SAMPLES[name])
    contests = BENCHMARKS[name](setting)
    # The first: those after it only have other samples or no peer. Its files are there as long as the generator is.
    result = hold(next(contests), setting)
    _check([result])
    assert "mosaicml-streaming" in result["versions"]


@pytest.mark.slow
@pytest.mark.parametrize("name", _BESIDE_PEERS)
def test_benchmark_runs_beside_all_peers(name: str, tmp_path: Path) -> None:
    directory = os.environ.get("STREAMSHARD_PEERS")
    if not directory:
        pytest.skip("needs STREAMSHARD_PEERS, a directory made by python -m benchmarks setup")
    found = interpreters([], Path(directory))
    _check(run([name], Setting(found, 1, tmp_path, SAMPLES[name])))


def test_the_command_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    main(["order", "--samples", "20000", "--runs", "2", "--json", str(out)])
    results = json.loads(out.read_text())
    assert [len(party["runs"]) for party in results[0]["parties"].values()] == [2, 2]
    assert results[0]["machine"]["cores"] >= 1
    measured = capsys.readouterr().out
    main(["table", str(out)])
    assert capsys.readouterr().out.strip() == measured.strip()
    main(["summary", str(out)])
    assert f"| {results[1]['title']} |" in capsys.readouterr().out


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="unknown peer 'nobody'"):
        interpreters(["nobody=/bin/sh"], None)


def _unlike(tmp_path: Path) -> Contest:
    """The second party is given other samples than the first; the third one fails."""
    parties = [
        Party(
            name,
            "time_access",
            options={"party": party, "count": count, "directory": str(tmp_path), "kind": "text"},
        )
        for name, party, count in (
            ("good", "streamshard", 20),
            ("other", "streamshard", 40),
            ("bad", "no", 20),
        )
    ]
    for count in (20, 40):
        dataset(tmp_path, "text", count)
    return Contest("t", "benchmarks.timing", parties, "samples_per_s", True, {"accesses": 20}, work="w")


def test_products_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="other: products differ"):
        hold(_unlike(tmp_path), Setting({}, 1, tmp_path))


def test_a_party_that_fails_is_left_out_and_the_result_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = hold(_unlike(tmp_path), Setting({}, 2, tmp_path, keep_going=True))
    assert list(result["parties"]) == ["good"]
    assert len(result["parties"]["good"]["runs"]) == 2
    assert "products differ" in result["failed"]["other"]
    assert "No module named 'benchmarks.parties.of_no'" in result["failed"]["bad"]
    assert "bad is left out" in capsys.readouterr().err
    assert "- bad: exit status 1" in render(result)
    assert "of_no'" in summarize([result])


def test_a_party_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        "def sleep(mark):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    pathlib.Path(mark).write_text(str(child.pid))\n"
        "    time.sleep(600)\n"
    )
    mark = tmp_path / "child"
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={quote(str(tmp_path))} exec {quote(sys.executable)} "$@"\n')
    wrapper.chmod(0o755)
    with pytest.raises(FailedError, match="took more than 3 s"):
        call(str(wrapper), "sleeper", "sleep", {"mark": str(mark)}, limit_s=3)
    if mark.exists() and mark.read_text():  # on a busy machine its time was over before it had begun
        while _runs(int(mark.read_text())):
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_results_that_are_there_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    main(["order", "--samples", "20000", "--runs", "1", "--json", str(out)])
    first = json.loads(out.read_text())
    out.write_text(json.dumps(first[:1]))
    main(["order", "--samples", "20000", "--runs", "1", "--json", str(out), "--resume"])
    assert "there already" in capsys.readouterr().err
    again = json.loads(out.read_text())
    assert again[0] == first[0]
    assert [result["title"] for result in again] == [result["title"] for result in first]


def test_a_page_gets_the_tables_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    result = {
        "work": "w", "title": "w: 3", "metric": "samples_per_s", "not_measured": ["zephon"],
        "machine": {"cores": 2, "cpu": "c", "memory_gib": 1, "file_system": "f", "load_before": 0.1},
        "date": "d", "commit": "abc", "versions": {"streamshard": {"python": "3.11"}},
        "parties": {
            "streamshard": {"median": {"samples_per_s": 300.0, "added_ms": 7.0}},
            "litdata, not shuffled": {"median": {"samples_per_s": 100.0}},
            "bare loop": {
                "median": {
                    "samples_per_s": 900.0, "samples": 20_000, "bytes": 815_243_599,
                    "seconds": 1.25, "cpu_s_per_million": 106.0,
                }
            },
        },
        "ratios": {
            "streamshard / litdata, not shuffled": {"median": 3.0, "least": 2.0, "most": 4.0},
            "streamshard / bare loop": {"median": 0.333, "least": 0.3, "most": 0.4},
        },
        "goals": {"litdata, not shuffled": 2, "bare loop": 0.7},
        "bounds": {"streamshard": ["added_ms", 5.0]},
        "unable": {"webdataset": "cannot"},
    }  # fmt: skip
    results = tmp_path / "results.json"
    results.write_text(json.dumps([result]))
    main(["summary", str(results), "--into", str(page)])
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| w: 3 | samples/s | 300 | – | 100 (not shuffled) | – | – | bare loop: 900 |" in text
    assert "| w | litdata, not shuffled | **3** (2 to 4) | 2 | reached |" in text
    assert "| w | bare loop | **0.333** (0.3 to 0.4) | 0.7 | **not reached** |" in text
    assert "| w | streamshard: added_ms | 7 | ≤ 5 | **not reached** |" in text
    assert "| w | bare loop | 20,000 | 815,243,599 | 1.25 | 2.12 |" in text
    assert text.count("| CPU s |") == 1
    assert "- webdataset: cannot (w)" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match=r"page\.md has no line"):
        main(["summary", str(results), "--into", str(page)])


def test_growth_is_drawn() -> None:
    results = [
        {
            "axis": [axis, at],
            "parties": {"streamshard": {"median": {metric: 10.0 * at}}},
        }
        for axis, (_, metric) in PANELS.items()
        for at in (1, 2)
    ]
    drawn = ElementTree.fromstring(draw(results))
    assert len(drawn.findall("{*}polyline")) == 8
    assert len(drawn.findall("{*}rect")) == 1 + 4


def test_digest_knows_content_and_not_order() -> None:
    first, second = {"a": 1, "b": "x"}, {"a": 2, "b": "y"}
    assert digest_of_samples([first, second]) == digest_of_samples([second, first])
    others = [[first], [first, first], [first, {"a": 2, "b": b"y"}], [first, {"a": True, "b": "y"}]]
    assert all(digest_of_samples(other) != digest_of_samples([first, second]) for other in others)


def _check(results: list[dict[str, object]]) -> None:
    assert results
    for result in results:
        if "rows" in result:
            assert {row["party"] for row in result["rows"]} == set(result["versions"])
            json.dumps(result, allow_nan=False)
            continue
        parties = result["parties"]
        assert isinstance(parties, dict)
        assert all(value >= 0 for party in parties.values() for value in party["median"].values())
        assert result["machine"]
        json.dumps(result)
