"""The contract of recipes, on drawn pictures."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestVqaV2(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 2, "val": 1}
    first = {
        "image": (HERE / "fixtures" / "train2014" / "COCO_train2014_000000000005.jpg").read_bytes(),
        "image_id": 5,
        "questions": [
            {"question_id": 5001, "question": "Is it round?", "answer": "no", "answers": ["no", "no"]}
        ],
    }
