"""Shards of an MDS dataset as input: samples are read from the shard files as they lie there.

A column that keeps its encoding passes as its stored bytes, neither decoded nor encoded again. A ``pkl`` column is
never decoded here: it passes as it is, or is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.convert.forms.items import ItemsForm
from streamshard.convert.jsonl import read_span
from streamshard.convert.problems import BAD_SAMPLE, RecordProblem
from streamshard.convert.sources import Source
from streamshard.errors import FormatError
from streamshard.format.decoder import SampleDecoder
from streamshard.format.encodings import parse_encoding
from streamshard.format.shard import parse_header
from streamshard.read.raw_file import open_regular


class ShardForm(ItemsForm):
    """One raw shard file. ``source.columns`` are its columns, as its index told when it was staged."""

    def __init__(self, source: Source, declared: Mapping[str, str]) -> None:
        path = Path(source.path)
        descriptor = open_regular(path, shard=source.name)
        try:
            header = parse_header(
                lambda begin, end: read_span(descriptor, begin, end - begin),
                os.fstat(descriptor).st_size,
                shard=source.name,
                expected=None,
            )
        finally:
            os.close(descriptor)
        super().__init__(path, header.offsets.astype(np.int64))
        self._decoder = _decoder(header.config, source, declared)

    def parse(self, text: bytes, *, checked: bool) -> dict[str, Any]:
        try:
            return self._decoder.one(text)
        except FormatError as error:
            raise RecordProblem(BAD_SAMPLE, f"the sample cannot be decoded: {error}") from None


def _decoder(config: Mapping[str, Any], source: Source, declared: Mapping[str, str]) -> SampleDecoder:
    names, encodings = config.get("column_names"), config.get("column_encodings")
    if (
        not isinstance(names, list)
        or not isinstance(encodings, list)
        or list(zip(names, encodings, strict=False)) != list(source.columns.items())
    ):
        raise FormatError(f"shard {source.name!r}: its columns are not those of its index: write it again")
    sizes = tuple(parse_encoding(encoding).size for encoding in source.columns.values())
    read_as = []
    wanted = []
    for (name, encoding), size in zip(source.columns.items(), sizes, strict=True):
        passes = declared.get(name) == encoding
        if parse_encoding(encoding).unsafe and not passes:
            read_as.append("bytes")
            continue
        wanted.append(name)
        read_as.append("bytes" if passes and size is None else encoding)
    return SampleDecoder(
        tuple(source.columns),
        tuple(read_as),
        sizes,
        tuple(wanted),
        allow_unsafe_types=False,
        decode_images=False,
        writeable_arrays=False,
    )
