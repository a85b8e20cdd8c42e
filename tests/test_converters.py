"""Every recipe has what the list of recipes promises: a page, small fixtures, commands that are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamshard.cli.convert import command
from streamshard.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[1] / "converters"
RECIPES = sorted(path.parent for path in ROOT.glob("*/recipe.py"))
MOST_FIXTURE_NBYTES = 100_000


def test_the_list_names_them_all():
    listed = re.findall(
        r"^\| \[(\w+)\]\(\1\)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed == [recipe.name for recipe in RECIPES]
    assert RECIPES


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_its_folder_is_whole(recipe):
    for name in ("README.md", "make_fixtures.py", "test_recipe.py"):
        assert (recipe / name).is_file(), name
    files = [path for path in (recipe / "fixtures").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < MOST_FIXTURE_NBYTES


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_its_page_tells_source_licence_size_and_columns(recipe):
    page = (recipe / "README.md").read_text(encoding="utf-8")
    for word in ("Source", "Licence", "Size"):
        assert f"- **{word}:** " in page
    described = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    names = {name for cell in described for name in re.findall(r"`(\w+)`", cell)}
    columns = load_recipe(recipe / "recipe.py", {"root": "."}).columns
    assert set(columns) <= names
    assert names <= {*columns, "image_path"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_its_commands_work_on_its_fixtures(recipe, tmp_path, monkeypatch):
    page = (recipe / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert lines
    monkeypatch.chdir(ROOT.parent)
    root = next(iter(recipe.glob("fixtures/folders")), recipe / "fixtures")
    for line in lines:
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("streamshard", "convert")
        chosen = command.make_context("convert", arguments).params
        assert chosen["sources"] == (f"converters/{recipe.name}/recipe.py",)
        options = dict(option.split("=", 1) for option in chosen["recipe_options"])
        split = options.pop("split", None)
        known = load_recipe(recipe / "recipe.py", options).splits
        assert split is None or split in known
        given = [f"root={root}" if word.startswith("root=") else word for word in arguments]
        given[given.index("--out") + 1] = str(tmp_path / "out")
        done = CliRunner().invoke(command, [*given, "--dry-run", "--workers", "1"])
        assert done.exit_code == 0, done.output
