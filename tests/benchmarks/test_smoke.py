"""Each benchmark runs, small, and compares what its parties produced. No claim about time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import bench_read, bench_replication, bench_scale
from benchmarks.__main__ import BENCHMARKS, main, run
from benchmarks.contest import Contest, MismatchError, Party, Setting, hold
from benchmarks.digest import digest_of_samples
from benchmarks.peers import interpreters

SAMPLES = {
    "text": 300,
    "blob": 12,
    "access": 300,
    "order": 20_000,
    "quality": 320,
    "scale": 20,
    "write": 40,
    "start": 1,
    "convert": 30,
    "replication": 40,
}


def test_a_size_is_known_for_every_benchmark() -> None:
    assert set(SAMPLES) == set(BENCHMARKS)


# One whole benchmark starts some sixty processes that import torch: its first table is enough.
_ALONE = [name for name in BENCHMARKS if name not in ("replication", "scale")]


@pytest.mark.slow
def test_replication_runs_on_text(tmp_path: Path) -> None:
    setting = Setting({}, 1, tmp_path, SAMPLES["replication"])
    result = hold(next(bench_replication.replication(setting)), setting)
    _check([result])
    fetched = [party["median"]["fetched_mib"] for party in result["parties"].values()]
    assert 4 * fetched[0] == pytest.approx(fetched[1])


@pytest.mark.slow
def test_scale_runs_but_for_its_spawned_workers(tmp_path: Path) -> None:
    setting = Setting({}, 1, tmp_path, SAMPLES["scale"])
    chosen = [contest for contest in bench_scale.scale(setting) if "spawn" not in contest.title]
    assert len(chosen) == 5
    results = [hold(contest, setting) for contest in chosen]
    for result in results:
        for party in result["parties"].values():
            party["median"].pop("above_mb", None)  # so few shards need no more memory than one does
    _check(results)


@pytest.mark.parametrize("name", _ALONE)
def test_benchmark_runs_without_peers(name: str, tmp_path: Path) -> None:
    _check(run([name], Setting({}, 1, tmp_path, SAMPLES[name])))


@pytest.mark.mosaic
@pytest.mark.slow
@pytest.mark.parametrize("name", _ALONE)
def test_benchmark_runs_beside_mosaicml_streaming(name: str, tmp_path: Path) -> None:
    python = os.environ.get("STREAMSHARD_MOSAIC_PYTHON")
    if not python:
        pytest.skip("needs STREAMSHARD_MOSAIC_PYTHON, see python -m benchmarks setup")
    results = run([name], Setting(interpreters([python], None), 1, tmp_path, SAMPLES[name]))
    _check(results)
    assert any("mosaicml-streaming" in result["versions"] for result in results)


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
    assert f"| {results[0]['title']} |" in capsys.readouterr().out


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="unknown peer 'nobody'"):
        interpreters(["nobody=/bin/sh"], None)


def test_products_that_differ_are_refused(tmp_path: Path) -> None:
    parties = [
        Party(
            f"of {n}",
            "access_streamshard",
            options={"directory": str(bench_read.dataset(tmp_path, "text", n))},
        )
        for n in (20, 400)
    ]
    contest = Contest("t", "benchmarks.bench_read", parties, "samples_per_s", True, {"accesses": 20})
    with pytest.raises(MismatchError, match="products differ"):
        hold(contest, Setting({}, 1, tmp_path))


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
