"""The contract of recipes, on drawn pictures."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestShareGpt4v(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"captions": 2, "pretrain": 2, "instruct": 2}
    first = {
        "id": "000000000009",
        "image": (HERE / "fixtures" / "coco" / "train2017" / "000000000009.jpg").read_bytes(),
        "conversations": [
            {"from": "human", "value": "Describe it.\n<image>"},
            {"from": "gpt", "value": "A red box, 000000000009."},
        ],
    }


class TestWithoutSam(TestShareGpt4v):
    options = {"root": str(HERE / "fixtures"), "without": "sam/"}
    counts = {"captions": 1, "pretrain": 1, "instruct": 1}
