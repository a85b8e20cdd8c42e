"""Datasets that are malformed, each in one way. ``write_corpus`` writes one folder for each; all are tiny.

    python -m tests.support.hostile_corpus FOLDER

writes them for other programs to be tried on.
"""

# ruff: noqa: E501  a case is a row of a table
from __future__ import annotations

import bz2
import os
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamshard.format.compression import parse_compression
from tests.support.small_datasets import edit_index, text_samples, write_dataset

SECOND = "shard.00001.mds"
_ROWS = 10  # of each of three shards


@dataclass(frozen=True, slots=True)
class Case:
    """One way to be malformed.

    Attributes:
        name: of the folder.
        write: makes the dataset in a directory that exists.
        errors: names of the errors of which reading all samples gives one.
        words: regular expression that its message matches.
        verify_finds: whether ``verify`` lists it as a problem.
    """

    name: str
    write: Callable[[Path], None]
    errors: tuple[str, ...]
    words: str
    verify_finds: bool = True


def write_corpus(folder: Path) -> list[Case]:
    """Write all datasets, each into the folder of its name; return the cases."""
    for case in CASES:
        (folder / case.name).mkdir(parents=True)
        case.write(folder / case.name)
    return CASES


def _base(directory: Path, **options: Any) -> None:
    write_dataset(directory, text_samples(3 * _ROWS), **options)


def _entry(**values: Any) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory)
        edit_index(directory, lambda shards: shards[1].update(values))

    return write


def _raw(**values: Any) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory)
        edit_index(directory, lambda shards: shards[1]["raw_data"].update(values))

    return write


def _replaced(old: str, new: str, *, last: bool = False) -> Callable[[Path], None]:
    """Change the text of the index where JSON's own writer could not."""

    def write(directory: Path) -> None:
        _base(directory)
        path = directory / "index.json"
        text = path.read_text()
        assert old in text
        before, _, after = text.rpartition(old) if last else text.partition(old)
        path.write_text(before + new + after)

    return write


def _index(content: bytes) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory)
        (directory / "index.json").write_bytes(content)

    return write


