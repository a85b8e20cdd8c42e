"""Recipes: what is to be known of one source of data, as a Python file; ``streamshard convert`` does the rest.

A recipe file holds one frozen dataclass with the members of :class:`Recipe`. Its fields are its options, set by
``--option NAME=VALUE``; ``--option split=NAME`` chooses the split. Each task becomes an input of its own, so that
several processes read the source at once, and the result depends neither on their number nor on their order.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib.util
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from streamshard.convert.forms.packed import PackedForm, Spool
from streamshard.convert.kinds import RECIPE
from streamshard.convert.origins import Origin
from streamshard.convert.problems import shorten
from streamshard.convert.sources import PACKED, Source
from streamshard.errors import ConvertError, StreamshardError
from streamshard.format.encodings import parse_encoding

IMAGE = "image"
"""What ``columns`` says of a column of images: references, bytes, ``{"bytes", "path"}``, or lists of these."""

_SPLIT = "split"
_ROWS_AT_ONCE = 1000
_MEMBERS = ("columns", "splits", "tasks", "samples")


@runtime_checkable
class Recipe(Protocol):
    """What a recipe knows. Relative image paths start at its field ``root``, if it has one, else beside its file."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Column → MDS encoding, or ``"image"``; every sample has just these keys."""

    @property
    def splits(self) -> Sequence[str]:
        """Names of the splits; the first is the one that is made where none is chosen."""

    def tasks(self, split: str) -> Sequence[Any]:
        """Independent parts of a split in their order: small values that can be pickled, such as a file or a range.

        A path in a task stands for its content too: work of an interrupted run is good as long as that is the same.
        """

    def samples(self, task: Any) -> Iterator[dict[str, Any]]:
        """The samples of a task, in order; the same ones each time."""


