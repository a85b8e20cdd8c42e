"""The names that users import, and the error tree."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest

import streamshard
import streamshard.testing
from streamshard import errors

ROOT = Path(__file__).resolve().parents[1]


def test_all_lists_the_public_names_sorted():
    assert streamshard.__all__ == sorted(streamshard.__all__)
    for name in streamshard.__all__:
        assert getattr(streamshard, name).__name__ == name
        assert name in dir(streamshard)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'StreamingThing'"):
        streamshard.StreamingThing  # noqa: B018


def test_the_version_is_the_one_of_the_package():
    assert f'version = "{streamshard.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def every_error() -> list[type[Exception]]:
    return [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.StreamshardError)
    ]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_an_error_survives_the_way_out_of_a_worker(kind):
    # torch builds it anew from its text, multiprocessing pickles it.
    error = kind("shard 'x': found 1, expected 2")
    assert str(kind(str(error))) == str(error) == str(pickle.loads(pickle.dumps(error)))
    assert kind.__name__ in (errors.__doc__ or ""), "the tree at the top of errors.py lists every class"


@pytest.mark.parametrize("name", [*streamshard.__all__, *streamshard.testing.__all__])
def test_every_public_name_has_a_line_in_the_reference(name):
    assert f"`{name}" in (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
