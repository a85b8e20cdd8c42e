"""A share of the fuzzing. The whole, more than a million inputs:
``STREAMSHARD_EXAMPLES=13 python -m pytest -m slow --timeout 0 tests/hostile/test_fuzz.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fuzzing import Finding, Target, fuzz
from tests.support.mutations import Mutator
from tests.support.tiers import TIMES

ROOT = Path(__file__).parents[2]


def run(inputs: int, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fuzzing", "--inputs", str(inputs), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=200 * max(1, TIMES),
        check=False,
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets address space limits")
@pytest.mark.parametrize("inputs", [4_000, pytest.param(round(80_000 * TIMES), marks=pytest.mark.slow)])
def test_malformed_bytes_give_a_value_or_the_named_error_in_little_memory(inputs: int) -> None:
    out = run(inputs, 7)
    lines = out.splitlines()
    assert len(lines) > 35
    refused = int(lines[-1].split()[2].replace(",", ""))
    assert inputs * 0.6 < refused < inputs * 0.95  # neither noise nor sound inputs


def test_another_error_is_found_and_shown_with_how_to_repeat_it() -> None:
    def run_short(content: bytes) -> None:
        if len(content) < 3:
            raise KeyError("found")

    with pytest.raises(
        Finding, match=r"short: KeyError: 'found'\ninput \(\d bytes\): b[\s\S]*--target short --seed 3, input"
    ):
        fuzz([Target("short", [b"a sound input"], run_short)], 5_000, 3)


def test_a_seed_gives_the_same_inputs_again() -> None:
    one, other = Mutator(5), Mutator(5)
    seeds = [b"abc" * 9, b"x" * 80]
    first = [one.mutate(seeds) for _ in range(300)]
    assert first == [other.mutate(seeds) for _ in range(300)]
    assert len(set(first)) > 250
