"""``streamshard repair``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from streamshard.cli.main import main
from tests.support import damage
from tests.support.small_datasets import text_samples, write_dataset


def repair(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["repair", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_nothing_to_do(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35))
    code, out, _ = repair(tmp_path)
    assert code == 0
    assert out.splitlines()[-1] == "nothing to do"


def test_the_ids_that_are_lost_are_listed(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35))
    for row in (2, 3, 7):
        damage.spoil_row(tmp_path, 1, row)
    code, out, _ = repair(tmp_path, "--dry-run")
    assert code == 0
    assert "lost: 3 samples: 12-13, 17" in out
    assert out.splitlines()[-1] == "nothing was changed (--dry-run)"
    code, out, _ = repair(tmp_path, "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["num_lost"], document["repairs"][0]["lost"]) == (3, [[12, 14], [17, 18]])
    assert repair(tmp_path)[1].endswith("nothing to do\n")


def test_from_an_origin_and_what_is_left_undecided(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", text_samples(35))
    shutil.copytree(tmp_path / "d", tmp_path / "origin")
    damage.flip_bit(tmp_path / "d", 2)
    damage.remove_index(tmp_path / "d")
    code, out, _ = repair(tmp_path / "d", "--from", tmp_path / "origin", "--dry-run")
    assert code == 0
    assert "fetched: 'shard.00002.mds' fetched from the origin" in out
    shutil.copy(tmp_path / "origin" / "index.json", tmp_path / "d")
    code, out, _ = repair(tmp_path / "d")
    assert code == 1
    assert "undecided: 'shard.00002.mds' is not what was written" in out
    assert out.splitlines()[-1] == "nothing was done"
    assert repair(tmp_path / "d", "--from", tmp_path / "origin")[0] == 0


def test_errors_are_one_paragraph(tmp_path: Path) -> None:
    code, _, err = repair(tmp_path)
    assert code == 1
    assert err.startswith("error: ")
    assert repair("s3://bucket/x", "--unproven", "keep")[0] == 1
    assert repair(tmp_path, "--unproven", "maybe")[0] == 2
