"""One row per way in which a dataset can be malformed: a named error, bounded memory, listed by `verify`."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import streamshard
from streamshard import LocalDataset
from streamshard.errors import BlobNotFoundError, ChecksumError, FormatError, UnsafeEncodingError
from streamshard.format.encodings import parse_encoding
from streamshard.read.verify import verify_dataset
from tests.support.small_datasets import edit_index, text_samples, write_dataset

SECOND = "shard.00001.mds"


def rewrite(directory: Path, change: Callable[[bytearray], None], name: str = SECOND) -> None:
    """Change the bytes of a shard; its index entry follows in size, and has no hash to tell."""
    content = bytearray((directory / name).read_bytes())
    change(content)
    (directory / name).write_bytes(content)
    edit_index(directory, lambda shards: shards[1]["raw_data"].update(bytes=len(content), hashes={}))


def word(at: int, value: int) -> Callable[[Path], None]:
    """Put a u32 into the second shard."""
    return lambda directory: rewrite(directory, lambda content: struct.pack_into("<I", content, at, value))


def config(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Put another JSON text of the same length into the second shard."""

    def damage(directory: Path) -> None:
        def put(content: bytearray) -> None:
            begin = 8 + 4 * 10
            (end,) = struct.unpack_from("<I", content, 4)
            text = change(bytes(content[begin:end]))
            assert len(text) == end - begin
            content[begin:end] = text

        rewrite(directory, put)

    return damage


def entry(**values: Any) -> Callable[[Path], None]:
    """Change keys of the second shard's index entry."""
    return lambda directory: edit_index(directory, lambda shards: shards[1].update(values))


def basename(name: str) -> Callable[[Path], None]:
    return lambda directory: edit_index(directory, lambda shards: shards[1]["raw_data"].update(basename=name))


def swap(directory: Path) -> None:
    """Exchange two shards of one size and one number of samples: only a hash can tell."""
    write_dataset(directory, [{"id": f"a{i:02d}", "number": i, "text": "same"} for i in range(30)])
    (directory / SECOND).rename(directory / "t")
    (directory / "shard.00002.mds").rename(directory / SECOND)
    (directory / "t").rename(directory / "shard.00002.mds")


def flip(directory: Path) -> None:
    content = bytearray((directory / SECOND).read_bytes())
    content[-3] ^= 1
    (directory / SECOND).write_bytes(content)


def cut(nbytes: int) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / SECOND
        os.truncate(path, path.stat().st_size + nbytes)

    return damage


def billion(directory: Path) -> None:
    word(0, 2**30)(directory)
    entry(samples=2**30)(directory)


def version(number: int) -> Callable[[Path], None]:
    return lambda directory: (directory / "index.json").write_text(f'{{"version": {number}, "shards": []}}')


