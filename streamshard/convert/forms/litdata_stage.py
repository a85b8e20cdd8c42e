"""A LitData chunk made a raw local file: fetched from a URL, and unpacked where the whole file is compressed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from streamshard.convert.forms.litdata import declared_columns
from streamshard.convert.origins import Origin
from streamshard.convert.sources import LITDATA, Source
from streamshard.convert.unpacking import packing_of, unpack
from streamshard.storage.opening import is_local, open_store


def stage_chunk(
    origin: Origin,
    directory: Path,
    stem: str,
    storage_options: Mapping[str, Any] | None,
    advance: Callable[[int], None],
) -> Source:
    """Bring a chunk into place.

    Raises:
        ConvertError: compressed data that is cut or broken.
        StorageError: it cannot be read.
    """
    path = Path(origin.location)
    fetched = None
    if not is_local(origin.location):
        folder, _, name = origin.location.rpartition("/")
        fetched = path = directory / f"{stem}.fetched"
        open_store(folder, storage_options=storage_options).fetch_to(name, path)
    with path.open("rb") as file:
        packing = packing_of(file.read(8)) if origin.location.endswith(".zstd.bin") else None
    if packing is not None:
        unpacked = directory / f"{stem}.bin"
        unpack(path, unpacked, packing, origin.name, lambda _: None)
        path = unpacked
        if fetched is not None:
            fetched.unlink()
    advance(origin.nbytes)
    detail = json.loads(origin.detail)
    columns = declared_columns(detail["columns"], detail["formats"])
    return Source(
        origin.name,
        str(path),
        path.stat().st_size,
        origin.image_folder,
        LITDATA,
        "item",
        0,
        columns,
        origin.detail,
    )
