"""streamshard: raw JSONL + images once into MDS shards, then streamed to any number of GPUs.

    convert ── write ──► shards + index.json ──► read ── LocalDataset            random access, no torch
                                            └──► dataset ── StreamingDataset     training

Names load on first use (PEP 562), so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "LocalDataset": "streamshard.read.local",
    "MDSWriter": "streamshard.write.writer",
    "Stream": "streamshard.dataset.stream",
    "StreamingDataLoader": "streamshard.dataset.loader",
    "StreamingDataset": "streamshard.dataset.streaming",
    "World": "streamshard.order.world",
    "convert_records": "streamshard.convert.records",
    "merge_index": "streamshard.write.merge",
    "pixels_of": "streamshard.format.pixels",
}

__all__ = [
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "World",
    "convert_records",
    "merge_index",
    "pixels_of",
]

if TYPE_CHECKING:
    from streamshard.convert.records import convert_records
    from streamshard.dataset.loader import StreamingDataLoader
    from streamshard.dataset.stream import Stream
    from streamshard.dataset.streaming import StreamingDataset
    from streamshard.format.pixels import pixels_of
    from streamshard.order.world import World
    from streamshard.read.local import LocalDataset
    from streamshard.write.merge import merge_index
    from streamshard.write.writer import MDSWriter


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'streamshard' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