# name, damage, error on reading (None: it cannot be seen without the hash), words of the message
HOSTILE: list[tuple[str, Callable[[Path], None], type[Exception] | None, str]] = [
    ("missing", lambda d: (d / SECOND).unlink(), BlobNotFoundError, f"{SECOND}"),
    ("truncated", cut(-1), FormatError, f"{SECOND}.*index says .* bytes.* has"),
    ("emptied", lambda d: os.truncate(d / SECOND, 0), FormatError, f"{SECOND}.*index says"),
    ("one byte longer", cut(1), FormatError, f"{SECOND}.*index says"),
    ("bit flip", flip, None, f"{SECOND}.*xxh64"),
    ("two shards swapped", swap, None, f"{SECOND}.*xxh64"),
    ("header n one too large", word(0, 11), FormatError, f"{SECOND}.*10 samples.*11"),
    ("header n huge", word(0, 2**32 - 1), FormatError, f"{SECOND}.*samples"),
    ("header and index n huge", billion, FormatError, "samples"),
    ("first offset wrong", word(4, 7), FormatError, f"{SECOND}.*begin"),
    ("first offset late", word(4, 10**6), FormatError, f"{SECOND}.*begin"),
    ("offsets not monotone", word(4 + 4 * 5, 60), FormatError, f"{SECOND}.*before it begins"),
    ("offsets past the end", word(4 + 4 * 5, 10**6), FormatError, f"{SECOND}.*before it begins"),
    ("last offset past the end", word(4 + 4 * 10, 10**6), FormatError, f"{SECOND}.*end at 1000000"),
    ("config not JSON", config(lambda text: b"x" * len(text)), FormatError, f"{SECOND}.*JSON"),
    ("config an array", config(lambda text: b"[]".ljust(len(text))), FormatError, f"{SECOND}.*object"),
    ("config not UTF-8", config(lambda text: b"\xff" * len(text)), FormatError, f"{SECOND}.*JSON"),
    ("config deeply nested", config(lambda text: b"[" * len(text)), FormatError, f"{SECOND}.*JSON"),
    ("other columns", config(lambda t: t.replace(b'"number"', b'"bumner"')), FormatError, "bumner.*number"),
    ("other encodings", config(lambda t: t.replace(b'"int"', b'"str"')), FormatError, "column_encodings"),
    ("a length word too large", lambda d: rewrite(d, lambda c: damage_length(c)), FormatError, "row 0"),
    ("index one sample more", entry(samples=11), FormatError, f"{SECOND}.*11 samples.*10"),
    ("index one sample less", entry(samples=9), FormatError, f"{SECOND}.*9 samples.*10"),
    ("negative samples", entry(samples=-1), FormatError, "shard 1.*samples"),
    ("samples no integer", entry(samples="10"), FormatError, "shard 1.*samples"),
    ("basename with ..", basename("../x.mds"), FormatError, r"shard 1.*basename.*\.\./x"),
    ("basename inside ..", basename("a/../../x.mds"), FormatError, "basename"),
    ("absolute basename", basename("/etc/hostname"), FormatError, "basename.*/etc/hostname"),
    ("basename with NUL", basename("a\0b"), FormatError, "basename"),
    ("basename with drive", basename("c:\\x"), FormatError, "basename"),
    ("same basename twice", basename("shard.00000.mds"), FormatError, "shard.00000.mds"),
    ("hash that is not known", lambda d: edit_hash(d, "sha0"), None, ""),
    ("index cut", lambda d: os.truncate(d / "index.json", 900), FormatError, "index.json.*JSON"),
    ("index a list", lambda d: (d / "index.json").write_text("[]"), FormatError, "index.json"),
    ("index of version 3", version(3), FormatError, "index.json: version 3"),
]  # fmt: skip


def damage_length(content: bytearray) -> None:
    (begin,) = struct.unpack_from("<I", content, 4)
    struct.pack_into("<I", content, begin, 2**32 - 1)


def edit_hash(directory: Path, name: str) -> None:
    edit_index(directory, lambda shards: shards[1]["raw_data"].update(hashes={name: "00"}))


@pytest.mark.parametrize(
    ("damage", "error", "words"), [row[1:] for row in HOSTILE], ids=[r[0] for r in HOSTILE]
)
def test_b068_damage_is_a_named_error_and_verify_lists_it(
    tmp_path: Path, damage: Callable[[Path], None], error: type[Exception] | None, words: str
) -> None:
    write_dataset(tmp_path, text_samples(30))
    damage(tmp_path)
    if error is not None:
        with pytest.raises(error, match=words):
            list(LocalDataset(tmp_path))
    report = verify_dataset(tmp_path)
    if not words:
        assert report.ok
        assert any("sha0" in note for note in report.notes)
        return
    assert not report.ok
    assert any(re.search(words, problem.message) for problem in report.problems), report.problems


