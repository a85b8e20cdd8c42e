"""merge_index: one index over datasets that lie below one root. Shards stay where they are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from streamshard.errors import BlobNotFoundError, FormatError
from streamshard.format.costs import COSTS_KEY, costs_entry
from streamshard.format.index import INDEX_BASENAME, FileInfo, Index, ShardInfo, index_text, parse_index
from streamshard.format.sample_hashes import SAMPLE_HASHES_KEY, sample_hashes_entry
from streamshard.storage.store import Store
from streamshard.write.costs import joined_costs
from streamshard.write.publish import publish_file

Place = str | os.PathLike[str]
Places = Place | tuple[Place, Place]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the indexes to merge: the folder it lies in, relative to the root ("" for the root itself)."""

    folder: str
    index: Index


@overload
def merge_index(
    index_file_urls: Sequence[Places],
    out: Places,
    keep_local: bool = ...,
    download_timeout: float = ...,
    *,
    storage_options: Mapping[str, Any] | None = ...,
) -> None: ...


@overload
def merge_index(
    out: Places,
    keep_local: bool = ...,
    download_timeout: float = ...,
    *,
    storage_options: Mapping[str, Any] | None = ...,
) -> None: ...


def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write ``index.json`` in ``out`` over the datasets in folders below it.

    ``merge_index(index_file_urls, out)`` merges the listed indexes in their order; each must lie in or below
    ``out``. ``merge_index(out)`` merges every ``index.json`` below ``out``, at any depth, in the order of
    their paths. Paths of any depth are kept. An index that is already in ``out`` is replaced if all its
    shards are in the new one. Costs are kept that all parts have; a warning names each other one. Hashes of
    samples are kept if all parts have those of one algorithm, with a warning if only some have.

    Args:
        index_file_urls: paths or URLs of index files, or pairs (local, remote) of which the local one is read
            if it exists.
        out: directory, URL, or pair (directory, URL); of a pair both get the index, and the URL's folders are
            what is merged.
        keep_local: False removes the merged index from the directory of a pair after its upload.
        download_timeout: seconds for reading one index.
        storage_options: passed to the file system of URLs.

    Raises:
        ValueError: nothing to merge, an index outside of ``out``, or two indexes that name the same file.
        FileExistsError: the index in ``out`` names shards that the merge leaves out.
        BlobNotFoundError: an index, or a shard that one names, is not there.
        FormatError: an index that is not one.
    """
    if "index_file_urls" in kwargs or (args and isinstance(args[0], list)):
        _merge_list(*args, **kwargs)
    else:
        _merge_root(*args, **kwargs)


def _merge_list(
    index_file_urls: Sequence[Places],
    out: Places,
    keep_local: bool = True,
    download_timeout: float = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    root = _Root(out, keep_local, download_timeout, storage_options)
    parts = [root.read_part(_pair(url, "index_file_urls")) for url in index_file_urls]
    root.publish(parts)


def _merge_root(
    out: Places,
    keep_local: bool = True,
    download_timeout: float = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    root = _Root(out, keep_local, download_timeout, storage_options)
    root.publish(root.find_parts())


class _Root:
    """Where the merged index goes, and what lies below it."""

    def __init__(
        self, out: Places, keep_local: bool, timeout_s: float, options: Mapping[str, Any] | None
    ) -> None:
        from streamshard.storage.opening import open_store
        from streamshard.storage.retry import RetryPolicy

        def store(place: str) -> Store:
            return open_store(place, storage_options=options, retry=policy)

        policy = RetryPolicy(timeout_s=timeout_s)
        self._open = store
        self._places = _pair(out, "out")
        self._stores = [store(place) for place in self._places]
        self._keep_local = keep_local
        # Of a pair, the second is what others will read.
        self._store = self._stores[-1]

    def read_part(self, places: list[str]) -> Part:
        """Read one listed index."""
        folders = [
            folder for place in places for root in self._places if (folder := _below(place, root)) is not None
        ]
        if not folders:
            raise ValueError(
                f"{places[-1]} is outside of {self._store.url}: a merged index can name only files "
                "below its own "
                "folder; give their common parent as out"
            )
        for place in places:
            store = self._open(_folder_of(place))
            if place is places[-1] or store.exists(INDEX_BASENAME):
                break
        return Part(folders[0], _read_index(store, INDEX_BASENAME))

    def find_parts(self) -> list[Part]:
        """Find every index below the root and see that the shards that it names are there."""
        keys = self._store.list()
        here = set(keys)
        found = sorted(
            (key for key in keys if key.endswith("/" + INDEX_BASENAME)), key=lambda key: key.split("/")
        )
        parts = []
        for key in found:
            part = Part(key[: -len(INDEX_BASENAME) - 1], _read_index(self._store, key))
            for shard in _moved(part):
                if shard.stored.basename not in here:
                    raise BlobNotFoundError(
                        f"{self._store.url}/{shard.stored.basename} is not there, although {key} "
                        "names it; write that part again"
                    )
            parts.append(part)
        return parts

    def publish(self, parts: Sequence[Part]) -> None:
        if not parts:
            raise ValueError(f"nothing to merge: no {INDEX_BASENAME} in the folders below {self._store.url}")
        merged = merge_parts(parts)
        for store in self._stores:
            _refuse_to_lose_shards(store, merged)
        for store in self._stores:
            publish_index(store, merged)
        if len(self._stores) == 2 and not self._keep_local:
            self._stores[0].delete(INDEX_BASENAME)


def publish_index(store: Store, index: Index) -> None:
    """Put an index in place whole, so that a reader finds it, the one before it, or none."""
    text = index_text(index.shards, index.extra)
    path = store.local_path(INDEX_BASENAME)
    if path is None:
        store.put_bytes(INDEX_BASENAME, text)
    else:
        publish_file(path.parent, path.name, [text])


def merge_parts(parts: Sequence[Part]) -> Index:
    """Put the shards of all parts one after another, their files named from the root.

    Costs that all parts have are kept; of any other, one warning says which part lacks it.

    Raises:
        ValueError: two parts name the same file, as a merged index and one of its own parts do.
        FormatError: what stands under the key ``"streamshard"`` of the parts cannot be added up.
    """
    owner: dict[str, str] = {}
    shards: list[ShardInfo] = []
    for part in parts:
        for shard in _moved(part):
            name = shard.stored.basename
            if name in owner:
                raise ValueError(
                    f"{name!r} is named by two indexes, in {owner[name] or '.'!r} and in "
                    f"{part.folder or '.'!r}: its samples would "
                    "be there twice; merge one of the two only"
                )
            owner[name] = part.folder
            shards.append(shard)
    # Lists of one value for each shard are joined in the order of the shards.
    extras = [(part.folder, part.index.facts) for part in parts]
    return Index(shards, {**merge_extras(extras), **_merge_costs(parts), **_merge_sample_hashes(parts)})


def _merge_costs(parts: Sequence[Part]) -> dict[str, Any]:
    costs, lacking = joined_costs([(p.folder, p.index.costs, p.index.num_shards) for p in parts])
    for name, folders in lacking.items():
        warnings.warn(
            f"merge_index: cost {name!r} is left out, since the index in {folders[0] or '.'!r} lacks it"
            + (f", as do {len(folders) - 1} others" if len(folders) > 1 else ""),
            UserWarning,
            stacklevel=6,
        )
    return {COSTS_KEY: costs_entry(costs)} if costs else {}


def _merge_sample_hashes(parts: Sequence[Part]) -> dict[str, Any]:
    filled = [part for part in parts if part.index.num_shards]
    algorithms = {part.index.sample_hashes.algorithm if part.index.sample_hashes else None for part in filled}
    if not algorithms - {None}:
        return {}
    if len(algorithms) > 1:
        shown = ", ".join(sorted(name or "none" for name in algorithms))
        warnings.warn(
            f"merge_index: hashes of samples are left out, since the parts have different ones ({shown})",
            UserWarning,
            stacklevel=6,
        )
        return {}
    digests = [
        hashes.side_file(shard)
        for part in filled
        if (hashes := part.index.sample_hashes) is not None
        for shard in range(part.index.num_shards)
    ]
    return {SAMPLE_HASHES_KEY: sample_hashes_entry(str(algorithms.pop()), digests)}


def merge_extras(extras: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge what stands under the key ``"streamshard"`` of each part.

    Values under ``images`` and keys that end in ``counts`` are added up, number by number. What all parts
    have alike is kept. The rest is kept by folder, under ``"parts"``.
    """
    merged: dict[str, Any] = {}
    apart: dict[str, dict[str, Any]] = {}
    for key in sorted({key for _, extra in extras for key in extra if key != "parts"}):
        values = [extra.get(key) for _, extra in extras]
        if key == "images" or key.endswith("counts"):
            merged[key] = _added([value for value in values if value is not None])
        elif all(value == values[0] for value in values):
            merged[key] = values[0]
        else:
            for folder, extra in extras:
                if key in extra:
                    apart.setdefault(folder, {})[key] = extra[key]
    for folder, extra in extras:
        inner = extra.get("parts")
        if isinstance(inner, dict):
            for name, value in inner.items():
                apart[f"{folder}/{name}" if folder else name] = value
    return {**merged, "parts": apart} if apart else merged


