"""The floors of the house: who may import whom, and what a plain import may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "streamshard"

# Every package and what it may import of the others, besides errors and _sizes. Rooms on one floor never meet.
MAY_IMPORT: dict[str, set[str]] = {
    "format": set(),
    "order": set(),
    "storage": set(),
    "write": {"format", "storage"},
    "read": {"format", "storage"},
    "convert": {"format", "storage", "write", "read"},
    "repair": {"format", "storage", "write", "read"},
    "dataset": {"format", "order", "storage", "read"},
    "cli": {"format", "storage", "write", "read", "convert", "repair", "order", "dataset"},
    "recipes": {"convert"},
    "ray": {"format", "storage", "write", "read"},
    "spark": {"format", "storage", "write"},
    "testing": {"format", "storage", "write", "read", "order", "dataset", "convert", "recipes"},
}
# Third-party packages and the only places that may import them.
ONLY_IN = {
    "torch": ("dataset/",),
    "fsspec": ("storage/clients.py",),
    "click": ("cli/",),
    "tqdm": ("cli/", "write/upload.py"),
    "ray": ("ray/", "convert/ray_"),
    "pyspark": ("spark/",),
}
# These load at the top of a module nowhere: an extra, or too slow for whoever does not need them.
ONLY_INSIDE_FUNCTIONS = {
    "brotli",
    "snappy",
    "zstandard",
    "PIL",
    "s3fs",
    "torchdata",
    "pyarrow",
    "pyspark",
    "simplejpeg",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> list[tuple[str, bool, int]]:
    """Each imported module as (dotted name, whether at the top level at run time, line)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only: set[int] = set()
    nested: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only.update(id(inner) for inner in ast.walk(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nested.update(id(inner) for inner in ast.walk(node))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module or ""]
        else:
            continue
        top = id(node) not in typing_only and id(node) not in nested
        found += [(name, top, node.lineno) for name in names]
    return found


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_room_and_the_floors_below(path):
    own = room(path)
    for name, _, line in imports_of(path):
        parts = name.split(".")
        if parts[0] != "streamshard" or len(parts) == 1 or path == PACKAGE / "__init__.py":
            continue
        other = parts[1]
        if other in ("errors", "_sizes", own):
            continue
        assert other in MAY_IMPORT.get(own, set()), (
            f"{path}:{line}: {own or 'the top'} must not import {name}"
        )


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_third_party_packages_are_imported_only_in_their_places(path):
    relative = path.relative_to(PACKAGE).as_posix()
    for name, top, line in imports_of(path):
        package = name.split(".")[0]
        if package in ONLY_IN:
            assert relative.startswith(ONLY_IN[package]), (
                f"{path}:{line}: {package} belongs to {ONLY_IN[package]}"
            )
        if package in ONLY_INSIDE_FUNCTIONS:
            if package == "pyarrow" and relative == "ray/blocks.py":
                continue  # as Ray itself: this module is loaded by nothing else
            assert not top, f"{path}:{line}: import {package} inside the function that needs it"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_input_is_checked_by_errors_and_not_by_assert(path):
    lines = [
        node.lineno for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Assert)
    ]
    assert not lines, f"{path}:{lines}: an assert vanishes under -O; raise an error of streamshard.errors"


def test_only_the_command_line_prints():
    for path in modules():
        if room(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            assert not is_print, f"{path}:{node.lineno}: use logging"


def loaded_by(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


HEAVY = {"torch", "numpy", "fsspec", "PIL", "zstandard", "xxhash", "click", "tqdm"}


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded_by("import streamshard") & HEAVY


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import streamshard; streamshard.World", {"torch", "fsspec", "PIL"}),
        ("import streamshard; streamshard.LocalDataset", {"torch", "fsspec", "PIL"}),
        ("import streamshard; streamshard.MDSWriter", {"torch", "fsspec", "PIL"}),
        ("import streamshard; streamshard.StreamingDataset", {"fsspec", "PIL"}),
        ("import streamshard.testing", {"torch", "fsspec", "PIL"}),
        ("import streamshard.ray, streamshard.spark", {"ray", "pyspark", "pyarrow", "numpy", "fsspec"}),
        ("import streamshard.convert.engine", {"ray", "torch", "fsspec"}),
        (
            "import streamshard.convert.job",
            {"torch", "fsspec", "PIL", "multiprocessing", "concurrent.futures", "socket", "difflib"},
        ),
    ],
)
def test_a_name_loads_only_what_it_needs(code, absent):
    assert not loaded_by(code) & absent


def test_converters_use_public_names_only():
    public = ("streamshard", "streamshard.recipes", "streamshard.testing")
    for path in (ROOT / "converters").rglob("*.py"):
        for name, _, line in imports_of(path):
            if name.split(".")[0] == "streamshard":
                assert name in public, f"{path}:{line}: {name} is no public module"
            assert name.split(".")[0] != "converters", f"{path}:{line}: recipes are loaded by path"


def test_the_top_level_holds_what_was_agreed_and_nothing_else():
    allowed = {
        "pyproject.toml",
        "streamshard",
        "converters",
        "tests",
        "docs",
        "benchmarks",
        "README.md",
        "LICENSE",
    }
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    names = {line.split("/")[0] for line in tracked.splitlines()}
    assert {name for name in names if not name.startswith(".")} <= allowed


def test_decisions_have_numbers_of_their_own():
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    # Gaps may be: numbers are given out before it is known whether a decision is needed.
    assert len({page.name[:3] for page in pages}) == len(pages)
    for page in pages:
        assert page.read_text("utf-8").startswith(f"# {page.name[:3]} "), page
