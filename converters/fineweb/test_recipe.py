"""The contract of recipes, on a few texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamshard.testing import RecipeContract

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'streamshard[parquet]'")
HERE = Path(__file__).parent


class TestFineWeb(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 3}
    first = {
        "text": "Bread rises.",
        "id": "<urn:uuid:000_00000-0>",
        "dump": "CC-MAIN-2024-10",
        "url": "https://example.org/0",
        "language_score": 0.9,
        "token_count": 2,
    }


class TestGoodEnglish(TestFineWeb):
    options = {"root": str(HERE / "fixtures"), "min_score": "0.7"}
    counts = {"train": 2}
