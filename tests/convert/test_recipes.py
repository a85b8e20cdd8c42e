"""Recipes: a Python file that knows one source, run by convert."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamshard import LocalDataset
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.convert.recipe import load_recipe
from streamshard.errors import ConvertError

COUNTING = """
from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
class Counting:
    root: Path
    step: int = 1
    loud: bool = False
    word: str | None = None
    columns = {"n": "int32", "text": "str"}
    splits = ("train", "val")

    def tasks(self, split):
        return sorted(self.root.glob(f"{split}-*.txt"))

    def samples(self, task):
        for line in task.read_text().split():
            text = self.word or task.stem
            yield {"n": int(line) * self.step, "text": text.upper() if self.loud else text}
"""


def written(folder: Path, code: str = COUNTING) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.py").write_text(code)
    for name, text in (("train-1", "1 2 3"), ("train-0", "4 5"), ("val-0", "6")):
        (folder / f"{name}.txt").write_text(text)
    return folder / "recipe.py"


def made(recipe: Path, out: Path, *options: tuple[str, str], **more):
    chosen = (("root", str(recipe.parent)), *options)
    return convert(ConvertOptions((str(recipe),), str(out), recipe_options=chosen, **more))


def test_tasks_become_samples_in_their_order(tmp_path):
    recipe = written(tmp_path / "counting")
    summary = made(recipe, tmp_path / "out", workers=2)
    assert summary.samples == 5
    assert dict(summary.columns) == {"n": "int32", "text": "str"}
    found = [(one["n"], one["text"]) for one in LocalDataset(tmp_path / "out")]
    assert found == [(4, "train-0"), (5, "train-0"), (1, "train-1"), (2, "train-1"), (3, "train-1")]


def test_options_have_the_types_of_the_fields(tmp_path):
    recipe = written(tmp_path / "counting")
    made(recipe, tmp_path / "out", ("split", "val"), ("step", "-2"), ("loud", "true"), ("word", "x=y"))
    assert list(LocalDataset(tmp_path / "out")) == [{"n": -12, "text": "X=Y"}]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("step", "two"), "--option step=two: expected int"),
        (("loud", "yes"), "--option loud=yes: expected true or false"),
        (("colour", "red"), "--option colour: unknown; it has split, root, step, loud, word"),
        (("split", "test"), "--option split=test: it has train, val"),
    ],
)
def test_an_option_that_cannot_be_is_named(tmp_path, option, message):
    recipe = written(tmp_path / "counting")
    with pytest.raises(ConvertError, match=message):
        made(recipe, tmp_path / "out", option)
    assert not (tmp_path / "out").exists()


def test_a_missing_option_is_named(tmp_path):
    with pytest.raises(ConvertError, match=r"recipe\.py: needs --option root="):
        convert(ConvertOptions((str(written(tmp_path / "counting")),), str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('yield {"n"', 'yield {"m"', "after 0 samples: ValueError: .*not the columns: n lacking, m too many"),
        (
            'yield {"n": int(line) * self.step,',
            'yield {"n": 1 // (3 - int(line)),',
            "after 2 samples: ZeroDivision",
        ),
        ("return sorted", "return 1 / 0, sorted", r"tasks\('train'\) failed: ZeroDivisionError"),
        ("return sorted", "return [] and sorted", "split 'train' has no tasks"),
        ("@dataclass(frozen=True)", "", "Counting is no dataclass"),
        (
            "class Counting",
            "class Other: columns = splits = tasks = samples = 1\n@dataclass\nclass Counting",
            "found Other, Counting",
        ),
        (
            "from pathlib",
            "from no_such_module import x\nfrom pathlib",
            "No module named 'no_such_module'; its README",
        ),
        ("from pathlib", "1 / 0\nfrom pathlib", "ZeroDivisionError"),
        ('"int32"', '"pkl"', "column 'n': pkl would run code"),
        ('"int32"', '"int33"', "int33"),
    ],
)
def test_a_recipe_that_fails_says_where(tmp_path, before, after, message):
    assert before in COUNTING
    recipe = written(tmp_path / "counting", COUNTING.replace(before, after))
    with pytest.raises(ConvertError, match=message) as caught:
        made(recipe, tmp_path / "out", workers=1)
    assert str(recipe) in str(caught.value)


def test_a_value_that_its_column_cannot_hold_is_a_bad_record(tmp_path):
    recipe = written(tmp_path / "counting")
    with pytest.raises(ConvertError, match=r"counting:train\[1\]: sample 2") as caught:
        made(recipe, tmp_path / "out", ("step", str(2**30)))
    assert "int32" in str(caught.value)
    summary = made(recipe, tmp_path / "out", ("step", str(2**30)), on_error="skip")
    assert (summary.samples, sum(summary.skipped.values())) == (1, 4)


def test_the_same_job_again_does_nothing_and_other_data_is_refused(tmp_path):
    recipe = written(tmp_path / "counting")
    made(recipe, tmp_path / "out")
    index = (tmp_path / "out" / "index.json").stat().st_mtime_ns
    made(recipe, tmp_path / "out")
    assert (tmp_path / "out" / "index.json").stat().st_mtime_ns == index
    (tmp_path / "counting" / "train-0.txt").write_text("4 6")
    with pytest.raises(ConvertError, match="of other records"):
        made(recipe, tmp_path / "out")


def test_code_is_run_only_when_it_is_named(tmp_path):
    recipe = written(tmp_path / "counting", "raise SystemExit('run')")
    with pytest.raises(ConvertError, match=r"recipe\.py; a recipe is code"):
        convert(ConvertOptions((str(recipe.parent / "*.py"),), str(tmp_path / "out")))
    with pytest.raises(ConvertError, match="only local ones are run"):
        convert(ConvertOptions(("s3://bucket/recipe.py",), str(tmp_path / "out")))
    (tmp_path / "counting" / "rows.jsonl").write_text('{"n": 1}\n')
    for text in recipe.parent.glob("*.txt"):
        text.unlink()
    assert convert(ConvertOptions((str(recipe.parent),), str(tmp_path / "out"))).samples == 1


def test_options_without_a_recipe_are_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(ConvertError, match="--option root: no source is a recipe"):
        convert(
            ConvertOptions(
                (str(tmp_path / "rows.jsonl"),), str(tmp_path / "out"), recipe_options=(("root", "x"),)
            )
        )


def test_files_of_a_task_are_part_of_it(tmp_path):
    recipe = written(tmp_path / "counting")
    from streamshard.convert.recipe import recipe_origins

    options = [("root", str(recipe.parent))]
    before = [origin.fingerprint() for origin in recipe_origins(recipe, options)]
    assert before == [origin.fingerprint() for origin in recipe_origins(recipe, options)]
    (tmp_path / "counting" / "train-1.txt").write_text("1 2")
    after = [origin.fingerprint() for origin in recipe_origins(recipe, options)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert json.loads(after[1][-1])["split"] == "train"


def test_a_loaded_recipe_is_the_protocol(tmp_path):
    from streamshard.recipes import Recipe

    recipe = load_recipe(written(tmp_path / "counting"), {"root": "x"})
    assert isinstance(recipe, Recipe)


def test_a_task_whose_file_changes_under_way_is_told(tmp_path):
    from streamshard.convert.recipe import recipe_origins, stage_recipe

    recipe = written(tmp_path / "counting")
    first, _ = recipe_origins(recipe, [("root", str(recipe.parent))])
    (recipe.parent / "train-0.txt").write_text("4 5 6")
    with pytest.raises(ConvertError, match="task 0 of split 'train' is not what it was"):
        stage_recipe(first, tmp_path / "spool", lambda _: None)
    (recipe.parent / "train-0.txt").unlink()
    (recipe.parent / "train-1.txt").unlink()
    with pytest.raises(ConvertError, match="task 0 of split 'train' is not what it was"):
        stage_recipe(first, tmp_path / "spool", lambda _: None)
