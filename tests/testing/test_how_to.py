"""The wrappers of the how-to page: its code runs as it stands, and their states are those of what was handed over."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard.testing import assert_resumes_exactly
from tests.support.loading import numbers_of, text_dataset

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "resume-tests.md"
SAMPLES = 39


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the page's code defines, with a dataset where it expects one."""
    directory = tmp_path_factory.mktemp("page")
    text_dataset(directory / "texts", SAMPLES)
    here = Path.cwd()
    os.chdir(directory)
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), names)
    yield names
    os.chdir(here)


def test_the_tests_of_the_page_pass(page):
    tests = [name for name in page if name.startswith("test_")]
    assert len(tests) == 3
    for name in tests:
        page[name]()


def received(loader: Any, batches: int | None = None) -> list[int]:
    numbers = []
    for number, batch in enumerate(loader, 1):
        numbers += numbers_of(batch)
        if number == batches:
            break
    return numbers


def test_b135_a_wrapper_that_drops_every_third_sample_has_the_state_of_what_it_handed_over(page):
    everything = received(page["make_loader"]())
    expected = [number for place, number in enumerate(everything) if place % 3 != 2]
    assert len(expected) == 26
    for batches in range(1, 10):
        first = page["make_wrapped_loader"]()
        before = received(first, batches)
        state = json.loads(json.dumps(first.state_dict()))
        assert state["seen"] == state["loader"]["position"] == 4 * batches
        rest = page["make_wrapped_loader"]()
        rest.load_state_dict(state)
        assert rest.state_dict() == state
        assert before + received(rest) == expected


def test_b135_the_state_of_what_is_read_ahead_is_refused(page):
    class Careless(page["ReadAhead"]):  # type: ignore[misc]
        def state_dict(self) -> Any:
            return self.loader.state_dict()

    def make_loader() -> Any:
        return Careless(page["EveryThirdDropped"](page["make_loader"]()), count=4)

    with pytest.raises(AssertionError, match="the state is 4 ahead"):
        assert_resumes_exactly(make_loader, epochs=1)


def test_b129_a_state_saved_right_after_a_load_is_the_one_that_was_loaded(page):
    loader = page["make_loader"]()
    received(loader, 3)
    state = loader.state_dict()
    again = page["make_loader"]()
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state == again.state_dict()
