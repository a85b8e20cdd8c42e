"""Checks that users run in their own tests. Above every other floor: nothing in the package imports this."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "RecipeContract": "streamshard.testing.recipe",
    "assert_resumes_exactly": "streamshard.testing.resume",
}

__all__ = ["RecipeContract", "assert_resumes_exactly"]

if TYPE_CHECKING:
    from streamshard.testing.recipe import RecipeContract
    from streamshard.testing.resume import assert_resumes_exactly


def __getattr__(name: str) -> Any:
    # One of them needs torch, the other does not.
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'streamshard.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