def load_recipe(path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Recipe:
    """Run a recipe file and make its recipe with options, which are text as on the command line.

    Raises:
        ConvertError: a file that cannot be run or holds no recipe, an unknown option or one that is missing, a value
            that its type cannot hold.
    """
    path = Path(path).resolve()
    kind = _recipe_class(_module(path), path)
    values = _field_values(kind, dict(options or {}), path)
    try:
        recipe: Recipe = kind(**values)
        unsafe = [
            f"column {name!r}: {encoding} would run code when it is read"
            for name, encoding in recipe.columns.items()
            if encoding != IMAGE and parse_encoding(encoding).unsafe
        ]
    except (OSError, TypeError, ValueError) as error:
        raise ConvertError(f"recipe {path}: {error}") from error
    if unsafe:
        raise ConvertError(f"recipe {path}: {unsafe[0]}")
    return recipe


def recipe_origins(path: Path, options: Sequence[tuple[str, str]]) -> list[Origin]:
    """One input for each task of the split that ``options`` choose.

    Raises:
        ConvertError: as :func:`load_recipe`; a split that the recipe does not have, or one without tasks.
    """
    given = dict(options)
    split = given.pop(_SPLIT, None)
    recipe = load_recipe(path, given)
    splits = list(recipe.splits)
    if split is None and splits:
        split = splits[0]
    if split is None or split not in splits:
        raise ConvertError(
            f"recipe {path}: --option split={split}: it has {', '.join(splits) or 'no splits'}"
        )
    tasks = _tasks(recipe, split, path)
    if not tasks:
        raise ConvertError(f"recipe {path}: split {split!r} has no tasks; is the data where its options say?")
    stamp = path.stat()
    name = path.parent.name if path.name == "recipe.py" else path.stem
    origins = []
    for number, task in enumerate(tasks):
        nbytes, digest = _stamp(task)
        detail = json.dumps(
            {"options": given, "split": split, "task": number, "digest": digest}, sort_keys=True
        )
        origins.append(
            Origin(
                f"{name}:{split}[{number}]",
                str(path),
                _image_root(recipe, path),
                nbytes,
                stamp.st_mtime_ns,
                RECIPE,
                detail,
            )
        )
    return origins


def stage_recipe(origin: Origin, spool: Path, advance: Callable[[int], None]) -> Source:
    """Lay the samples of one task down.

    Raises:
        ConvertError: a recipe that fails, or whose samples do not have its columns.
    """
    path, detail = Path(origin.location), json.loads(origin.detail)
    recipe = load_recipe(path, detail["options"])
    tasks = _tasks(recipe, detail["split"], path)
    task = tasks[detail["task"]] if detail["task"] < len(tasks) else None
    if _stamp(task)[1] != detail["digest"]:
        raise ConvertError(
            f"recipe {path}: task {detail['task']} of split {detail['split']!r} is not what it was a moment ago, or its"
            " files are not; run again when they are at rest"
        )
    columns = dict(recipe.columns)
    given = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal given
        for sample in recipe.samples(task):
            yield _checked(sample, columns)
            given += 1

    try:
        with Spool(spool) as out:
            left = rows()
            while out.add(islice(left, _ROWS_AT_ONCE)):
                pass
    except StreamshardError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise  # our disk, not the recipe
        # Whatever a recipe's own code raises; the cause stays for whoever wants the traceback.
        raise ConvertError(
            f"recipe {path}, task {shorten(repr(task), 120)}, after {given} samples: {type(error).__name__}: {error}"
        ) from error
    advance(origin.nbytes)
    declared = {name: encoding for name, encoding in columns.items() if encoding != IMAGE}
    nbytes = PackedForm(spool).nbytes
    return Source(origin.name, str(spool), nbytes, origin.image_folder, PACKED, "sample", 0, declared)


def _module(path: Path) -> ModuleType:
    name = f"streamshard_recipe_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConvertError(f"recipe {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while they are made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ConvertError(f"recipe {path}: {error}; its README says what it needs") from error
    except Exception as error:
        raise ConvertError(f"recipe {path}: {type(error).__name__}: {error}") from error
    return module


def _recipe_class(module: ModuleType, path: Path) -> type[Any]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and all(hasattr(value, member) or member in _annotations(value) for member in _MEMBERS)
    ]
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise ConvertError(f"recipe {path}: expected one class with {', '.join(_MEMBERS)}, found {names}")
    if not dataclasses.is_dataclass(found[0]):
        raise ConvertError(f"recipe {path}: {found[0].__name__} is no dataclass, so it cannot take options")
    return found[0]


def _annotations(kind: type[Any]) -> set[str]:
    return {name for base in kind.__mro__ for name in vars(base).get("__annotations__", {})}


def _field_values(kind: type[Any], given: dict[str, str], path: Path) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    names = []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        names.append(field.name)
        if field.name in given:
            values[field.name] = _value(field.name, given.pop(field.name), hints[field.name], path)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConvertError(f"recipe {path}: needs --option {field.name}=…")
    if given:
        known = ", ".join([_SPLIT, *names])
        raise ConvertError(f"recipe {path}: --option {min(given)}: unknown; it has {known}")
    return values


def _value(name: str, text: str, kind: Any, path: Path) -> Any:
    options = [one for one in typing.get_args(kind) if one is not type(None)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = options[0]
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, TypeError, ValueError):
        wanted = getattr(kind, "__name__", str(kind))
        raise ConvertError(
            f"recipe {path}: --option {name}={text}: expected {'true or false' if kind is bool else wanted}"
        ) from None


def _tasks(recipe: Recipe, split: str, path: Path) -> list[Any]:
    try:
        return list(recipe.tasks(split))
    except StreamshardError:
        raise
    except Exception as error:
        raise ConvertError(
            f"recipe {path}: tasks({split!r}) failed: {type(error).__name__}: {error}"
        ) from error


def _stamp(task: Any) -> tuple[int, str]:
    """The bytes of the files that a task names, and a digest that changes with the task and with these files."""
    nbytes = 0
    facts: list[Any] = [repr(task)]
    for value in _leaves(task):
        if isinstance(value, (str, Path)) and os.path.isfile(value):  # noqa: PTH113 text may be too long for a path
            found = os.stat(value)  # noqa: PTH116
            nbytes += found.st_size
            facts.append([os.fspath(value), found.st_size, found.st_mtime_ns])
    return nbytes, hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _leaves(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _image_root(recipe: Recipe, path: Path) -> str:
    root = getattr(recipe, "root", None)
    return str(path.parent) if root is None else os.path.abspath(root)  # noqa: PTH100 links stay as they are


def _checked(sample: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(sample, dict):
        raise TypeError(f"expected a dict of columns, found {type(sample).__name__}")
    if sample.keys() != columns.keys():
        lacking = sorted(columns.keys() - sample.keys())
        more = sorted(map(str, sample.keys() - columns.keys()))
        raise ValueError(
            f"a sample whose keys are not the columns: {', '.join(lacking) or 'none'} lacking,"
            f" {', '.join(more) or 'none'} too many"
        )
    return sample
