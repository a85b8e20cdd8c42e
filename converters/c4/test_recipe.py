"""The contract of recipes, on a few texts."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestC4(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 3, "validation": 1}
    first = {
        "text": "Bread rises.\nThen it is baked.",
        "timestamp": "2019-04-25T12:57:54Z",
        "url": "https://example.org/0",
    }
