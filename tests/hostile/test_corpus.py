"""Every dataset of the corpus of malformed ones: named errors for whoever meets it, in bounded memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile_corpus import CASES, Case, write_corpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets address space limits"),
]


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What reading, verifying, repairing and so on came to, in one process of little memory."""
    folder = tmp_path_factory.mktemp("hostile") / "corpus"
    write_corpus(folder)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hostile_visit", str(folder)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not (folder / "pickle" / "ran").exists()
    return {each["name"]: each for each in found}


def test_the_sound_dataset_beside_them_is_read_in_all_ways(visits: dict[str, dict[str, Any]]) -> None:
    good = visits["good"]
    assert good["read"] == good["stream"] == ["", 30]
    assert good["verify"] == good["headers"] == ["", []]
    assert good["repair"] == ["", [True, True, 0]]
    assert good["merge"] == ["", None]
    assert good["convert"][0] == "ConvertError"
    assert good["overwrite"] == ["", 1]


def test_each_way_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 90


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_whoever_meets_it_gets_a_named_error(case: Case, visits: dict[str, dict[str, Any]]) -> None:
    visit = visits[case.name]
    for way in ("read", "stream"):
        assert visit[way][0] in case.errors or way == "stream", visit[way]
        assert visit[way][2], f"{way}: {visit[way]}"
    assert re.search(case.words, visit["read"][1]), visit["read"]
    for way in ("verify", "headers"):
        assert visit[way][0] == "", visit[way]
    assert bool(visit["verify"][1]) == case.verify_finds
    for way in ("repair", "merge", "convert", "overwrite"):
        # merge_index says with a ValueError that there is nothing to merge.
        assert visit[way][0] in ("", "ValueError" if way == "merge" else "") or visit[way][2], visit[way]
    assert visit["outside"] == [True, True]
    if not visit["repair"][0]:
        is_done, is_sound, _ = visit["repair"][1]
        assert is_sound or not is_done or not case.verify_finds
