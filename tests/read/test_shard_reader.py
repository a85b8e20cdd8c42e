"""ShardReader: one raw shard file, random access, exact errors."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard.errors import BlobNotFoundError, FormatError, StorageError
from streamshard.format.encodings import JsonEncoding
from streamshard.format.index import ShardInfo
from streamshard.read import head, raw_file
from streamshard.read.disks import is_local_device
from streamshard.read.raw_file import RawFile
from streamshard.read.shard_reader import ShardReader
from tests.support.small_datasets import text_samples, write_dataset

ROWS = np.array([7, 0, 7, 3, 4, 5, 9])


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, ShardInfo]:
    (info,) = write_dataset(tmp_path, text_samples(10))
    return tmp_path / info.raw.basename, info


def open_reader(shard: tuple[Path, ShardInfo], **options: Any) -> ShardReader:
    path, info = shard
    return ShardReader(path, info, info.schema.decoder(), **options)


@pytest.fixture(params=["map", "pread"])
def reader(
    request: pytest.FixtureRequest, shard: tuple[Path, ShardInfo], monkeypatch: pytest.MonkeyPatch
) -> ShardReader:
    monkeypatch.setattr(raw_file, "is_local_device", lambda _device: request.param == "map")
    return open_reader(shard, first_sample_id=100)


def test_every_way_to_read_gives_the_same_samples(reader: ShardReader) -> None:
    expected = text_samples(10)
    assert [reader.sample(row) for row in range(10)] == expected
    assert reader.samples(np.arange(10)) == expected
    assert reader.samples(ROWS) == [expected[row] for row in ROWS]
    columns = reader.columns_of(ROWS)
    assert columns["number"].tolist() == ROWS.tolist()
    assert columns["id"] == [f"a{row}" for row in ROWS]
    buffer, begins, ends = reader.gather(ROWS)
    assert [buffer[a:b] for a, b in zip(begins, ends, strict=True)] == [reader.raw(row) for row in ROWS]
    assert len(reader) == 10
    assert reader.sample_nbytes().tolist() == [len(reader.raw(row)) for row in range(10)]


def test_no_rows_give_no_samples(reader: ShardReader) -> None:
    assert reader.samples(np.array([], np.int64)) == []
    assert reader.gather(np.array([], np.int64))[0] == b""


def test_negative_rows_count_from_the_end_and_others_are_refused(reader: ShardReader) -> None:
    assert reader.sample(-1) == reader.samples(np.array([-1]))[0] == text_samples(10)[9]
    for row in (10, -11):
        with pytest.raises(IndexError, match="10 samples"):
            reader.sample(row)
        with pytest.raises(IndexError, match="10 samples"):
            reader.samples(np.array([0, row]))


def test_s9_a_read_that_the_system_cuts_is_continued(
    reader: ShardReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reader.raw(3)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, at: pread(fd, min(nbytes, 3), at))
    assert reader.raw(3) == whole
    assert reader.samples(ROWS) == [text_samples(10)[row] for row in ROWS]


@pytest.mark.slow
def test_s9_a_sample_above_2_gib_comes_back_whole(tmp_path: Path) -> None:
    (info,) = write_dataset(tmp_path, [{"b": b""}], {"b": "bytes"})
    path = tmp_path / info.raw.basename
    nbytes = 2_147_479_552 + 5000
    head = bytearray(path.read_bytes())
    head[8:12] = (len(head) + nbytes).to_bytes(4, "little")
    head[-4:] = nbytes.to_bytes(4, "little")
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + nbytes)
    bigger = ShardInfo(
        info.schema, None, (), type(info.raw)(info.raw.basename, len(head) + nbytes, {}), None, 1, None
    )
    with ShardReader(path, bigger, info.schema.decoder()) as reader:
        assert len(reader.raw(0)) == nbytes + 4


def test_b139_a_pickled_reader_opens_the_file_again(reader: ShardReader) -> None:
    reader.sample(0)
    copy = pickle.loads(pickle.dumps(reader))
    reader.close()
    assert copy.samples(ROWS) == [text_samples(10)[row] for row in ROWS]
    assert copy.first_sample_id == 100


def test_a_forked_child_and_threads_read_through_one_reader(reader: ShardReader) -> None:
    expected = text_samples(10)
    wrong: list[int] = []

    def read_all(rows: list[int]) -> None:
        wrong.extend(row for row in rows if reader.sample(row) != expected[row])

    threads = [
        threading.Thread(target=read_all, args=([i % 10 for i in range(k, 500 + k)],)) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    child = os.fork()
    if not child:
        os._exit(0 if reader.samples(ROWS) == [expected[row] for row in ROWS] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.sample(9) == expected[9]


def test_b097_no_descriptor_is_left_open(shard: tuple[Path, ShardInfo]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        open_reader(shard).samples(ROWS)  # dropped, not closed
    with open_reader(shard) as reader:
        reader.samples(ROWS)
    shard[0].write_bytes(shard[0].read_bytes()[:-1])
    for _ in range(50):
        with pytest.raises(FormatError):
            open_reader(shard)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_cut_under_a_running_reader_is_a_named_error(
    reader: ShardReader, shard: tuple[Path, ShardInfo]
) -> None:
    path, info = shard
    reader.samples(ROWS)
    os.truncate(path, 300)
    pattern = rf"{info.raw.basename}.*{info.raw.nbytes}.*300"
    for read in (lambda: reader.samples(ROWS), lambda: reader.sample(9), lambda: reader.gather(ROWS)):
        with pytest.raises(FormatError, match=pattern):
            read()


def test_a_file_replaced_by_rename_keeps_its_old_content_for_open_readers(
    reader: ShardReader, shard: tuple[Path, ShardInfo]
) -> None:
    path, _ = shard
    (path.parent / "new").write_bytes(b"other")
    (path.parent / "new").replace(path)
    assert reader.samples(ROWS) == [text_samples(10)[row] for row in ROWS]


def test_a_closed_reader_says_so(reader: ShardReader, tmp_path: Path) -> None:
    reader.samples(ROWS)
    reader.close()
    reader.close()
    with (tmp_path / "other").open("wb+"):  # may get the number of the closed descriptor
        for read in (lambda: reader.samples(ROWS), lambda: reader.sample(9), lambda: reader.gather(ROWS)):
            with pytest.raises(ValueError, match="closed"):
                read()


@pytest.mark.parametrize("count", [5, 50])
def test_rows_are_copied_out_of_the_map_before_any_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Decoding may take long; a map whose file is cut meanwhile must not be touched any more."""
    samples = [{"v": list(range(i))} for i in range(60)]
    (info,) = write_dataset(tmp_path, samples, {"v": "json"}, samples_per_shard=60)
    monkeypatch.setattr(raw_file, "is_local_device", lambda _device: True)
    decode = JsonEncoding.decode
    given: list[Any] = []
    monkeypatch.setattr(
        JsonEncoding, "decode", lambda self, piece: given.append(piece) or decode(self, piece)
    )
    with ShardReader(tmp_path / info.raw.basename, info, info.schema.decoder()) as reader:
        assert reader.samples(np.arange(count)) == samples[:count]
    assert len(given) == count
    assert {type(piece) for piece in given} == {bytes}


