"""The contract of recipes, on drawn pictures."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestLlava(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"pretrain": 1, "instruct": 2}
    first = {
        "id": "000000001",
        "image": (HERE / "fixtures" / "00000" / "000000001.jpg").read_bytes(),
        "conversations": [
            {"from": "human", "value": "What is this?\n<image>"},
            {"from": "gpt", "value": "A square."},
        ],
    }
