"""LitData chunks as input, read without that library: items as they lie in the chunk files.

    chunk    u32 n, u32 offsets[n + 1] (absolute), items
    item     u32 size of each leaf, then the leaves one after another
    index    JSON: chunks with file names and counts; the format of each leaf; the tree that the leaves make up

Numbers, text, bytes, images, arrays and JSON are read. Pickled leaves are not, since that would run code that the data
chooses; encrypted data, token streams and compression inside of chunks are refused by name.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.forms.items import ItemsForm
from streamshard.convert.forms.litdata_leaves import FILES, Leaf, own_encoding, parse_leaf
from streamshard.convert.jsonl import read_span
from streamshard.convert.listing import Place
from streamshard.convert.origins import Origin
from streamshard.convert.problems import BAD_SAMPLE, RecordProblem
from streamshard.convert.sources import Source
from streamshard.errors import ConvertError, FormatError
from streamshard.format.encodings import parse_encoding
from streamshard.read.raw_file import open_regular
from streamshard.storage.store import check_key

_DEEPEST = 100


def chunk_origins(place: Place) -> list[Origin]:
    """One input for each chunk, in the order of the index.

    Raises:
        ConvertError: a malformed index, or one of data that cannot be read here.
    """
    where = f"{place.name}/index.json"
    try:
        index = json.loads(place.read("index.json"))
        chunks = [(chunk["filename"], int(chunk["chunk_size"])) for chunk in index["chunks"]]
        config = index["config"]
        formats = list(map(str, config["data_format"]))
        tree = json.loads(config["data_spec"])[1] if config["data_spec"] else _leaf_node()
        compression = config.get("compression")
        level = config.get("compression_level") or "chunk"
        encrypted = config.get("encryption")
        loader = str(config.get("item_loader", "PyTreeLoader"))
    except (ValueError, RecursionError, KeyError, TypeError, IndexError) as error:
        raise ConvertError(f"{where}: not an index of LitData ({type(error).__name__}: {error})") from None
    if encrypted is not None:
        raise ConvertError(f"{where}: the chunks are encrypted; write them again without encryption")
    if loader != "PyTreeLoader":
        raise ConvertError(f"{where}: a stream of {loader}, which has no samples of its own; write samples")
    if compression is not None and (not str(compression).startswith("zstd") or level != "chunk"):
        raise ConvertError(
            f"{where}: compression {compression!r} of each {level}; only whole chunks with zstd are read"
        )
    columns = _columns(tree, formats, where)
    detail = {"columns": columns, "formats": formats}
    return [
        place.origin(check_key(name, place.name), "litdata", json.dumps({**detail, "count": count}))
        for name, count in chunks
    ]


def _leaf_node() -> dict[str, Any]:
    return {"type": None, "context": None, "children_spec": []}


def _columns(tree: Any, formats: list[str], where: str) -> list[list[Any]]:
    """The columns of the records: name and shape of each, where a shape is a number of a leaf, a list or a dict."""
    numbers = iter(range(len(formats)))

    def shape(node: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("nested too deep")
        kind, children = node["type"], node["children_spec"]
        if kind is None and not children:
            return next(numbers)
        made = [shape(child, depth + 1) for child in children]
        if str(kind).endswith("dict"):
            return dict(zip(_keys(node["context"]), made, strict=True))
        return made

    try:
        made = shape(tree, 0)
        rest = next(numbers, None)
    except (StopIteration, ValueError, KeyError, TypeError) as error:
        raise ConvertError(
            f"{where}: a tree that does not fit its {len(formats)} leaves ({error!r})"
        ) from None
    if rest is not None:
        raise ConvertError(f"{where}: {len(formats)} leaves, and a tree of {rest}")
    if isinstance(made, dict):
        return [[str(name), item] for name, item in made.items()]
    return (
        [[str(number), item] for number, item in enumerate(made)]
        if isinstance(made, list)
        else [["data", made]]
    )


def _keys(context: Any) -> list[Any]:
    found = json.loads(context) if isinstance(context, str) else context
    if not isinstance(found, list):
        raise TypeError("no list of keys")
    return found


def declared_columns(columns: list[list[Any]], formats: list[str]) -> dict[str, str]:
    """The columns whose leaf has an encoding of its own."""
    found = {name: own_encoding(formats[shape]) for name, shape in columns if isinstance(shape, int)}
    return {name: encoding for name, encoding in found.items() if encoding is not None}


class ChunkForm(ItemsForm):
    """One chunk file."""

    def __init__(
        self, source: Source, declared: Mapping[str, str], dropped: frozenset[str] = frozenset()
    ) -> None:
        detail = json.loads(source.aside)
        self._formats: list[str] = detail["formats"]
        self._columns: list[list[Any]] = [row for row in detail["columns"] if row[0] not in dropped]
        self._stored = {
            name: encoding for name, encoding in source.columns.items() if declared.get(name) == encoding
        }
        self._wanted = set(_leaves([shape for _, shape in self._columns]))
        self._leaves: list[Leaf | None] = [
            parse_leaf(name) if number in self._wanted else None for number, name in enumerate(self._formats)
        ]
        self._sizes = struct.Struct(f"<{len(self._formats)}I")
        path = Path(source.path)
        descriptor = open_regular(path, shard=source.name)
        try:
            offsets = _offsets(descriptor, detail["count"], source.name)
        finally:
            os.close(descriptor)
        super().__init__(path, offsets)

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        try:
            values = self._values(text)
            record = {name: _filled(shape, values) for name, shape in self._columns}
            for name, encoding in self._stored.items():
                if name in record and encoding != "pil":
                    record[name] = parse_encoding(encoding).encode(record[name])
        except (ValueError, struct.error, IndexError, OverflowError, RecursionError) as error:
            raise RecordProblem(BAD_SAMPLE, f"the item cannot be decoded: {error}") from None
        return record

    def _values(self, text: bytes) -> list[Any]:
        sizes = self._sizes.unpack_from(text)
        at = self._sizes.size
        if at + sum(sizes) > len(text):
            raise ValueError(f"leaves of {sum(sizes)} bytes in an item of {len(text)}")
        values: list[Any] = []
        for leaf, size in zip(self._leaves, sizes, strict=True):
            values.append(None if leaf is None else leaf(text[at : at + size]))
            at += size
        return values


def _offsets(file: int, count: int, name: str) -> NDArray[np.int64]:
    nbytes = os.fstat(file).st_size
    head = read_span(file, 0, 4)
    found = int.from_bytes(head, "little")
    if len(head) < 4 or found != count or 4 + 4 * (count + 1) > nbytes:
        raise FormatError(
            f"chunk {name!r}: the index says {count} items; the file says {found} in {nbytes} bytes"
        )
    offsets = np.frombuffer(read_span(file, 4, 4 * (count + 1)), "<u4").astype(np.int64)
    if offsets[0] < 4 + 4 * (count + 1) or offsets[-1] > nbytes or np.any(np.diff(offsets) < 0):
        raise FormatError(
            f"chunk {name!r}: its offsets do not fit a file of {nbytes} bytes; it was cut or damaged"
        )
    return offsets


def _filled(shape: Any, values: list[Any]) -> Any:
    if isinstance(shape, int):
        return values[shape]
    if isinstance(shape, dict):
        return {key: _filled(item, values) for key, item in shape.items()}
    return [_filled(item, values) for item in shape]


def _leaves(shape: Any) -> Iterator[int]:
    if isinstance(shape, int):
        yield shape
        return
    for item in shape.values() if isinstance(shape, dict) else shape:
        yield from _leaves(item)


def refuse_unread(source: Source, dropped: frozenset[str]) -> None:
    """Refuse columns with leaves that are not read here.

    Raises:
        ConvertError: naming column and format.
    """
    detail = json.loads(source.aside)
    for name, shape in detail["columns"]:
        for leaf in _leaves(shape):
            if name not in dropped and parse_leaf(detail["formats"][leaf]) is None:
                raise ConvertError(
                    f"source {source.name!r}: column {name!r} is {detail['formats'][leaf]!r}, which is not read here"
                    f" (read are numbers, text, bytes, images, arrays, json, {', '.join(FILES)}); leave it out with"
                    f" --drop {name}"
                )