def test_large_rows_of_a_file_that_is_not_cached_are_asked_for_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [{"b": bytes([i]) * 20_000} for i in range(40)]
    (info,) = write_dataset(tmp_path, samples, {"b": "bytes"}, samples_per_shard=40)
    monkeypatch.setattr(raw_file, "is_local_device", lambda _device: True)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(RawFile, "advise", lambda _self, begin, end: asked.append((begin, end)))
    for cached in (True, False):
        monkeypatch.setattr(RawFile, "is_cached", lambda _self, cached=cached: cached)
        with ShardReader(tmp_path / info.raw.basename, info, info.schema.decoder()) as reader:
            assert reader.samples(np.array([3, 1])) == [samples[3], samples[1]]
            assert reader.samples(np.arange(40)) == samples
        assert len(asked) == (0 if cached else 42)
    assert all(end - begin == 20_004 for begin, end in asked)


def test_of_a_file_that_is_read_through_windows_are_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    monkeypatch.setattr(raw_file, "_WINDOW_NBYTES", 10_000)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _fd, begin, nbytes, _advice: asked.append((begin, nbytes))
    )
    with contextlib.closing(RawFile(path, 100_000, shard="file", read_through=True)) as file:
        for begin, end in [(19_999, 20_001), (5, 10_000), (12_000, 29_000), (99_000, 100_000)]:
            file.advise(begin, end)
    assert asked == [(10_000, 10_000), (20_000, 10_000), (0, 10_000), (90_000, 10_000)]
    asked.clear()
    with contextlib.closing(RawFile(path, 100_000, shard="file")) as file:
        file.advise(5, 7)
        file.advise(5, 7)
    assert asked == [(5, 2), (5, 2)]


