"""What a damaged sample was called: its id or source path, where that column still decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamshard.errors import FormatError

if TYPE_CHECKING:
    from streamshard.format.schema import Schema

_NAMES = frozenset(
    {"id", "_id", "__id__", "uid", "uuid", "guid", "key", "__key__", "name", "filename", "path", "url"}
)
_ENDINGS = ("_id", "_key", "_path", "_url")
_ENCODINGS = frozenset({"str", "int", "json", "str_int"})
_MAX_COLUMNS = 3
_MAX_CHARACTERS = 100


def identity_columns(schema: Schema) -> tuple[str, ...]:
    """Return up to three columns that look like an id or a source path, ids first."""
    names = [
        name
        for name, encoding in zip(schema.names, schema.encodings, strict=True)
        if encoding in _ENCODINGS and (name.lower() in _NAMES or name.lower().endswith(_ENDINGS))
    ]
    return tuple(sorted(names, key=lambda name: ("id" not in name.lower(), name))[:_MAX_COLUMNS])


def describe_sample(schema: Schema, sample: bytes) -> str:
    """Return `` (id='a17', image_path='x/1.jpg')`` for a message, or `` `` if none of it decodes."""
    found = []
    for name in identity_columns(schema):
        try:
            value = schema.decoder(columns=(name,)).one(sample)[name]
        except FormatError:
            continue  # this column is part of the damage
        text = ascii(value)
        found.append(f"{name}={text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + '...'}")
    return f" ({', '.join(found)})" if found else ""
