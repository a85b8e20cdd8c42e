"""A file that is cut while it is being read from its map: the named error, whenever it happens, and no signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from streamshard import StreamingDataset
from streamshard.errors import FormatError
from streamshard.format.index import ShardInfo
from streamshard.read import guarded_map, head
from streamshard.read.guarded_map import guarded, was_cut
from streamshard.read.raw_file import RawFile
from streamshard.read.sample_check import SampleCheck
from streamshard.read.shard_reader import ShardReader
from tests.support.small_datasets import text_samples, write_dataset

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux alone")

SAMPLES = [{**each, "text": each["text"] + "x" * 900} for each in text_samples(20)]  # several pages
FEW = np.array([17, 0, 19])
MANY = np.arange(20).repeat(9)
WAYS: dict[str, Callable[[ShardReader], Any]] = {
    "sample": lambda reader: reader.sample(19),
    "raw": lambda reader: reader.raw(19),
    "few samples": lambda reader: reader.samples(FEW),
    "many samples": lambda reader: reader.samples(MANY),
    "columns": lambda reader: reader.columns_of(MANY),
    "few pieces": lambda reader: reader.pieces(FEW),
    "many pieces": lambda reader: reader.pieces(MANY),
    "sizes": lambda reader: reader.sample_nbytes(),
}


@pytest.fixture
def shard(tmp_path: Path) -> tuple[Path, ShardInfo]:
    (info,) = write_dataset(tmp_path, SAMPLES, samples_per_shard=20)
    return tmp_path / info.raw.basename, info


class Cutter:
    """Cuts a file each time when its map has been handed out, which is when nothing looks at its size any more."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.content = path, path.read_bytes()
        self.nbytes: int | None = None
        mapped = RawFile.mapped

        def mapped_then_cut(file: RawFile) -> Any:
            found = mapped(file)
            if self.nbytes is not None:
                os.truncate(self.path, self.nbytes)
            return found

        monkeypatch.setattr(RawFile, "mapped", mapped_then_cut)

    def mend(self) -> None:
        self.nbytes = None
        self.path.write_bytes(self.content)


