"""Compression: round trips, equal bytes, and files that lie about their size."""

from __future__ import annotations

import builtins
import gzip
import io
import tracemalloc
import zlib

import pytest

from streamshard.errors import FormatError, MissingDependencyError
from streamshard.format.compression import LEVELS, decompress_file, parse_compression

RAW = b"".join(b"sample %d " % i for i in range(5000)) + bytes(range(256)) * 40
NAMES = [
    name if bounds is None else f"{name}:{level}"
    for name, bounds in LEVELS.items()
    for level in {*(bounds or [0])}
]


def inflated(content: bytes, algorithm: str, raw_nbytes: int) -> bytes:
    out = io.BytesIO()
    decompress_file(io.BytesIO(content), out, algorithm, raw_nbytes=raw_nbytes)
    return out.getvalue()


@pytest.mark.parametrize("name", [*LEVELS, *NAMES])
@pytest.mark.parametrize("raw", [RAW, b"", b"x"], ids=["text", "empty", "one"])
def test_what_is_compressed_inflates_to_itself_and_twice_to_the_same_bytes(name, raw):
    codec = parse_compression(name)
    assert codec.name == name
    assert codec.suffix == "." + name.partition(":")[0]
    content = codec.compress(raw)
    assert content == codec.compress(raw)
    assert inflated(content, codec.algorithm, len(raw)) == raw


def test_gzip_holds_no_time_and_no_system():
    content = parse_compression("gz").compress(RAW)
    assert content[:10] == b"\x1f\x8b\x08\x00\0\0\0\0\x02\xff"
    assert gzip.decompress(content) == RAW


@pytest.mark.parametrize("name", [None, ""])
def test_no_name_is_no_compression(name):
    assert parse_compression(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "lz4",
        "zstd:",
        "zstd:0",
        "zstd:23",
        "zstd:+3",
        "zstd: 3",
        "zstd:03",
        "gz:10",
        "bz2:0",
        "snappy:1",
        "zstd:3:4",
        "ZSTD",
        3,
    ],
)
def test_another_name_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"compression=.*expected one of br:0\.\.11, .*snappy, zstd:1\.\.22"):
        parse_compression(name)


@pytest.mark.parametrize("name", list(LEVELS))
def test_more_or_less_than_the_declared_size_is_an_error(name):
    content = parse_compression(name).compress(RAW)
    for declared in (len(RAW) - 1, len(RAW) + 1, 0):
        with pytest.raises(FormatError, match="declare"):
            inflated(content, name, declared)


@pytest.mark.parametrize("name", list(LEVELS))
def test_a_file_cut_or_damaged_or_of_another_kind_is_an_error(name):
    content = parse_compression(name).compress(RAW)
    for bad in (
        content[: len(content) // 2],
        content[:-1],
        b"",
        b"garbage" * 9,
        content[:20] + b"\xff" * 40 + content[60:],
    ):
        with pytest.raises(FormatError, match=name):
            inflated(bad, name, len(RAW))


@pytest.mark.parametrize("name", ["br", "zstd", "gz", "bz2"])
def test_bytes_after_the_end_are_an_error(name):
    content = parse_compression(name).compress(RAW)
    with pytest.raises(FormatError, match=name):
        inflated(content + b"garbage", name, len(RAW))


@pytest.mark.parametrize("name", ["gz", "bz2", "zstd"])
def test_files_of_several_frames_are_read_as_one(name):
    codec = parse_compression(name)
    assert inflated(codec.compress(RAW) + codec.compress(b"more"), name, len(RAW) + 4) == RAW + b"more"


@pytest.mark.parametrize("name", list(LEVELS))
def test_a_bomb_is_stopped_at_the_declared_size(name):
    bomb = parse_compression(name).compress(bytes(1 << 26))
    out = io.BytesIO()
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"the index declares|the index 1000"):
        decompress_file(io.BytesIO(bomb), out, name, raw_nbytes=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(out.getvalue()) <= 1000
    assert peak < (1 << 24) + len(bomb)


def test_snappy_with_a_length_that_never_ends_is_an_error():
    with pytest.raises(FormatError, match="no length at its start"):
        inflated(b"\xff" * 20, "snappy", 5)


def test_an_unknown_algorithm_is_named():
    with pytest.raises(FormatError, match="unknown compression 'lz4'; known: br, bz2"):
        inflated(b"", "lz4", 0)


@pytest.mark.parametrize(("name", "package", "remedy"), [
    ("br", "brotli", "streamshard[codecs]"),
    ("snappy", "snappy", "streamshard[codecs]"),
    ("zstd", "zstandard", "pip install zstandard"),
])  # fmt: skip
def test_a_missing_package_is_named_with_its_extra(name, package, remedy, monkeypatch):
    real = builtins.__import__

    def without(wanted, *args):
        if wanted == package:
            raise ImportError(wanted)
        return real(wanted, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=remedy.replace("[", r"\[")):
        parse_compression(name).compress(b"x")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_older_brotli_without_an_output_limit_is_fed_in_small_bites(monkeypatch):
    import brotli

    class Old:
        def __init__(self):
            self._real = real()

        def process(self, piece):
            assert len(piece) <= 64
            return self._real.process(piece)

        def is_finished(self):
            return self._real.is_finished()

    real = brotli.Decompressor
    monkeypatch.setattr(brotli, "Decompressor", Old)
    assert inflated(brotli.compress(RAW), "br", len(RAW)) == RAW


def test_zlib_data_that_is_not_gzip_is_an_error():
    with pytest.raises(FormatError, match="not a gz file"):
        inflated(zlib.compress(RAW), "gz", len(RAW))
