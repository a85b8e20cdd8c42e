"""A LitData chunk made a raw local file: fetched from a URL, and unpacked where the whole file is compressed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from streamshard.convert.forms.fetching import local_copy
from streamshard.convert.forms.litdata import declared_columns
from streamshard.convert.sources import LITDATA, Source
from streamshard.convert.unpacking import packing_of, unpack

if TYPE_CHECKING:
    from streamshard.convert.staging import StageTask


def stage_chunk(task: StageTask, advance: Callable[[int], None]) -> Source:
    """Bring a chunk into place.

    Raises:
        ConvertError: compressed data that is cut or broken.
        StorageError: it cannot be read.
    """
    origin = task.origin
    fetched, is_ours = local_copy(task)
    path = fetched
    with path.open("rb") as file:
        packing = packing_of(file.read(8)) if origin.location.endswith(".zstd.bin") else None
    if packing is not None:
        unpacked = Path(task.directory) / f"{task.stem}.bin"
        unpack(path, unpacked, packing, origin.name, lambda _: None)
        path = unpacked
        if is_ours:
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
