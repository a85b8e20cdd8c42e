"""Options that shaped a dataset, kept in its index, so that whoever adds to it hears which ones this run lacks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from streamshard.convert.files import FILE_ENCODINGS
from streamshard.convert.options import ConvertOptions
from streamshard.convert.problems import shorten
from streamshard.convert.tokenizing import TOKENS_KEY
from streamshard.write.append import Base

GIVEN_KEY = "given"
"""In the index, under ``"convert"``: option → its values, of the options that decide what columns there are."""

_RESIZING = ("--max-side", "--quality")
_MOST_LISTED = 20
_LONGEST_VALUE = 80


def given_options(options: ConvertOptions) -> dict[str, list[str]]:
    """The options that decide which columns records become and what is in them; no paths."""
    found = {
        "--column": [f"{name}={encoding}" for name, encoding in options.columns],
        "--cost": [f"{name}={key}" for name, key in options.costs],
        "--drop": list(options.drop),
        "--file-key": list(options.file_keys),
        "--image-key": sorted(options.image_keys),
        "--json-rest": [options.json_rest] if options.json_rest else [],
        "--max-side": [str(options.max_side)] if options.max_side is not None else [],
        "--quality": [str(options.quality)] if options.quality is not None else [],
        "--rename": [f"{old}={new}" for old, new in options.rename],
        "--sample-hash": [options.sample_hash] if options.sample_hash else [],
        "--tokenize": [f"TOKENIZER:{field}" for _, field in options.tokenize],
    }
    return {option: values for option, values in found.items() if values}


def unlike_options(base: Base, options: ConvertOptions) -> str:
    """What to say behind an error of a run that adds to a dataset; ``""`` where the options are those it was made with.

    A dataset whose index has no note of them is asked for its columns.
    """
    now = given_options(options)
    made = _noted(base.index.facts)
    said = []
    if lacks := _listed(made or _guessed(base, options), now):
        said.append(f"the dataset there was made with {lacks}, which this run lacks")
    if more := "" if made is None else _listed(now, made):
        said.append(f"this run has {more}, which the dataset there was made without")
    return f"{'; '.join(said)}: what is added takes the options of what is there" if said else ""


def unlike_images(base: Base, options: ConvertOptions) -> list[str]:
    """A warning where images that are added are scaled or encoded in another way than those there."""
    now, made = given_options(options), _noted(base.index.facts)
    if made is None or all(made.get(option) == now.get(option) for option in _RESIZING):
        return []
    before, here = (_listed({name: each.get(name, []) for name in _RESIZING}, {}) for each in (made, now))
    return [
        f"images there were converted with {before or 'neither --max-side nor --quality'}, those added with"
        f" {here or 'neither'}"
    ]


def _noted(facts: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """What an index says; ``None`` of a dataset that no conversion has made."""
    made = facts.get("convert")
    if not isinstance(made, dict):
        return None
    found = made.get(GIVEN_KEY)
    return {
        option: values
        for option, values in (found.items() if isinstance(found, dict) else ())
        if isinstance(values, list) and all(isinstance(value, str) for value in values)
    }


def _guessed(base: Base, options: ConvertOptions) -> dict[str, list[str]]:
    """The options that columns, costs and hashes of a dataset tell of, and that a run lacks."""
    index = base.index
    schema = index.schemas[0] if index.schemas else None
    columns = {} if schema is None else dict(zip(schema.names, schema.encodings, strict=True))
    tokens: Any = index.facts.get(TOKENS_KEY)
    fields = (
        [one.get("field") for one in tokens.values() if isinstance(one, dict)]
        if isinstance(tokens, dict)
        else []
    )
    costs = index.costs.keys() - {name for name, _ in options.costs}
    hashes = index.sample_hashes
    return {
        "--cost": sorted(f"{name}=KEY" for name in costs),
        "--file-key": sorted(
            name
            for name, encoding in columns.items()
            if encoding in FILE_ENCODINGS and f"{name}_path" in columns
        ),
        "--sample-hash": [] if hashes is None else [hashes.algorithm],
        "--tokenize": [f"TOKENIZER:{field}" for field in fields],
    }


def _listed(wanted: Mapping[str, list[str]], there: Mapping[str, list[str]]) -> str:
    """The options of ``wanted`` that are not ``there``, as a command has them."""
    texts = [
        f"{_word(option)} {_word(value)}"
        for option, values in wanted.items()
        for value in values
        if value not in there.get(option, [])
    ]
    more = f" and {len(texts) - _MOST_LISTED} more" if len(texts) > _MOST_LISTED else ""
    return f"{' '.join(texts[:_MOST_LISTED])}{more}"


def _word(value: str) -> str:
    """A value as a word of a command; an index may hold anything."""
    return (
        shlex.quote(value)
        if len(value) <= _LONGEST_VALUE and value.isprintable()
        else shorten(value, _LONGEST_VALUE)
    )
