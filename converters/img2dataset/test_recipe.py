"""The contract of recipes, on drawn pictures in tars."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO, cast

from streamshard.testing import RecipeContract

HERE = Path(__file__).parent


def picture(tar: str, name: str) -> bytes:
    with tarfile.open(HERE / "fixtures" / tar) as file:
        return cast(IO[bytes], file.extractfile(name)).read()


class TestImg2Dataset(RecipeContract):
    recipe = HERE / "recipe.py"
    options = {"root": str(HERE / "fixtures")}
    counts = {"train": 3}
    first = {
        "key": "000000000",
        "image": picture("00000.tar", "000000000.jpg"),
        "caption": "a square of 8",
        "url": "https://example.org/000000000.jpg",
        "width": 8,
        "height": 8,
    }


class TestLargeOnes(TestImg2Dataset):
    options = {"root": str(HERE / "fixtures"), "min_side": "10"}
    counts = {"train": 1}
    first = {
        **TestImg2Dataset.first,
        "key": "000000002",
        "image": picture("00000.tar", "000000002.jpg"),
        "caption": "a square of 10",
        "url": "https://example.org/000000002.jpg",
        "width": 10,
        "height": 10,
    }
