"""Chunks as LitData lays them out, written from the description of the format, without the library."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def node(kind: str | None = None, context: Any = None, children: Sequence[Any] = ()) -> dict[str, Any]:
    """One node of the tree in an index."""
    return {"type": kind, "context": context, "children_spec": list(children)}


def dict_node(**children: Any) -> dict[str, Any]:
    """A dict; the value of a key is a node, or ``None`` for a leaf."""
    made = [node() if child is None else child for child in children.values()]
    return node("builtins.dict", json.dumps(list(children)), made)


def chunk_bytes(items: Sequence[Sequence[bytes]]) -> bytes:
    """One chunk of items, each a list of leaves."""
    texts = [struct.pack(f"<{len(leaves)}I", *map(len, leaves)) + b"".join(leaves) for leaves in items]
    offsets = [4 + 4 * (len(items) + 1)]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    return struct.pack(f"<I{len(offsets)}I", len(items), *offsets) + b"".join(texts)


def write_chunks(
    folder: Path, tree: Any, formats: list[str], chunks: Sequence[Sequence[Sequence[bytes]]], **config: Any
) -> Path:
    """A dataset of chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, items in enumerate(chunks):
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(chunk_bytes(items))
        listed.append({"chunk_bytes": 0, "chunk_size": len(items), "dim": None, "filename": name})
    settings = {
        "compression": None,
        "data_format": formats,
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
        **config,
    }
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": settings}))
    return folder
