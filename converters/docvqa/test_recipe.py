"""The contract of recipes, on drawn pages."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestDocVqa(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 2, "val": 2, "test": 2}
    first = {
        "image": (HERE / "fixtures" / "spdocvqa_images" / "abcd0001_1.png").read_bytes(),
        "document": "abcd0001",
        "questions": [
            {
                "question_id": 337,
                "question": "What date?",
                "answers": ["1/8/93"],
                "types": ["handwritten", "form"],
            },
            {
                "question_id": 339,
                "question": "Where?",
                "answers": ["1/8/93"],
                "types": ["handwritten", "form"],
            },
        ],
    }
