"""``streamshard merge``."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from streamshard import LocalDataset
from streamshard.cli.merge import command
from tests.support.small_datasets import text_samples, write_dataset


def merge(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_datasets_below_a_directory_become_one(tmp_path: Path) -> None:
    for name, count in (("b", 12), ("a/deep", 25)):
        write_dataset(tmp_path / name, text_samples(count))
    code, out, _ = merge(tmp_path)
    assert code == 0
    assert out.strip() == f"{tmp_path}: 37 samples in 5 shards"
    assert list(LocalDataset(tmp_path)) == text_samples(25) + text_samples(12)


def test_indexes_named_one_by_one_keep_that_order(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 4), ("c", 5)):
        write_dataset(tmp_path / name, text_samples(count))
    code, out, _ = merge(tmp_path, tmp_path / "c" / "index.json", tmp_path / "a" / "index.json")
    assert code == 0
    assert "8 samples in 2 shards" in out
    assert list(LocalDataset(tmp_path)) == text_samples(5) + text_samples(3)


def test_nothing_to_merge_is_exit_1(tmp_path: Path) -> None:
    code, out, err = merge(tmp_path)
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")


def test_a_cost_that_a_part_lacks_is_noted_and_the_rest_is_kept(tmp_path: Path) -> None:
    both = {"tokens": {"shards": [9], "total": 9}, "chars": {"shards": [5], "total": 5}}
    write_dataset(tmp_path / "a", text_samples(3), extra={"costs": both})
    write_dataset(tmp_path / "b", text_samples(3), extra={"costs": {"tokens": both["tokens"]}})
    code, out, err = merge(tmp_path)
    assert code == 0
    assert out.strip() == f"{tmp_path}: 6 samples in 2 shards"
    assert err == "note: merge_index: cost 'chars' is left out, since the index in 'b' lacks it\n"
    merged = json.loads((tmp_path / "index.json").read_text())
    assert merged["streamshard"] == {"costs": {"tokens": {"shards": [9, 9], "total": 18}}}
