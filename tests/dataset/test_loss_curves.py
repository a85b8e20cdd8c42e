"""A model learns the same, step by step, on any number of ranks and over a resume on more of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "explanation" / "loss_curves.svg"


def curves_in(svg: str) -> list[list[tuple[float, float]]]:
    """The points of each line in the upper panel that is no axis."""
    lines = re.findall(r'<polyline points="([^"]+)" fill="none" stroke="#(?!555555)', svg)
    points = [[tuple(map(float, pair.split(","))) for pair in each.split()] for each in lines]
    return [each for each in points if len(each) > 3 and max(down for _, down in each) <= 235]  # type: ignore[misc]


def test_the_picture_in_the_documentation_shows_curves_that_lie_on_each_other():
    text = PICTURE.read_text("utf-8")
    for name in ("1 rank", "2 ranks", "4 ranks", "8 ranks", "2, then 4 ranks", "8 ranks, unweighted"):
        assert f">{name}</text>" in text
    first, *others, unweighted = curves_in(text)
    assert len(others) == 4
    assert len(first) == 36
    assert all(other == first for other in others)
    assert unweighted != first


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_losses_agree_to_rounding_on_one_and_four_ranks_and_over_a_resume_from_two_to_four(tmp_path: Path):
    picture = tmp_path / "curves.svg"
    script = ROOT / "docs" / "tutorial" / "loss_curves.py"
    ran = subprocess.run(
        [sys.executable, script, "--ranks", "1", "4", "--epochs", "2", "--picture", picture],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = re.search(r"largest relative deviation from the run on 1 rank, at any step: (\S+)", ran.stdout)
    assert said is not None
    assert float(said.group(1)) < 1e-12
    wrong = re.search(r"without the weights, as a check of this check: (\S+)", ran.stdout)
    assert wrong is not None
    assert float(wrong.group(1)) > 1e-6
    assert len(curves_in(picture.read_text("utf-8"))) == 4
