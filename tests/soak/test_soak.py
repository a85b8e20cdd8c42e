"""A soak of seconds, and whether a soak would see what it looks for."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.soak.faults import RandomFaults
from tests.soak.flatness import trend_of
from tests.soak.run import WAYS, Link, Scale, Soak, allowed_growth
from tests.support.seaweedfs import SeaweedServer
from tests.support.tiers import TIMES


@pytest.mark.slow
def test_a_short_soak_reads_every_sample_once(s3: SeaweedServer, tmp_path: Path) -> None:
    scale = Scale(sizes=(300, 200), limit=20 << 10, timeout_s=9.0)
    summary = Soak(s3, tmp_path, 5, say=print, scale=scale).run(5 * TIMES)
    assert summary["wrong"] == []
    assert summary["links"] >= 1
    assert (
        summary["samples_of_whole_epochs"]
        == (summary["steady_epochs"] + summary["chain_epochs"]) * scale.num_samples
    )
    assert summary["steady_epochs"] > 0
    assert sum(summary["faults"].values()) > 0


class Unused:
    """Stands for a server that nobody asks."""

    def make_bucket(self) -> str:
        return "s3://none"


@pytest.mark.parametrize("spoil", ["once more", "never", "another"])
def test_an_epoch_that_is_not_each_sample_once_is_seen(spoil: str, tmp_path: Path) -> None:
    server: Any = Unused()
    soak = Soak(server, tmp_path, 1, say=lambda _: None)
    numbers = list(range(Scale().num_samples))
    soak._check_epoch("sound", numbers)
    assert soak.outcome.ok
    soak._check_epoch(
        "spoilt", {"once more": [*numbers, 7], "never": numbers[1:], "another": [*numbers[1:], 5]}[spoil]
    )
    assert not soak.outcome.ok


@pytest.mark.parametrize("epochs", [12, 400])
@pytest.mark.parametrize(("name", "noise", "leak"), [("MB", 3.0, 8.0), ("descriptors", 1.0, 4.0)])
def test_what_grows_is_told_from_what_wavers(epochs: int, name: str, noise: float, leak: float) -> None:
    rng = random.Random(epochs)
    flat = [50 + 40 * (number < epochs // 8) + rng.uniform(-noise, noise) / 2 for number in range(epochs)]
    grows = [value + leak * number / epochs for number, value in enumerate(flat)]
    assert trend_of(flat).is_flat(allowed_growth(name, trend_of(flat)))
    if epochs > 12:
        assert not trend_of(grows).is_flat(allowed_growth(name, trend_of(grows)))


def test_a_chain_is_what_its_seed_says() -> None:
    links = [Link.draw(7, number) for number in range(60)]
    assert links == [Link.draw(7, number) for number in range(60)]
    assert links[1:] != [Link.draw(8, number) for number in range(59)]
    assert {link.way for link in links} == set(WAYS)
    assert all(link.workers for link in links if link.way == "worker")


def test_nobody_meets_two_faults_in_a_row() -> None:
    faults = RandomFaults("1")
    met = [faults("GET", "/a?part=1") is not None for _ in range(4000)]
    assert 300 < sum(met) < 600
    assert not any(one and next_one for one, next_one in itertools.pairwise(met))
