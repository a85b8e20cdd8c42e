"""What an input is: told by the ending of its name, by its first bytes, or by the index in a folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from streamshard.convert.listing import Place
from streamshard.convert.unpacking import PACKED_SUFFIXES
from streamshard.errors import ConvertError

RECIPE = "recipe"
KINDS = ("jsonl", "csv", "tsv", "parquet", "hf", "mds", "webdataset", "litdata", "imagefolder", RECIPE)
"""The kinds of input, as ``--from`` takes them. ``hf`` also stands for single Arrow files."""

ROWS = "rows"
"""The kind of what :func:`streamshard.convert.records.convert_records` lays down."""

_GIVE = "give its records to streamshard.convert_records"
_UNREAD_ENDINGS = {
    "tfrecord": f"TFRecord: {_GIVE}",
    "tfrecords": f"TFRecord: {_GIVE}",
    "mdb": f"LMDB: {_GIVE}",
    "beton": f"FFCV: {_GIVE}",
    "rec": f"RecordIO: {_GIVE}",
    "mat": f"MATLAB: {_GIVE}",
    "h5": f"HDF5: {_GIVE}",
    "hdf5": f"HDF5: {_GIVE}",
    "npy": f"NumPy arrays: {_GIVE}",
    "npz": f"NumPy arrays: {_GIVE}",
    "pt": f"a file of torch.save: {_GIVE}",
    "pkl": f"a pickle: {_GIVE}",
    "xlsx": "a spreadsheet: save it as CSV",
    "zip": "a ZIP archive: unpack it",
}
_UNREAD_ENDING = re.compile(rf"\.({'|'.join(_UNREAD_ENDINGS)})(?:-\d+-of-\d+)?", re.IGNORECASE)
_BEGINS_JSON = (b"{", b"[", b"\xef\xbb\xbf", b" ", b"\n", b"\r")

SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines", ".json"), "jsonl"),
    ".csv": "csv",
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".arrow": "hf",
    **dict.fromkeys((".tar", ".tgz"), "webdataset"),
}
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif", ".ppm", ".pgm", ".jfif",
    ".jpe", ".heif", ".apng", ".jp2", ".pbm", ".pnm", ".tga", ".ico",
)  # fmt: skip
UNREAD_PICTURES = (
    ".jxl",
    ".svg",
    ".psd",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".dng",
    ".exr",
    ".eps",
    ".xcf",
    ".pdf",
)
"""Endings of pictures that are not read: nobody would look for such files among those that were left out."""

# Files that people have, and that would only be broken lines.
_UNREAD = {
    b"PK\x03\x04": "a ZIP archive (.zip, .xlsx, .npz): unpack it, or save the sheet as CSV, and name what is inside",
    b"ORC": "an ORC file: write it as Parquet (pyarrow.orc.read_table, then pyarrow.parquet.write_table)",
    b"Obj\x01": "an Avro file: write it as Parquet or JSONL",
    **dict.fromkeys(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
        "a pickle, which is not read since that runs code: write its records with streamshard.MDSWriter",
    ),
    b"SQLite format 3\0": "an SQLite database: write the table out as CSV (sqlite3 -csv -header FILE 'select …')",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file: give its rows to streamshard.convert_records",
    b"\x93NUMPY": "a NumPy array: give its rows to streamshard.convert_records",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it, and name what is inside",
    **dict.fromkeys(
        (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*"),
        "a picture, and no records: name the folder that holds the pictures",
    ),
    b"%PDF": "a PDF document: make pictures of its pages, and name their folder",
    b"Rar!": "a RAR archive: unpack it, and name what is inside",
}


def unread_by_name(names: Iterable[str]) -> str:
    """What to say of the first file whose ending is of a kind that is not read; ``""`` where there is none."""
    for name in names:
        match = _UNREAD_ENDING.search(name)
        if match is not None and match.end() == len(name):
            return f"{name} is {_UNREAD_ENDINGS[match[1].lower()]}"
    return ""


def kind_by_name(name: str) -> str | None:
    """The kind that a file's ending stands for, ``.gz`` and the like taken off; ``None`` for an unknown one."""
    return SUFFIXES.get(os.path.splitext(bare_name(name))[1])  # noqa: PTH122 also the key of an object


def bare_name(name: str) -> str:
    lowered = name.lower()
    for suffix in PACKED_SUFFIXES:
        lowered = lowered.removesuffix(suffix)
    return lowered


def kind_by_content(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(512)
    for magic, what in _UNREAD.items():
        if head.startswith(magic):
            raise ConvertError(f"source {path.name!r}: {what}")
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "hf"
    if head[257:262] == b"ustar":
        return "webdataset"
    unread = unread_by_name([path.name]) if not head.startswith(_BEGINS_JSON) else ""
    if unread:
        raise ConvertError(f"source {path.name!r}: {unread}")
    return None


def kind_by_index(place: Place) -> str:
    try:
        index = json.loads(place.read("index.json"))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{place.name}/index.json: not JSON: {error}") from None
    if isinstance(index, dict) and isinstance(index.get("shards"), list):
        return "mds"
    if isinstance(index, dict) and isinstance(index.get("chunks"), list):
        return "litdata"
    raise ConvertError(f"{place.name}/index.json: neither an MDS index (shards) nor a LitData one (chunks)")
