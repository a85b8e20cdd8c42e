"""Where a stream's files are: the store that they come from, and where they are kept or read in place."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamshard.dataset.places import default_cache_directory
from streamshard.dataset.settings import whole
from streamshard.format.index import INDEX_BASENAME
from streamshard.read.keys import key_in
from streamshard.storage import is_local, open_store
from streamshard.storage.cache import NodeCache
from streamshard.storage.local_store import LocalStore
from streamshard.storage.memory_cache import MemoryCache
from streamshard.storage.opening import local_directory
from streamshard.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from streamshard.dataset.stream import Stream
    from streamshard.storage.store import Store


@dataclass(frozen=True, slots=True)
class Fetching:
    """How files are fetched where a stream does not say otherwise; the fields are those of ``Stream``."""

    download_retry: int = 5
    download_timeout: float = 60.0
    validate_hash: str | bool | None = None
    keep_zip: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    cache: str = "disk"
    cache_limit: int | None = None
    validate_samples: bool = False


@dataclass(frozen=True, slots=True)
class Location:
    """Where one stream's files are. Nothing was contacted yet.

    Attributes:
        store: where they come from.
        split: sub-directory of the store and of the cache.
        in_place: the directory in which they are read as they are; None where they are fetched first.
        kept_in: the cache directory; None where files are read in place, so that hardly any comes into the default one.
        in_memory: whether files are kept in the memory of each process instead.
        retry: how often and how long to try.
    """

    store: Store
    split: str | None
    in_place: Path | None
    kept_in: Path | None
    in_memory: bool
    retry: RetryPolicy

    @classmethod
    def of(cls, stream: Stream, defaults: Fetching) -> Location:
        """Make out where a stream's files are.

        Raises:
            ValueError: arguments that are wrong or contradict each other, with the stream's name.
            StorageError: a place that cannot be one.
        """
        if stream.local is not None and not is_local(stream.local):
            raise ValueError(
                f"{stream}: local={os.fspath(stream.local)!r} is not a directory of this machine; a URL is remote="
            )
        retries = first_given(stream.download_retry, defaults.download_retry)
        if type(retries) is not int or retries < 0:  # messages cost more than all else
            retries = whole(f"{stream}: download_retry", retries)
        timeout_s = first_given(stream.download_timeout, defaults.download_timeout)
        if not isinstance(timeout_s, (int, float, np.number)) or not timeout_s > 0:
            raise ValueError(f"{stream}: download_timeout={timeout_s!r} must be a number above 0, in seconds")
        retry = _policy(1 + retries, float(timeout_s))
        root = os.fspath(stream.remote if stream.remote is not None else stream.local or "")
        options = first_given(stream.storage_options, defaults.storage_options)
        store = open_store(root, storage_options=options, retry=retry)
        here = None
        if isinstance(store, LocalStore):
            here = (
                store.root
                if not stream.split
                else store.local_path(key_in(stream.split, INDEX_BASENAME)).parent
            )
        cached_elsewhere = (
            stream.remote is not None
            and stream.local is not None
            and here is not None
            and not _same(here, stream)
        )
        in_place = None if cached_elsewhere else here
        kind = first_given(stream.cache, defaults.cache)
        if kind not in ("disk", "memory"):
            raise ValueError(f"{stream}: cache={kind!r}: expected 'disk' or 'memory'")
        kept_in: Path | None = None
        if kind == "memory":
            if stream.local is not None and in_place is None:
                raise ValueError(
                    f"{stream}: local={os.fspath(stream.local)!r} names a directory to keep files in, cache='memory' "
                    "keeps none: give one of them"
                )
        elif stream.local is not None and in_place is None:
            kept_in = local_directory(stream.local).absolute()
        elif in_place is None:
            kept_in = _default_directory(store)
        return cls(store, stream.split, in_place, kept_in, kind == "memory", retry)

    @property
    def tables(self) -> Callable[[], Path] | None:
        """What gives the cache directory; None where there is none."""
        return None if self.in_memory else self.directory

    def directory(self) -> Path:
        """Give the cache directory."""
        return _default_directory(self.store) if self.kept_in is None else self.kept_in

    def cache(self, digest: str, limit_bytes: int | None) -> NodeCache | MemoryCache:
        """Make the cache of files that the index with this digest names."""
        if self.in_memory:
            return MemoryCache(self.store, retry=self.retry, limit_bytes=limit_bytes)
        return NodeCache(
            self.directory(), self.store, digest=digest, retry=self.retry, limit_bytes=limit_bytes
        )


def _default_directory(store: Store) -> Path:
    return default_cache_directory(store.url).absolute()


def first_given(own: Any, default: Any) -> Any:
    """Give what a stream says, or else what its dataset does."""
    return default if own is None else own


@functools.lru_cache(maxsize=8)
def _policy(attempts: int, timeout_s: float) -> RetryPolicy:
    """Make the policy that streams share."""
    return RetryPolicy(attempts=attempts, timeout_s=timeout_s)


def _same(directory: Path, stream: Stream) -> bool:
    """Whether ``local`` names the directory that ``remote`` names too."""
    local = local_directory(stream.local or ".") / (stream.split or "")
    return os.path.realpath(local) == os.path.realpath(directory)