def _added(values: Sequence[Any]) -> Any:
    if all(isinstance(value, dict) for value in values):
        keys = sorted({key for value in values for key in value})
        return {key: _added([value[key] for value in values if key in value]) for key in keys}
    if all(type(value) is int for value in values):
        return sum(values)
    raise FormatError(f"counts that cannot be added: {values!r:.120}; expected numbers in equal places")


def _moved(part: Part) -> list[ShardInfo]:
    def move(file: FileInfo) -> FileInfo:
        return replace(file, basename=f"{part.folder}/{file.basename}" if part.folder else file.basename)

    return [
        replace(
            shard,
            raw=move(shard.raw),
            compressed=None if shard.compressed is None else move(shard.compressed),
        )
        for shard in part.index.shards
    ]


def _refuse_to_lose_shards(store: Store, merged: Index) -> None:
    if not store.exists(INDEX_BASENAME):
        return
    named = set(merged.table.stored_basenames())
    for name in _read_index(store, INDEX_BASENAME).table.stored_basenames():
        if name not in named:
            raise FileExistsError(
                f"{store.url}/{INDEX_BASENAME} names {name!r}, which the merged "
                "index would leave out; "
                "move that dataset into a folder of its own, or remove this index"
            )


def _read_index(store: Store, key: str) -> Index:
    return parse_index(store.read(key), source=f"{store.url}/{key}")


