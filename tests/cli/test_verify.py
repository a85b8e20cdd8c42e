"""``streamshard verify``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from streamshard.cli.verify import command
from tests.support.small_datasets import text_samples, write_dataset


def verify(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_good_dataset_is_exit_0(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35))
    code, out, _ = verify(tmp_path)
    assert code == 0
    assert "0 problems in 4 shards, 35 samples (35 decoded)" in out
    assert out.splitlines()[-1] == "ok"
    assert "(0 decoded)" in verify(tmp_path, "--no-decode")[1]
    assert "35 decoded" in verify(tmp_path, "--workers", 2)[1]


def test_every_problem_is_listed_and_exit_1(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35))
    (tmp_path / "shard.00001.mds").unlink()
    os.truncate(tmp_path / "shard.00003.mds", 30)
    (tmp_path / "shard.00008.mds").write_bytes(b"")
    code, out, _ = verify(tmp_path)
    assert code == 1
    problems = [line for line in out.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 2
    assert "'shard.00001.mds'" in problems[0]
    assert "'shard.00003.mds'" in problems[1]
    assert "note: file 'shard.00008.mds' is not in the index" in out
    assert "ok" not in out.splitlines()
    code, out, _ = verify(tmp_path, "--json")
    assert code == 1
    document = json.loads(out)
    assert document["ok"] is False
    assert [problem["shard"] for problem in document["problems"]] == ["shard.00001.mds", "shard.00003.mds"]


def test_headers_only_says_so_and_deep_finds_the_rest(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35))
    content = bytearray((tmp_path / "shard.00001.mds").read_bytes())
    content[-3] ^= 1
    (tmp_path / "shard.00001.mds").write_bytes(content)
    code, out, _ = verify(tmp_path, "--headers")
    assert code == 0
    assert "4 headers checked" in out
    assert out.splitlines()[-1] == "ok, as far as sizes and headers tell"
    code, out, _ = verify(tmp_path, "--deep")
    assert code == 1
    assert "xxh64 is" in out


def test_no_index_is_a_problem_and_exit_1(tmp_path: Path) -> None:
    code, out, _ = verify(tmp_path / "nope")
    assert code == 1
    assert "does not exist" in out


def test_usage_errors_are_exit_2(tmp_path: Path) -> None:
    assert verify()[0] == 2
    assert verify(tmp_path, "--workers", 0)[0] == 2


def test_the_exit_code_and_the_closed_pipe_of_the_real_command(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35), samples_per_shard=1)
    for path in tmp_path.glob("*.mds"):
        path.write_bytes(b"")
    line = [sys.executable, "-m", "streamshard.cli.main", "verify", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("problem: ") == 35
    assert done.stderr == ""
    piped = subprocess.run(
        f"'{sys.executable}' -m streamshard.cli.main verify '{tmp_path}' | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert piped.stderr == ""
