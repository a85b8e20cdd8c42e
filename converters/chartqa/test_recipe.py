"""The contract of recipes, on drawn charts."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestChartQa(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 2, "val": 2, "test": 2}
    first = {
        "image": (HERE / "fixtures" / "train" / "png" / "10.png").read_bytes(),
        "questions": [{"question": "What is the value?", "answer": "8.5", "source": "augmented"}],
    }
