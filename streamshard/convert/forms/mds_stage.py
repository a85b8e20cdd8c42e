"""The shards of an MDS dataset as inputs: found by its index, fetched and unpacked where they are not raw and local."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamshard.convert.class_names import CLASS_NAMES_KEY, names_in_facts
from streamshard.convert.forms.fetching import local_copy
from streamshard.convert.listing import Place
from streamshard.convert.origins import Origin
from streamshard.convert.sources import MDS, Source
from streamshard.errors import ConvertError, FormatError
from streamshard.format.index import INDEX_BASENAME, ShardInfo, index_text, parse_index
from streamshard.read.catalog import check_file
from streamshard.read.inflate import inflate_shard
from streamshard.storage.store import check_key

if TYPE_CHECKING:
    from streamshard.convert.staging import StageTask


def shard_origins(place: Place, storage_options: Mapping[str, Any] | None) -> list[Origin]:
    """One input for each shard, in the order of the index.

    Raises:
        ConvertError: a file of a shard is not there.
        FormatError: a malformed index.
    """
    index = parse_index(place.read(INDEX_BASENAME), source=f"{place.name}/{INDEX_BASENAME}")
    names = names_in_facts(index.facts)
    origins: list[Origin] = []
    present = set(place.names())
    for shard in index.shards:
        files = [file for file in (shard.raw, shard.compressed) if file is not None]
        # A raw file saves unpacking; datasets may keep both.
        found = next(
            (file.basename for file in files if check_key(file.basename, place.name) in present), None
        )
        if found is None:
            raise ConvertError(
                f"source {place.name!r}: {files[-1].basename} is in the index and not in the folder; copy it there"
            )
        detail = json.loads(index_text([shard]))["shards"][0]
        if names and not origins:  # once is enough
            detail[CLASS_NAMES_KEY] = names
        entry = json.dumps(detail, sort_keys=True)
        origins.append(place.origin(found, "mds", entry))
    return origins


def stage_shard(task: StageTask, advance: Callable[[int], None]) -> Source:
    """Make a shard a raw local file. Its hash is compared where the index has one.

    Raises:
        FormatError: another size or hash than the index says, or broken compressed data.
        StorageError: it cannot be read.
    """
    origin = task.origin
    detail = json.loads(origin.detail)
    names = detail.pop(CLASS_NAMES_KEY, {})
    text = json.dumps({"version": 2, "shards": [detail]}).encode()
    info = parse_index(text, source=origin.name).shards[0]
    path, is_ours = local_copy(task)
    if path.stat().st_size == info.raw.nbytes and not _is_compressed(origin, info):
        raw = path
    else:
        raw = Path(task.directory) / f"{task.stem}.mds"
        part = raw.with_suffix(".part")
        with part.open("wb") as file:
            inflate_shard(path, file, info)
        part.replace(raw)
        if is_ours:
            path.unlink()
    for algorithm, digest in list(info.raw.hashes.items())[:1]:
        try:
            check_file(raw, shard=info.raw.basename, algorithm=algorithm, expected=digest)
        except ValueError as error:
            if isinstance(error, FormatError):
                raise
            continue  # a hash that this machine does not know
    advance(origin.nbytes)
    columns = dict(zip(info.schema.names, info.schema.encodings, strict=True))
    return Source(
        origin.name,
        str(raw),
        info.raw.nbytes,
        origin.image_folder,
        MDS,
        "sample",
        0,
        columns,
        class_names=names,
    )


def _is_compressed(origin: Origin, info: ShardInfo) -> bool:
    return info.compressed is not None and origin.location.endswith(
        "/" + info.compressed.basename.rpartition("/")[2]
    )