@pytest.mark.parametrize("table", ["in memory", "in the map"])
def test_every_way_to_read_names_a_cut_that_comes_before_the_copy(
    shard: tuple[Path, ShardInfo], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, info = shard
    monkeypatch.setattr(head, "MAPPED_FROM_NBYTES", 40 if table == "in the map" else 1 << 20)
    cutter = Cutter(path, monkeypatch)
    tried = 0
    for name, read in WAYS.items():
        if name in ("sizes", "raw") and table == "in memory":
            continue  # not of the map
        # To nothing; in the table of offsets; and the last byte alone, of whose absence no signal tells.
        for nbytes in (0, 30, info.raw.nbytes - 1):
            with ShardReader(path, info, info.schema.decoder()) as reader:
                assert (reader.head.offsets is None) == (table == "in the map")
                read(reader)
                cutter.nbytes = nbytes
                with pytest.raises(FormatError, match=rf"{info.raw.nbytes:,} bytes, .* now has {nbytes:,}; "):
                    read(reader)
                cutter.mend()
                tried += 1
    assert tried >= 18


def test_samples_whose_hashes_are_checked_in_the_map_are_refused_too(
    shard: tuple[Path, ShardInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, info = shard
    with ShardReader(path, info, info.schema.decoder()) as reader:
        digests = b"".join(xxhash.xxh64(reader.raw(row)).digest() for row in range(20))
    check = SampleCheck("xxh64", digests)
    cutter = Cutter(path, monkeypatch)
    with ShardReader(path, info, info.schema.decoder(), check=check) as reader:
        assert reader.samples(MANY) == [SAMPLES[row] for row in MANY]
        cutter.nbytes = 30
        with pytest.raises(FormatError):
            reader.samples(MANY)


def test_samples_of_several_shards_that_are_decoded_in_one_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = write_dataset(tmp_path, SAMPLES, samples_per_shard=5)
    dataset = StreamingDataset(local=tmp_path, batch_size=4)
    assert dataset[[1, 6, 11]] == [SAMPLES[row] for row in (1, 6, 11)]
    in_place = ShardReader.in_place

    def cut_when_looked_up(reader: ShardReader) -> Any:
        found = in_place(reader)
        assert found is not None
        if reader.name == infos[1].raw.basename:
            os.truncate(reader.path, infos[1].raw.nbytes - 1)
        return found

    monkeypatch.setattr(ShardReader, "in_place", cut_when_looked_up)
    with pytest.raises(
        FormatError, match=rf"{infos[1].raw.basename}.* now has {infos[1].raw.nbytes - 1:,}; "
    ):
        dataset[[1, 6, 11]]


def test_a_file_that_is_cut_and_grows_again_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 20_000)
    with path.open("rb") as file:
        mapping = guarded(file.fileno(), 20_000)
        other = guarded(file.fileno(), 20_000)
    assert mapping is not None
    assert other is not None
    os.truncate(path, 5_000)
    assert mapping[4_990:5_010] == b"x" * 10 + bytes(10)
    assert mapping[9_000] == mapping[19_999] == 0
    path.write_bytes(b"x" * 20_000)
    assert was_cut(mapping)
    assert not was_cut(other)
    assert other[:] == b"x" * 20_000


PROGRAM = """
import faulthandler, mmap, os, sys
from pathlib import Path
from streamshard.read.guarded_map import guarded
os.chdir(sys.argv[1])
def cut_map(make):
    Path("file").write_bytes(bytes(9000))
    with open("file", "rb") as file:
        mapping = make(file.fileno())
    os.truncate("file", 0)
    return mapping
guard = lambda descriptor: guarded(descriptor, 9000)
plain = lambda descriptor: mmap.mmap(descriptor, 9000, access=mmap.ACCESS_READ)
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("faulthandler.enable(); cut_map(guard)[0]; print('alive', flush=True); cut_map(plain)[0]", "alive Fatal"),
        ("cut_map(guard)[0]; faulthandler.enable(); cut_map(guard)[0]; print('alive', flush=True); cut_map(plain)[0]",
         "alive Fatal"),
        ("cut_map(guard)[0]; print('alive', flush=True); os.kill(os.getpid(), 7)", "alive"),
        ("cut_map(guard)[0]; mapping = cut_map(guard); mapping.close(); cut_map(plain)[0]", ""),
    ],
    ids=["a handler of before", "a handler of later", "sent by a process", "a map that is closed"],
)  # fmt: skip
def test_any_other_bus_error_goes_where_it_went_before(tmp_path: Path, body: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + body, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGBUS, done.stderr
    assert (done.stdout + done.stderr).replace("\n", " ").startswith(told)


def test_ctrl_c_while_a_cut_is_dealt_with_comes_after_the_copy(
    shard: tuple[Path, ShardInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, info = shard
    cutter = Cutter(path, monkeypatch)
    replace, interrupted = guarded_map._replace, []

    def replace_after_interrupt(address: int) -> bool:
        if not interrupted:
            interrupted.append(address)
            signal.raise_signal(signal.SIGINT)
        return replace(address)

    monkeypatch.setattr(guarded_map, "_replace", replace_after_interrupt)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where a shell runs jobs behind it
    try:
        with ShardReader(path, info, info.schema.decoder()) as reader:
            cutter.nbytes = 0
            with pytest.raises(KeyboardInterrupt):
                reader.samples(MANY)
            with pytest.raises(FormatError):
                reader.samples(MANY)
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupted


def read_the_map_of_a_cut_file(reader: ShardReader) -> None:
    found = reader.place()
    os.truncate(reader.path, 0)
    assert found is not None
    assert found[0][-9:].tobytes() == bytes(9)
    reader.check_whole()


@pytest.mark.parametrize("read", [WAYS["sample"], read_the_map_of_a_cut_file])
def test_a_worker_that_takes_the_signal_for_itself_reads_inherited_maps(
    read: Callable[[ShardReader], Any], shard: tuple[Path, ShardInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As workers of torch do, whose handler says that shared memory is short and ends the worker."""
    path, info = shard
    cutter = Cutter(path, monkeypatch)
    reader = ShardReader(path, info, info.schema.decoder())
    assert reader.sample(3) == SAMPLES[3]
    assert reader.place() is not None
    child = os.fork()
    if not child:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        cutter.nbytes = 0
        try:
            read(reader)
        except FormatError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_cut_that_comes_while_other_threads_map_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    kept: list[Any] = []

    def between_lines(*_: Any) -> Any:
        kept.append(guarded(file.fileno(), 100))
        return between_lines

    before = sys.gettrace()
    with path.open("rb") as file:
        kept += [guarded(file.fileno(), 100) for _ in range(3)]
        sys.settrace(between_lines)
        try:
            found = guarded_map._replace(1)
        finally:
            sys.settrace(before)
    assert not found
    assert len(kept) > 3


def test_two_threads_that_stand_guard_at_once_keep_who_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both have seen another's handler; one has taken the signal meanwhile.
    monkeypatch.setattr(guarded_map, "_taken_by_another", lambda: True)
    guarded_map.stand_guard()
    guarded_map.stand_guard()
    assert guarded_map._previous.handler != guarded_map._own.handler


def test_a_map_that_was_lent_stays_when_its_reader_is_closed_and_goes_with_the_last_array(
    shard: tuple[Path, ShardInfo],
) -> None:
    path, info = shard
    reader = ShardReader(path, info, info.schema.decoder())
    place = reader.place()
    assert place is not None
    mapping = weakref.ref(reader._file.mapped())  # type: ignore[arg-type]
    reader.close()
    assert place[0].tobytes() == path.read_bytes()
    del place
    assert mapping() is None
