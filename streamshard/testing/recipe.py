"""What every recipe must keep, as tests that a recipe's own test class inherits."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.convert.recipe import IMAGE, Recipe, load_recipe
from streamshard.format.encodings import parse_encoding
from streamshard.read.local import LocalDataset
from streamshard.read.verify import verify_dataset


class RecipeContract:
    """Inherit this in a class named ``Test…`` and set what is below; pytest then runs the tests of all recipes.

    Attributes:
        recipe: path of the recipe file.
        options: its options, with data of a few samples; no ``split``.
        counts: split → number of samples in that data.
        first: the whole first sample of the first split, an image as its file's bytes.
    """

    recipe: Path
    options: Mapping[str, str]
    counts: Mapping[str, int]
    first: Mapping[str, Any]

    def test_its_splits_are_those_counted(self) -> None:
        _require(list(self._loaded().splits) == list(self.counts), "splits", self._loaded().splits)

    def test_tasks_are_stable_and_can_be_pickled(self) -> None:
        for split in self.counts:
            tasks = list(self._loaded().tasks(split))
            again = list(self._loaded().tasks(split))
            _require(bool(tasks), "tasks", split)
            _require(list(map(repr, tasks)) == list(map(repr, again)), "tasks", split)
            _require(repr(pickle.loads(pickle.dumps(tasks))) == repr(tasks), "pickled tasks", split)  # noqa: S301

    def test_what_is_read_back_is_what_it_gives(self, tmp_path: Path) -> None:
        """Sample for sample, the first one as it is known; and two processes write the same bytes as one."""
        recipe = self._loaded()
        for split, count in self.counts.items():
            made = self._converted(tmp_path / split, split, 1)
            problems = verify_dataset(os.fspath(made)).problems
            _require(not problems, "verify", problems)
            expected = [sample for task in recipe.tasks(split) for sample in recipe.samples(task)]
            _require(len(expected) == count, f"samples of {split}", len(expected))
            found = LocalDataset(made, decode_images=False)
            _require(len(found) == count, f"samples read of {split}", len(found))
            for given, stored in zip(expected, found, strict=True):
                self._compare(recipe, given, stored)
        split = next(iter(self.counts))
        stored = LocalDataset(tmp_path / split, decode_images=False)[0]
        known = {name: stored[name] for name in self.first}
        _require(_equal(known, dict(self.first)), "first sample", known)
        _require(set(self.first) >= set(recipe.columns), "columns of first", sorted(self.first))
        again = self._converted(tmp_path / f"{split}-by-two", split, 2)
        files = [
            {path.name: path.read_bytes() for path in made.iterdir()} for made in (tmp_path / split, again)
        ]
        _require(files[0] == files[1], "files by two processes", sorted(files[1]))

    def _loaded(self) -> Recipe:
        return load_recipe(self.recipe, self.options)

    def _converted(self, out: Path, split: str, workers: int) -> Path:
        convert(
            ConvertOptions(
                sources=(os.fspath(self.recipe),),
                out=os.fspath(out),
                workers=workers,
                recipe_options=(*self.options.items(), ("split", split)),
            )
        )
        return out

    def _compare(self, recipe: Recipe, given: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        root = Path(getattr(recipe, "root", None) or self.recipe.parent)
        for name, encoding in recipe.columns.items():
            if encoding == IMAGE:
                images = given[name] if isinstance(given[name], list) else [given[name]]
                images = [image for image in images if image is not None]
                kept = stored[name] if isinstance(stored[name], list) else [stored[name]]
                _require([_content(image, root) for image in images] == kept, f"column {name}", given)
            else:
                kind = parse_encoding(encoding)
                same = kind.encode(_fitting(given[name])) == kind.encode(stored[name])
                _require(same, f"column {name}", (given[name], stored[name]))


def _content(image: Any, root: Path) -> bytes:
    if isinstance(image, dict):
        image = image["bytes"] if image.get("bytes") is not None else image["path"]
    return image if isinstance(image, bytes) else (root / image).read_bytes()


def _fitting(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(left, right)
    return bool(left == right)


def _require(holds: bool, what: str, found: Any) -> None:
    if not holds:
        raise AssertionError(f"{what}: found {found!r}")