def test_a_file_just_written_is_in_the_page_cache_and_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    file = RawFile(path, 100_000, shard="file")
    file.advise(5, 90_000)
    assert file.read(7, 9) == bytes(2)
    if is_local_device(path.stat().st_dev):
        assert file.is_cached()
    file.close()
    assert not file.is_cached()


def test_without_a_map_rows_are_still_read(reader: ShardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    assert reader.samples(ROWS) == [text_samples(10)[row] for row in ROWS]


@pytest.mark.parametrize("change", [-1, 1])
def test_b068_another_size_than_the_index_says_is_refused_at_once(
    shard: tuple[Path, ShardInfo], change: int
) -> None:
    path, info = shard
    nbytes = info.raw.nbytes
    os.truncate(path, nbytes + change)
    with pytest.raises(
        FormatError, match=rf"{path.name}.*index says {nbytes} bytes, .* has {nbytes + change}"
    ):
        open_reader(shard)


def test_a_missing_file_a_directory_and_a_pipe_are_named(shard: tuple[Path, ShardInfo]) -> None:
    path, _ = shard
    path.unlink()
    with pytest.raises(BlobNotFoundError, match=path.name):
        open_reader(shard)
    os.mkfifo(path)
    with pytest.raises(StorageError, match="not a regular file"):
        open_reader(shard)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="not a regular file"):
        open_reader(shard)


def test_b047_a_damaged_sample_is_named_by_shard_row_number_and_id(tmp_path: Path) -> None:
    samples = text_samples(10)
    (info,) = write_dataset(tmp_path, samples)
    path = tmp_path / info.raw.basename
    content = path.read_bytes()
    path.write_bytes(content.replace(b"text of 6", b"text of \xff"))
    with ShardReader(path, info, info.schema.decoder(), first_sample_id=100) as reader:
        for read in (
            lambda: reader.sample(6),
            lambda: reader.samples(np.arange(10)),
            lambda: reader.columns_of(np.arange(10)),
        ):
            with pytest.raises(FormatError, match=r"shard.00000.mds.*row 6, sample 106 .*id='a6'.*'text'"):
                read()
        assert reader.sample(5) == samples[5]


def test_b047_an_id_that_is_itself_damaged_leaves_the_other_names(tmp_path: Path) -> None:
    columns = {"id": "str", "image_path": "str", "key": "int", "text": "str"}
    samples = [{"id": "broken", "image_path": "x/1.jpg", "key": 7, "text": "t"}]
    (info,) = write_dataset(tmp_path, samples, columns)
    path = tmp_path / info.raw.basename
    path.write_bytes(path.read_bytes().replace(b"broken", b"brok\xff\xff"))
    with (
        ShardReader(path, info, info.schema.decoder()) as reader,
        pytest.raises(FormatError, match=r"row 0 \(image_path='x/1.jpg', key=7\): column 'id'"),
    ):
        reader.sample(0)


def test_s19_arrays_can_be_asked_for_writeable_and_never_look_into_the_file(tmp_path: Path) -> None:
    columns = {"fixed": "ndarray:int16:4", "free": "ndarray"}
    samples = [{"fixed": np.arange(4, dtype=np.int16) + i, "free": np.arange(i + 1.0)} for i in range(20)]
    (info,) = write_dataset(tmp_path, samples, columns, samples_per_shard=20)
    path = tmp_path / info.raw.basename
    for writeable in (False, True):
        decoder = info.schema.decoder(writeable_arrays=writeable)
        with ShardReader(path, info, decoder) as reader:
            found = [*reader.samples(np.arange(20)), reader.sample(3)]
        for sample, expected in zip(found, [*samples, samples[3]], strict=True):
            for name in columns:
                np.testing.assert_array_equal(sample[name], expected[name])
                assert sample[name].dtype == expected[name].dtype
                if writeable:
                    sample[name][...] = 0