@pytest.mark.parametrize(
    "damage", [row[1] for row in HOSTILE if row[0] in ("truncated", "missing", "header n huge")]
)
def test_b068_other_shards_stay_readable(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_dataset(tmp_path, text_samples(30))
    damage(tmp_path)
    dataset = LocalDataset(tmp_path)
    assert dataset[:10] + dataset[20:] == text_samples(10) + text_samples(30)[20:]
    with pytest.raises((FormatError, BlobNotFoundError)):
        dataset[15]


def test_a_pkl_column_runs_nothing_unless_it_is_asked_for(tmp_path: Path) -> None:
    write_dataset(tmp_path, [{"p": Bomb(tmp_path / "ran"), "s": "x"}], {"p": "pkl", "s": "str"})
    with pytest.raises(UnsafeEncodingError, match=r"'p'.*allow_unsafe_types"):
        LocalDataset(tmp_path)
    assert LocalDataset(tmp_path, columns=["s"])[0] == {"s": "x"}
    report = verify_dataset(tmp_path)
    assert report.ok
    assert any("pkl" in note for note in report.notes)
    assert not (tmp_path / "ran").exists()
    assert LocalDataset(tmp_path, allow_unsafe_types=True)[0]["s"] == "x"
    assert (tmp_path / "ran").exists()


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    "payload",
    [b"", b"nonsense", zstandard.compress(b"\0" * 5), zstandard.compress(b"x" * 100_000)[:-9]],
    ids=["empty", "garbage", "too little", "cut"],
)
def test_a_compressed_shard_that_is_not_what_it_says(tmp_path: Path, payload: bytes) -> None:
    write_dataset(tmp_path, text_samples(20), compression="zstd")
    name = "shard.00001.mds.zstd"
    (tmp_path / name).write_bytes(payload)
    edit_index(tmp_path, lambda shards: shards[1]["zip_data"].update(bytes=len(payload), hashes={}))
    with pytest.raises(FormatError, match=name):
        LocalDataset(tmp_path)[10]
    assert any(name in problem.message for problem in verify_dataset(tmp_path).problems)


@pytest.mark.parametrize("change", [-1, 1])
def test_b068_a_compressed_file_of_another_size_is_not_even_decompressed(tmp_path: Path, change: int) -> None:
    write_dataset(tmp_path, text_samples(20), compression="gz")
    path = tmp_path / "shard.00001.mds.gz"
    nbytes = path.stat().st_size
    os.truncate(path, nbytes + change)
    with pytest.raises(FormatError, match=rf"{path.name}.*index says {nbytes} bytes.* has {nbytes + change}"):
        LocalDataset(tmp_path)[10]


def in_little_memory(script: str, directory: Path, extra_bytes: int) -> str:
    """Run ``script`` in a process that may allocate and write only a little more than its imports."""
    program = f"""
import resource, sys
from pathlib import Path
import numpy, zstandard, xxhash
from streamshard import LocalDataset
from streamshard.read.verify import verify_dataset
pages = int(Path('/proc/self/statm').read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {extra_bytes},) * 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)
directory = Path(sys.argv[1])
{script}
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(streamshard.__file__).parents[1]),
            "OPENBLAS_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


READ_AND_VERIFY = """
try:
    for _ in LocalDataset(directory):  # list() would make room for a billion
        pass
except ValueError as error:
    print(type(error).__name__, error)
print(len(verify_dataset(directory).problems))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets address space limits")
def test_huge_declared_counts_allocate_nothing(tmp_path: Path) -> None:
    # Index and header agree on a billion samples in almost 4 GiB; the file is small.
    write_dataset(tmp_path, text_samples(1))
    with (tmp_path / "shard.00000.mds").open("r+b") as file:
        file.write(struct.pack("<I", 10**9))
    edit_index(
        tmp_path,
        lambda shards: (
            shards[0].update(samples=10**9),
            shards[0]["raw_data"].update(bytes=2**32 - 1, hashes={}),
        ),
    )
    out = in_little_memory(READ_AND_VERIFY, tmp_path, 50 << 20)
    assert "FormatError" in out
    assert out.splitlines()[-1] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets address space limits")
