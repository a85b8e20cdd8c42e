"""What the inputs themselves and the options settle of the records' shape, before any record is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamshard.convert.files import FILE_ENCODINGS, NO_FILES
from streamshard.convert.media_parts import MEDIA_COLUMNS
from streamshard.convert.references import KNOWN_IMAGE_KEYS, NESTED_KEY
from streamshard.convert.shaping import EMPTY, Shaping
from streamshard.convert.sources import LITDATA, Source, agreed_columns
from streamshard.convert.tokenizing import token_columns
from streamshard.errors import ConvertError
from streamshard.format.encodings import parse_encoding

if TYPE_CHECKING:
    from streamshard.convert.options import ConvertOptions

IMAGE_FILES = ("jpeg", "png", "list[jpeg]", "list[png]")
"""The encodings whose values are image files."""


def settled_shaping(sources: Sequence[Source], options: ConvertOptions) -> Shaping:
    """What the inputs themselves and the options settle before any record is read.

    Raises:
        ConvertError: a pickled column that cannot pass as it is.
    """
    rename = dict(options.rename)
    drop = frozenset(options.drop)
    declared = {
        rename.get(name, name): encoding
        for name, encoding in agreed_columns(sources).items()
        if name not in drop and rename.get(name, name) not in (*options.image_keys, *options.file_keys)
    }
    if options.resizing is not None:
        # Images that are to become others cannot pass as they are stored.
        declared = {name: encoding for name, encoding in declared.items() if encoding not in IMAGE_FILES}
    declared.update(options.columns)
    tokens = token_columns(options.tokenize)
    for column in tokens:
        if column.column in declared:
            raise ConvertError(
                f"--tokenize: the tokens of {column.field!r} belong into column {column.column!r}, which is there"
                f" already; give that another name with --rename {column.column}=NAME, or --drop it"
            )
        declared[column.column] = column.encoding
    files = _file_columns(options)
    for name, encoding in plain_columns(options.like).items():
        if name in files:
            continue
        declared.setdefault(name, encoding)
    for source in sources:
        if source.kind == LITDATA:
            from streamshard.convert.forms.litdata import refuse_unread

            refuse_unread(source, drop)
        for name, encoding in source.columns.items():
            after = rename.get(name, name)
            if parse_encoding(encoding).unsafe and name not in drop and declared.get(after) != encoding:
                raise ConvertError(
                    f"source {source.name!r}: column {name!r} is {encoding}, which is not decoded, and other sources"
                    f" have another one; leave it out with --drop {name}"
                )
    said = dict(options.columns)
    emptied = {name for name, encoding in options.like if encoding in EMPTY and name not in said}
    stored_costs = tuple(key for _, key in options.costs) + tuple(each.key for each in options.where)
    return Shaping(
        options.image_keys,
        declared,
        frozenset(),
        drop,
        rename,
        tokens,
        options.where,
        frozenset(stored_costs),
        file_keys=() if options.file_keys == NO_FILES else options.file_keys,
        looks_for_files=not options.file_keys,
        emptied=frozenset(emptied),
        searched=_searched(options),
    )


def _searched(options: ConvertOptions) -> frozenset[str]:
    """The JSON columns of the dataset that is added to whose messages may hold images or files, as they did there."""
    like = dict(options.like)
    if like.get(NESTED_KEY) not in IMAGE_FILES and not options.file_keys:
        return frozenset()
    given = {*dict(options.columns), *KNOWN_IMAGE_KEYS}
    return frozenset(name for name, encoding in options.like if encoding == "json" and name not in given)


def _file_columns(options: ConvertOptions) -> set[str]:
    """The names of columns of files, and of their names, as far as they are known before any record is read."""
    like = dict(options.like)
    keys = {key for key in options.file_keys if like.get(key) != "json"}
    if len(keys) < len(options.file_keys):  # messages, whose files have columns of their own
        keys |= {name for name in MEDIA_COLUMNS.values() if like.get(name) in FILE_ENCODINGS}
    return {name for key in keys for name in (key, f"{key}_path")}


def plain_columns(like: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Of the columns of a dataset that is added to, those that are neither images nor the paths of images."""
    images = {name for name, encoding in like if encoding in IMAGE_FILES}
    paths = {f"{name}_path" for name in images}
    return {name: encoding for name, encoding in like if name not in images and name not in paths}
