"""The contract of recipes, on drawn pictures, in both layouts."""

from __future__ import annotations

from pathlib import Path

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


class TestFolders(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures" / "folders")}
    counts = {"train": 3, "val": 2}
    first = {
        "image": (HERE / "fixtures" / "folders" / "train" / "n01440764" / "n01440764_18.JPEG").read_bytes(),
        "label": 0,
        "synset": "n01440764",
    }


class TestListed(TestFolders):
    options = {"root": str(HERE / "fixtures" / "listed")}
