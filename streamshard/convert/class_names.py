"""Names of classes: what the numbers in a column stand for, where the input itself says so.

Inputs that give no names for a column have no say. They are kept in the index, under ``"streamshard"``, as
``{"class_names": {column: [name of 0, name of 1, …]}}``, where other readers of the format do not look. A column inside
others is named by its way (``"objects.category"``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

CLASS_NAMES_KEY = "class_names"
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 8

ClassNames = dict[str, list[str]]


def names_in_features(features: Any) -> ClassNames:
    """The names that the features of a Hugging Face dataset give, in their form as JSON; none of more than 1 MiB."""
    found = dict(_walk(features, (), 0))
    return found if sum(len(name) for names in found.values() for name in names) <= _MOST_CHARACTERS else {}


def names_in_schema(metadata: Mapping[bytes, bytes] | None) -> ClassNames:
    """The names that Hugging Face ``datasets`` leaves in the schema of an Arrow or Parquet file."""
    try:
        info = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        return names_in_features(info["info"]["features"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}  # nobody's duty: the numbers are stored all the same


def names_in_facts(facts: Mapping[str, Any]) -> ClassNames:
    """The names that stand in an index under ``"streamshard"``."""
    found = facts.get(CLASS_NAMES_KEY)
    if not isinstance(found, dict):
        return {}
    return {column: names for column, names in found.items() if _is_names(names)}


def renamed(names: Mapping[str, Sequence[str]], drop: Iterable[str], rename: Mapping[str, str]) -> ClassNames:
    """Names by the columns of the dataset that is made."""
    made: ClassNames = {}
    dropped = set(drop)
    for column, mine in names.items():
        top, dot, rest = column.partition(".") if column not in rename else (column, "", "")
        if not {column, top} & dropped:
            made[f"{rename.get(top, top)}{dot}{rest}"] = list(mine)
    return made


def agreed_names(all_names: Sequence[Mapping[str, Sequence[str]]]) -> tuple[ClassNames, list[str]]:
    """The names of the columns of which all inputs that give any give the same, and what to say of the others."""
    agreed: ClassNames = {}
    differing: list[str] = []
    for column in sorted({column for names in all_names for column in names}):
        given = [list(names[column]) for names in all_names if column in names]
        other = next((names for names in given if names != given[0]), None)
        if other is not None:
            differing.append(difference(column, given[0], other, "some of the input", "other input"))
        else:
            agreed[column] = given[0]
    return agreed, differing


def difference(column: str, first: Sequence[str], second: Sequence[str], where: str, elsewhere: str) -> str:
    """What to say where the same numbers stand for other classes."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return (
                f"the classes of {column!r} differ: {number} is {one!r} in {where} and {other!r} in {elsewhere}; the"
                " numbers are stored as they are"
            )
    return f"the classes of {column!r} differ: {len(first)} in {where} and {len(second)} in {elsewhere}"


def _walk(feature: Any, way: tuple[str, ...], depth: int) -> Iterator[tuple[str, list[str]]]:
    if depth > _DEEPEST or not isinstance(feature, (dict, list)):
        return
    if isinstance(feature, list):
        for item in feature[:1]:
            yield from _walk(item, way, depth + 1)
    elif feature.get("_type") == "ClassLabel":
        if way and _is_names(feature.get("names")):
            yield ".".join(way), feature["names"]
    elif isinstance(feature.get("_type"), str):
        yield from _walk(feature.get("feature"), way, depth + 1)
    else:
        for name, inner in feature.items():
            yield from _walk(inner, (*way, str(name)), depth + 1)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