def _pair(places: Any, name: str) -> list[str]:
    parts = places if isinstance(places, (tuple, list)) else (places,)
    if not 1 <= len(parts) <= 2 or not all(isinstance(p, (str, os.PathLike)) and os.fspath(p) for p in parts):
        raise ValueError(f"{name}: {places!r:.120}: expected a path, a URL, or a pair (directory, URL)")
    return [os.fspath(part) for part in parts]


def _folder_of(place: str) -> str:
    if place == INDEX_BASENAME:
        return "."
    return place[: -len(INDEX_BASENAME) - 1] or "/" if place.endswith("/" + INDEX_BASENAME) else place


def _below(place: str, root: str) -> str | None:
    """Give the folder of an index relative to the root, or None if it is not below it."""
    from streamshard.storage.opening import is_local, local_directory

    folder = _folder_of(place)
    if is_local(folder) != is_local(root):
        return None
    if is_local(root):
        relative = os.path.relpath(
            os.path.realpath(local_directory(folder)), os.path.realpath(local_directory(root))
        ).replace(os.sep, "/")
        if relative == ".":
            return ""
        return None if relative.startswith("../") or relative == ".." else relative
    folder, root = folder.rstrip("/"), root.rstrip("/")
    if folder == root:
        return ""
    inner = folder[len(root) + 1 :]
    inside = folder.startswith(root + "/") and all(part not in ("", ".", "..") for part in inner.split("/"))
    return inner if inside else None
