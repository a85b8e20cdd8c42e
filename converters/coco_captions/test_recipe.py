"""The contract of recipes, on drawn pictures."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestCocoCaptions(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 2, "val": 1}
    first = {
        "image": (HERE / "fixtures" / "train2017" / "000000000009.jpg").read_bytes(),
        "image_id": 9,
        "captions": ["A green square."],
    }