@pytest.mark.parametrize("algorithm", ["zstd", "snappy"])  # all of them in the corpus of tests/hostile
def test_a_decompression_bomb_stops_at_the_declared_size(tmp_path: Path, algorithm: str) -> None:
    from streamshard.format.compression import parse_compression

    write_dataset(tmp_path, text_samples(10), compression=algorithm)
    how = parse_compression(algorithm if algorithm != "br" else "br:1")
    assert how is not None
    bomb = how.compress(b"\0" * (120 << 20))
    (tmp_path / f"shard.00000.mds.{algorithm}").write_bytes(bomb)
    edit_index(tmp_path, lambda shards: shards[0]["zip_data"].update(bytes=len(bomb), hashes={}))
    before = sorted(path.name for path in tmp_path.iterdir())
    out = in_little_memory(READ_AND_VERIFY, tmp_path, 100 << 20)
    assert f"FormatError shard 'shard.00000.mds.{algorithm}'" in out
    assert out.splitlines()[-1] == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_b083_an_unknown_encoding_is_named_with_the_known_ones(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(3))

    def rename(content: bytearray) -> None:
        content[:] = content.replace(b'["str", "int", "str"]', b'["str", "int", "stx"]')

    content = bytearray((tmp_path / "shard.00000.mds").read_bytes())
    rename(content)
    (tmp_path / "shard.00000.mds").write_bytes(content)
    edit_index(
        tmp_path,
        lambda shards: (
            shards[0].update(column_encodings=["str", "int", "stx"]),
            shards[0]["raw_data"].update(hashes={}),
        ),
    )
    with pytest.raises(FormatError, match=r"'text'.*'stx'.*jpeg_array"):
        LocalDataset(tmp_path)
    assert LocalDataset(tmp_path, columns=["id"])[2] == {"id": "a2"}
    assert any("stx" in problem.message for problem in verify_dataset(tmp_path).problems)


@pytest.mark.parametrize("name", ["jpeg_array", "jpegarray"])
def test_b083_both_spellings_of_the_jpeg_list_are_read(tmp_path: Path, name: str) -> None:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (8, 4), (200, 30, 30)).save(out, "JPEG")
    assert parse_encoding(name).name in ("jpeg_array", "jpegarray")
    write_dataset(tmp_path, [{"a": [out.getvalue()] * 2}], {"a": name})
    assert [image.size for image in LocalDataset(tmp_path)[0]["a"]] == [(8, 4), (8, 4)]
    assert LocalDataset(tmp_path, decode_images=False)[0]["a"] == [out.getvalue()] * 2


def test_a_flipped_bit_is_found_by_the_check_that_the_cache_runs(tmp_path: Path) -> None:
    from streamshard.read.catalog import check_file

    (info,) = write_dataset(tmp_path, text_samples(5))
    path = tmp_path / info.raw.basename
    expected = info.raw.hashes["xxh64"]
    check_file(path, shard="s", algorithm="xxh64", expected=expected)
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    with pytest.raises(ChecksumError, match=rf"'s'.*xxh64.*is [0-9a-f]{{16}}.*{expected}"):
        check_file(path, shard="s", algorithm="xxh64", expected=expected)


def test_random_bytes_never_give_anything_but_a_named_error(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(10))
    path = tmp_path / "shard.00000.mds"
    good = path.read_bytes()
    generator = np.random.Generator(np.random.Philox(5))
    for _ in range(150):
        content = bytearray(good)
        for at in generator.integers(0, len(good), 3):
            content[at] = int(generator.integers(0, 256))
        path.write_bytes(content)
        try:
            list(LocalDataset(tmp_path))
        except FormatError as error:
            assert path.name in str(error)  # noqa: PT017 most of them still read
