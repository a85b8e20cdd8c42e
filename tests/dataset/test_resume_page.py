"""The example of docs/explanation/resume.md is the state of a real run, and what the page says of it is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streamshard import Stream, StreamingDataLoader, StreamingDataset
from tests.support.pretended_ranks import numbers, write_numbers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "resume.md"
SIZES = {"web": [100] * 5, "code": [40] * 8, "math": [25] * 6}


def loader_of(root: Path, weights: dict[str, float]) -> StreamingDataLoader:
    streams = [Stream(local=root / name, name=name, proportion=weight) for name, weight in weights.items()]
    dataset = StreamingDataset(
        streams=streams, shuffle=True, shuffle_seed=42, global_batch_size=32, epoch_size=1000
    )
    return StreamingDataLoader(dataset, collate_fn=numbers)


def after(loader: StreamingDataLoader, steps: int) -> dict[str, Any]:
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    return loader.state_dict()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("page")
    for number, (name, sizes) in enumerate(SIZES.items()):
        (root / name).mkdir()
        write_numbers(root / name, sizes, first=1000 * number)
    before = loader_of(root, {"web": 0.7, "code": 0.3})
    before.dataset.set_epoch(2)
    first = after(before, 20)
    then = loader_of(root, {"web": 0.5, "math": 0.5})
    then.load_state_dict(first)
    return [first, after(then, 5)]


def test_the_state_on_the_page_is_the_one_of_the_run_that_it_tells_of(states: list[dict[str, Any]]) -> None:
    found = re.search(r"<!-- example: a state -->\n```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    shown = json.loads(found.group(1))
    assert shown == states[1]
    assert list(shown) == list(states[1])


def test_every_key_and_column_is_explained(states: list[dict[str, Any]]) -> None:
    text = PAGE.read_text("utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(states[1]) - {"columns"} <= explained
    assert set(states[1]["columns"]) <= explained


def test_a_state_is_as_small_as_the_page_says(states: list[dict[str, Any]]) -> None:
    for state in states:
        streams = len(state["streams"]) + len(state.get("gone", []))
        assert len(json.dumps(state)) <= 1024 + 96 * streams
