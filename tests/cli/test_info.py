"""``streamshard info``."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streamshard.cli.info import command
from streamshard.storage import open_store
from tests.support.small_datasets import text_samples, write_dataset


def info(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_it_says_what_a_dataset_consists_of(tmp_path: Path) -> None:
    infos = write_dataset(tmp_path, text_samples(35), extra={"formats": {"PNG": 3}})
    code, out, _ = info(str(tmp_path))
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == str(tmp_path)
    assert "samples 35" in lines
    assert "shards 4" in lines
    nbytes = sum(shard.raw.nbytes for shard in infos)
    assert any(line.startswith(f"bytes {nbytes:,}") for line in lines)
    assert "compression none" in lines
    assert "hashes xxh64" in lines
    assert "number int 8 bytes" in lines
    assert "id str about 2 B" in lines
    assert any(line.startswith("shard samples least 5, median 10, mean 9, greatest 10") for line in lines)
    assert 'formats {"PNG": 3}' in lines


@pytest.mark.parametrize("compression", ["zstd:3", None])
@pytest.mark.parametrize("remote", [False, True], ids=["here", "elsewhere"])
def test_json_for_scripts(tmp_path: Path, compression: str | None, remote: bool) -> None:
    samples = [{"a": np.arange(3, dtype=np.int16), "b": b"x" * (4 * i), "c": i} for i in range(11)]
    columns = {"a": "ndarray:int16:3", "b": "bytes", "c": "int"}
    infos = write_dataset(tmp_path, samples, columns, samples_per_shard=11, compression=compression)
    place = str(tmp_path)
    if remote:
        place = f"memory://{uuid.uuid4().hex}"
        for path in tmp_path.iterdir():
            open_store(place).put(f"train/{path.name}", path)
    code, out, _ = info(place, "--json", *(["--split", "train"] if remote else []))
    assert code == 0
    document = json.loads(out)
    assert document["num_samples"] == 11
    assert document["compressions"] == {compression or "none": 1}
    assert document["compressed_nbytes"] == (infos[0].compressed.nbytes if infos[0].compressed else None)
    assert document["columns"] == [
        {"name": "a", "encoding": "ndarray:int16:3", "fixed": True, "nbytes": 6},
        {"name": "b", "encoding": "bytes", "fixed": False, "nbytes": 20.0},
        {"name": "c", "encoding": "int", "fixed": True, "nbytes": 8},
    ]
    assert document["guess_note"] is None


def test_a_missing_shard_still_lets_the_index_be_summed_up(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(5))
    (tmp_path / "shard.00000.mds").unlink()
    code, out, _ = info(str(tmp_path))
    assert code == 0
    assert "note: sizes of values are not known" in out
    assert "shard.00000.mds" in out


def test_b070_a_missing_index_is_one_paragraph_and_exit_1(tmp_path: Path) -> None:
    write_dataset(tmp_path / "train", text_samples(5))
    code, out, err = info(str(tmp_path))
    assert code == 1
    assert out == ""
    assert err.startswith("error: no index at ")
    assert "split='train'" in err
    assert err.count("\n") == 1


def test_usage_errors_are_exit_2(tmp_path: Path) -> None:
    assert info()[0] == 2
    assert info(str(tmp_path), "--nope")[0] == 2
    code, _, err = info(str(tmp_path), "--storage-option", "secret-without-key")
    assert code == 2
    assert "secret-without" not in err


def test_an_empty_dataset_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')
    code, out, _ = info(str(tmp_path))
    assert code == 0
    assert "samples 0 shards 0" in " ".join(out.split())


def test_costs_are_shown_with_their_mean(tmp_path: Path) -> None:
    costs = {"tokens": {"shards": [1000, 500], "total": 1500}, "chars": {"shards": [0, 0], "total": 0}}
    write_dataset(tmp_path, text_samples(20), extra={"costs": costs, "formats": {}})
    code, out, _ = info(str(tmp_path))
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "cost tokens 1,500, mean 75.0 a sample" in lines
    assert "cost chars 0, mean 0.0 a sample" in lines
    assert not any("shards" in line and "1000" in line for line in lines)
    document = json.loads(info(str(tmp_path), "--json")[1])
    assert document["costs"] == {"chars": 0, "tokens": 1500}
    assert document["extra"] == {"formats": {}}
