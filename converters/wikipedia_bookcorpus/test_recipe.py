"""The contract of recipes, on a few texts."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestWikipediaBookCorpus(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures"), "sentences": "2"}
    counts = {"train": 3, "validation": 1}
    first = {"text": "Bread is baked 0.", "title": "Bread", "source": "wikipedia"}