def test_values_stay_right_when_the_file_goes_after_reading(tmp_path: Path) -> None:
    (info,) = write_dataset(tmp_path, [{"a": np.arange(100) + i} for i in range(5)], {"a": "ndarray"})
    path = tmp_path / info.raw.basename
    with ShardReader(path, info, info.schema.decoder()) as reader:
        found = reader.samples(np.arange(5))
    os.truncate(path, 0)
    np.testing.assert_array_equal(found[4]["a"], np.arange(100) + 4)


def test_a_reader_of_an_unnamed_file_cannot_be_pickled(shard: tuple[Path, ShardInfo]) -> None:
    reader = open_reader(shard, descriptor=os.open(shard[0], os.O_RDONLY))
    assert reader.sample(1) == text_samples(10)[1]
    with pytest.raises(TypeError, match="unnamed"):
        pickle.dumps(reader)


# Large tables of offsets stay in the map


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ShardInfo]:
    monkeypatch.setattr(raw_file, "is_local_device", lambda _device: True)
    monkeypatch.setattr(head, "MAPPED_FROM_NBYTES", 40)
    (info,) = write_dataset(tmp_path, text_samples(10))
    return tmp_path / info.raw.basename, info


def test_a_large_table_of_offsets_is_used_where_it_lies(large: tuple[Path, ShardInfo]) -> None:
    with open_reader(large) as reader:
        assert reader.head.offsets is None
        assert reader.head.nbytes == 0
        test_every_way_to_read_gives_the_same_samples(reader)
        assert reader.pieces(ROWS) == [reader.raw(row) for row in ROWS]
        assert reader.pieces(np.array([-1])) == [reader.raw(9)]
        with pytest.raises(IndexError, match="10 samples"):
            reader.pieces(np.array([10]))


def test_a_table_in_the_map_is_not_touched_once_the_file_was_cut(large: tuple[Path, ShardInfo]) -> None:
    with open_reader(large) as reader:
        reader.samples(ROWS)
        os.truncate(large[0], 0)
        for read in (
            lambda: reader.samples(ROWS),
            lambda: reader.samples(np.arange(10).repeat(8)),
            lambda: reader.sample(9),
            lambda: reader.raw(9),
            lambda: reader.pieces(ROWS),
            reader.sample_nbytes,
        ):
            with pytest.raises(FormatError, match="cut or replaced"):
                read()


@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_a_table_that_is_written_to_while_it_is_used_is_not_trusted(
    large: tuple[Path, ShardInfo], word: int
) -> None:
    path, _ = large
    with open_reader(large) as reader:
        with path.open("r+b") as file:
            file.seek(4 + 4 * 8)
            file.write(word.to_bytes(4, "little"))
        row = 7 if word == 0 else 8  # ends before it begins, or begins behind the file
        for read in (
            lambda: reader.samples(np.array([row])),
            lambda: reader.samples(np.full(80, row)),
            lambda: reader.sample(row),
            lambda: reader.raw(row),
        ):
            with pytest.raises(FormatError, match="table of offsets is not any more"):
                read()
        assert reader.sample(3) == text_samples(10)[3]


# Opening again


@pytest.mark.parametrize("mapped_from", [40, 1000])
def test_a_file_that_is_opened_again_is_checked_again_only_if_it_changed(
    large: tuple[Path, ShardInfo], monkeypatch: pytest.MonkeyPatch, mapped_from: int
) -> None:
    path, _ = large
    monkeypatch.setattr(head, "MAPPED_FROM_NBYTES", mapped_from)
    parsed: list[str] = []
    parse = head.parse_header
    monkeypatch.setattr(head, "parse_header", lambda *a, **o: parsed.append("") or parse(*a, **o))
    with open_reader(large) as reader:
        known = reader.head
    with open_reader(large, known=known) as again:
        assert again.samples(ROWS) == [text_samples(10)[row] for row in ROWS]
        assert again.head is known
    assert len(parsed) == 1
    content = bytearray(path.read_bytes())
    content[4 + 4 * 8 : 8 + 4 * 8] = bytes(4)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FormatError, match="before it begins"):
        open_reader(large, known=known)
    assert len(parsed) == 2


def test_a_known_file_that_cannot_be_mapped_now_is_read_again(
    large: tuple[Path, ShardInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_reader(large) as reader:
        known = reader.head
    monkeypatch.setattr(raw_file, "is_local_device", lambda _device: False)
    with open_reader(large, known=known) as again:
        assert again.head.offsets is not None
        assert again.samples(ROWS) == [text_samples(10)[row] for row in ROWS]