def _shard(change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    """Change the second shard; its entry follows in size and has no hash to tell."""

    def write(directory: Path) -> None:
        _base(directory)
        content = bytearray((directory / SECOND).read_bytes())
        change(content)
        (directory / SECOND).write_bytes(content)
        edit_index(directory, lambda shards: shards[1]["raw_data"].update(bytes=len(content), hashes={}))

    return write


def _word(at: int, value: int) -> Callable[[Path], None]:
    return _shard(lambda content: struct.pack_into("<I", content, at, value))


def _config(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Put another config into the second shard, of any length; all offsets follow."""

    def put(content: bytearray) -> None:
        head = 8 + 4 * _ROWS
        (end,) = struct.unpack_from("<I", content, 4)
        text = change(bytes(content[head:end]))
        for place in range(_ROWS + 1):
            (offset,) = struct.unpack_from("<I", content, 4 + 4 * place)
            struct.pack_into("<I", content, 4 + 4 * place, offset + len(text) - (end - head))
        content[head:end] = text

    return _shard(put)


def _billion(directory: Path) -> None:
    """Index and header agree on a billion samples in almost 4 GiB; the file is small."""
    _word(0, 10**9)(directory)
    edit_index(
        directory,
        lambda shards: (shards[1].update(samples=10**9), shards[1]["raw_data"].update(bytes=2**32 - 1)),
    )


def _sparse_billion(directory: Path) -> None:
    """The same, and the file has that size, as a hole."""
    _billion(directory)
    os.truncate(directory / SECOND, 2**32 - 1)


def _values(columns: dict[str, str], payload: bytes) -> Callable[[Path], None]:
    """One sample of one column whose value is ``payload``, however its encoding would refuse to write it."""

    def write(directory: Path) -> None:
        from streamshard.format.index import FileInfo, ShardInfo, index_text
        from streamshard.format.schema import Schema
        from streamshard.format.shard import config_text, pack_shard

        schema = Schema.from_columns(columns)
        config = config_text(schema, compression=None, hashes=[], size_limit=None)
        content = b"".join(pack_shard([struct.pack("<I", len(payload)) + payload], config))
        (directory / SECOND).write_bytes(content)
        info = ShardInfo(schema, None, (), FileInfo(SECOND, len(content), {}), None, 1, None)
        (directory / "index.json").write_bytes(index_text([info]))

    return write


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def _pickle(directory: Path) -> None:
    write_dataset(directory, [{"p": _Touch(directory / "ran"), "s": "x"}], {"p": "pkl", "s": "str"})


def _bomb(algorithm: str) -> Callable[[Path], None]:
    """A compressed shard that grows far beyond the size in the index."""

    def write(directory: Path) -> None:
        _base(directory, compression=algorithm if algorithm != "br" else "br:1")
        _put_compressed(directory, algorithm, _BOMBS[algorithm]())

    return write


def _compressed(algorithm: str, content: bytes, raw_nbytes: int | None = None) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory, compression=algorithm)
        _put_compressed(directory, algorithm, content)
        if raw_nbytes is not None:
            edit_index(directory, lambda shards: shards[1]["raw_data"].update(bytes=raw_nbytes, hashes={}))

    return write


def _put_compressed(directory: Path, algorithm: str, content: bytes) -> None:
    (directory / f"{SECOND}.{algorithm}").write_bytes(content)
    edit_index(directory, lambda shards: shards[1]["zip_data"].update(bytes=len(content), hashes={}))


def _zeros(algorithm: str) -> Callable[[], bytes]:
    def make() -> bytes:
        how = parse_compression(algorithm)
        assert how is not None
        return how.compress(bytes(64 << 20))

    return make


def _gz_zeros() -> bytes:
    machine = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    return b"".join([*(machine.compress(piece) for _ in range(64)), machine.flush()])


_BOMBS: dict[str, Callable[[], bytes]] = {
    "gz": _gz_zeros,
    "bz2": lambda: bz2.compress(bytes(64 << 20), 9),
    "zstd": _zeros("zstd:3"),
    "br": _zeros("br:1"),
    "snappy": lambda: b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\x00" * 20,
}


def _zstd_window() -> bytes:
    """A frame that asks for a window of 1 GiB."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(30 - 10) << 3]) + b"\x01\x00\x00"


def _link(target: str, name: str = SECOND) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory)
        (directory / name).unlink()
        (directory / name).symlink_to(target)

    return write


def _fifo(name: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory)
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return write


def _hole(name: str, nbytes: int) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        _base(directory)
        os.truncate(directory / name, nbytes)

    return write


def _extra(entry: Any) -> Callable[[Path], None]:
    return lambda directory: _base(directory, extra=entry)


def _png(width: int, height: int) -> bytes:
    """A picture that claims to be so large, with no pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def _gz_empty() -> bytes:
    """A member that holds nothing."""
    machine = zlib.compressobj(9, zlib.DEFLATED, 31)
    return machine.compress(b"") + machine.flush()


def _first_length(content: bytearray) -> tuple[int, int]:
    (begin,) = struct.unpack_from("<I", content, 4)
    return begin, 2**32 - 1


_F = ("FormatError",)
_S = ("StorageError",)
_N = "raw_data.basename"

CASES: list[Case] = [
    # counts
    Case("count-negative", _entry(samples=-1), _F, "shard 1: samples is -1"),
    Case("count-float", _entry(samples=10.0), _F, "shard 1: samples is 10.0"),
    Case("count-true", _entry(samples=True), _F, "shard 1: samples is True"),
    Case("count-text", _entry(samples="10"), _F, "shard 1: samples is '10'"),
    Case("count-huge", _entry(samples=2**62), _F, "raw_data has .* bytes for 4611686018427387904 samples"),
    Case("count-other-in-header", _word(0, 11), _F, "10 samples, the file has 11"),
    Case("count-huge-in-header", _word(0, 2**32 - 1), _F, "the file has 4294967295"),
    Case("count-billion", _billion, _F, "index says 4,294,967,295 bytes"),
    Case("count-billion-in-a-hole", _sparse_billion, _F, "the first sample is said to begin"),
    Case("bytes-negative", _raw(bytes=-1), _F, r"raw_data\.bytes is -1"),
    Case("bytes-4-gib", _raw(bytes=2**32), _F, "4294967296 bytes"),
    Case("bytes-of-thousands-of-digits", _replaced('"samples": 10', '"samples": ' + "9" * 6000), _F, "not JSON|samples"),
    Case("number-nan", _replaced('"samples": 10', '"samples": NaN'), _F, "samples is nan"),
    Case("number-infinity", _replaced('"samples": 10', '"samples": 1e999'), _F, "samples is inf"),
    # offsets
    Case("offset-falls", _word(4 + 4 * 5, 60), _F, "before it begins"),
    Case("offset-beyond", _word(4 + 4 * 5, 10**6), _F, "before it begins"),
    Case("offset-first-in-header", _word(4, 7), _F, "first sample is said to begin at 7"),
    Case("offset-first-beyond", _word(4, 2**31), _F, "first sample is said to begin"),
    Case("offset-last-beyond", _word(4 + 4 * _ROWS, 10**6), _F, "said to end at 1000000"),
    Case("shard-empty", _shard(lambda content: content.clear()), _F, "raw_data has 0 bytes"),
    Case("shard-of-7-bytes", _hole(SECOND, 7), _F, "index says"),
    # config
    Case("config-no-json", _config(lambda text: b"x" * 50), _F, "not JSON"),
    Case("config-deep", _config(lambda text: b"[" * 200_000), _F, "not JSON"),
    Case("config-no-utf8", _config(lambda text: b"\xff" * 9), _F, "not JSON"),
    Case("config-list", _config(lambda text: b"[]"), _F, "config is a list"),
    Case("config-17-mib", _config(lambda text: text + b" " * (17 << 20)), _F, "a config of 178"),
    Case("config-other-columns", _config(lambda text: text.replace(b"number", b"bumner")), _F, "bumner"),
    Case("config-key-twice", _config(lambda text: b'{"version": 2, ' + text[1:]), _F, "'version'.* twice"),
    # names
    Case("name-up", _raw(basename="../x.mds"), _F, _N),
    Case("name-up-inside", _raw(basename="a/../../x.mds"), _F, _N),
    Case("name-absolute", _raw(basename="/etc/hostname"), _F, _N),
    Case("name-nul", _raw(basename="a\0b"), _F, _N),
    Case("name-backslash", _raw(basename="..\\x"), _F, _N),
    Case("name-drive", _raw(basename="c:x"), _F, _N),
    Case("name-empty", _raw(basename=""), _F, _N),
    Case("name-dot", _raw(basename="./x"), _F, _N),
    Case("name-url", _raw(basename="http://x/y"), _F, _N),
    Case("name-number", _raw(basename=7), _F, _N),
    Case("name-of-the-index", _raw(basename="index.json"), _F, "index.json"),
    Case("name-twice", _raw(basename="shard.00000.mds"), _F, "two shards have the file"),
    Case("name-of-10000-letters", _raw(basename="x" * 10_000), _F, _N),
    Case("name-lone-surrogate", _raw(basename="\ud800"), _F, _N),
    # JSON
    Case("json-cut", _hole("index.json", 900), _F, "not JSON"),
    Case("json-empty", _index(b""), _F, "not JSON"),
    Case("json-no-utf8", _index(b'{"\xff": 1}'), _F, "not JSON"),
    Case("json-deep", _index(b"[" * 1_000_000), _F, "not JSON"),
    Case("json-deep-inside", _replaced('"zip_data": null}]', '"zip_data": null, "x": ' + "[" * 100_000 + "}]"), _F, "not JSON"),
    Case("json-list", _index(b"[]"), _F, "expected an object"),
    Case("json-shards-object", _index(b'{"version": 2, "shards": {}}'), _F, "expected an object with a list"),
    Case("json-entry-null", _index(b'{"version": 2, "shards": [null]}'), _F, "shard 0: None is not an object"),
    Case("json-version", _index(b'{"version": 3, "shards": []}'), _F, "version 3"),
    Case("json-key-twice", _replaced('"samples": 10', '"samples": 10, "samples": 9'), _F, "'samples'.* twice"),
    Case("json-shards-twice", _replaced('{"shards": ', '{"shards": [], "shards": '), _F, "'shards'.* twice"),
    Case("json-2-gib-of-nothing", _hole("index.json", 2 << 30), ("WrongSizeError",), "at most 1073741824 were expected"),
    # columns
    Case("columns-of-other-length", _entry(column_sizes=[None]), _F, "column"),
    Case("columns-none", _entry(column_names=[], column_encodings=[], column_sizes=[]), _F, "column"),
    Case("columns-same-name", _entry(column_names=["id", "id", "text"]), _F, "column"),
    Case("columns-negative-size", _entry(column_sizes=[None, -8, None]), _F, "size -8"),
    Case("columns-unknown-encoding", _entry(column_encodings=["str", "int", "evil"]), _F, "evil"),
    Case("columns-array-of-4-gib", _entry(column_encodings=["str", "int", "ndarray:int64:99999,99999"]), _F, "4 GiB"),
    Case("pickle", _pickle, ("UnsafeEncodingError",), "allow_unsafe_types", verify_finds=False),
    # values
    Case("value-length-beyond", _shard(lambda c: struct.pack_into("<I", c, *_first_length(c))), _F, "row 0"),
    Case("value-no-utf8", _values({"v": "str"}, b"\xff"), _F, "not UTF-8"),
    Case("value-json-deep", _values({"v": "json"}, b"[" * 100_000), _F, "row 0"),
    Case("value-json-nan", _values({"v": "json"}, b"nan"), _F, "row 0"),
    Case("value-int-of-digits", _values({"v": "str_int"}, b"9" * 10_000), _F, "row 0"),
    Case("value-array-huge", _values({"v": "ndarray"}, b"\x08" + bytes([2 << 2 | 3]) + b"\xff" * 16), _F, "row 0"),
    Case("value-array-of-63-dimensions", _values({"v": "ndarray"}, b"\x08\xfc" + b"\x02" * 63), _F, "row 0"),
    Case("value-raw-picture-huge", _values({"v": "pil"}, struct.pack("<III", 2**31, 2**31, 3) + b"RGB"), _F, "row 0"),
    Case("value-pictures-billions", _values({"v": "list[jpeg]"}, struct.pack("<II", 0, 2**32 - 1)), _F, "row 0"),
    Case("value-picture-bomb", _values({"v": "png"}, _png(60_000, 60_000)), _F, "DecompressionBomb"),
    Case("value-picture-eps", _values({"v": "jpeg"}, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), _F, "row 0"),
    # compression
    *(Case(f"bomb-{name}", _bomb(name), _F, f"{SECOND}.{name}") for name in _BOMBS),
    Case("compressed-4-gib-of-snappy", _compressed("snappy", _BOMBS["snappy"](), 2**32 - 1), _F, "cannot hold"),
    Case("compressed-window", _compressed("zstd", _zstd_window()), _F, "zstd file"),
    Case("compressed-empty", _compressed("gz", b""), _F, f"{SECOND}.gz"),
    Case("compressed-empty-members", _compressed("gz", _gz_empty() * 20_000), _F, f"{SECOND}.gz"),
    Case("compressed-cut", _compressed("bz2", bz2.compress(b"x" * 999)[:-9]), _F, f"{SECOND}.bz2"),
    Case("compressed-unknown", _entry(compression="lzma", zip_data={"basename": "x", "bytes": 1, "hashes": {}}), _F, "lzma"),
    Case("compressed-level", _entry(compression="gz:99", zip_data={"basename": "x", "bytes": 1, "hashes": {}}), _F, "gz:99"),
    # files that are none
    Case("link-to-a-device", _link("/dev/zero"), _S, "not a regular file"),
    Case("link-to-itself", _link(SECOND), _S, "symbolic links"),
    Case("link-to-nothing", _link("nowhere"), ("BlobNotFoundError",), SECOND),
    Case("index-is-a-device", _link("/dev/zero", "index.json"), _S, "expected a regular file"),
    Case("shard-is-a-pipe", _fifo(SECOND), _S, "not a regular file"),
    Case("index-is-a-pipe", _fifo("index.json"), _S, "pipe"),
    # what streamshard adds
    Case("extra-list", _replaced('"version": 2}', '"version": 2, "streamshard": [1]}', last=True), _F, "expected an object"),
    Case("costs-of-other-length", _extra({"costs": {"t": {"shards": [1], "total": 1}}}), _F, "1 sums for 3 shards"),
    Case("costs-beyond", _extra({"costs": {"t": {"shards": [2**63] * 3, "total": 3 * 2**63}}}), _F, "cost 't'"),
    Case("sample-hashes-short", _extra({"sample_hashes": {"algorithm": "md5", "digests": ["00"] * 3}}), _F, "hex digits"),
    Case("sample-hashes-unknown", _extra({"sample_hashes": {"algorithm": "x", "digests": []}}), _F, "sample_hashes"),
]  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"{len(write_corpus(folder))} datasets in {folder}")


if __name__ == "__main__":
    main()
