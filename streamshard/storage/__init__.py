"""Places: stores, the node cache, prefetching, retries. Knows no shard and no sample.

    open_store ──► LocalStore │ MemoryStore │ FsspecStore        bytes under keys
                        └──► NodeCache ──► Prefetcher            files on this node, shared by its processes

``open_store`` and its kin load on first use; fsspec only when a URL needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Blob": "streamshard.storage.cache",
    "CachedFile": "streamshard.storage.cache",
    "NodeCache": "streamshard.storage.cache",
    "Prefetcher": "streamshard.storage.prefetch",
    "RetryPolicy": "streamshard.storage.retry",
    "Store": "streamshard.storage.store",
    "is_local": "streamshard.storage.opening",
    "join_url": "streamshard.storage.opening",
    "open_store": "streamshard.storage.opening",
}

__all__ = [
    "Blob",
    "CachedFile",
    "NodeCache",
    "Prefetcher",
    "RetryPolicy",
    "Store",
    "is_local",
    "join_url",
    "open_store",
]

if TYPE_CHECKING:
    from streamshard.storage.cache import Blob, CachedFile, NodeCache
    from streamshard.storage.opening import is_local, join_url, open_store
    from streamshard.storage.prefetch import Prefetcher
    from streamshard.storage.retry import RetryPolicy
    from streamshard.storage.store import Store


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'streamshard.storage' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
