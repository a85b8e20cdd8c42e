"""LocalDataset: a directory of shards as a sequence."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamshard import LocalDataset
from streamshard.errors import BlobNotFoundError, FormatError, StorageError
from streamshard.format.schema import Schema
from streamshard.read import open_shards
from tests.support.small_datasets import COLUMNS, edit_index, text_samples, write_dataset, write_shard

SAMPLES = text_samples(35)


@pytest.fixture(scope="module", params=[None, "zstd:3", "gz", "bz2", "br:1", "snappy"], ids=str)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("dataset")
    write_dataset(path, SAMPLES, compression=request.param)
    return path


def tree(directory: Path) -> list[tuple[str, int, int]]:
    return sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in directory.iterdir())


def test_all_samples_come_in_order_and_nothing_is_written(directory: Path) -> None:
    before = tree(directory)
    dataset = LocalDataset(directory)
    assert list(dataset) == SAMPLES
    assert [dataset[i] for i in range(35)] == SAMPLES
    assert len(dataset) == dataset.size == dataset.num_samples == 35
    assert dataset.num_shards == 4
    assert dataset.columns == COLUMNS
    assert tree(directory) == before


SELECTIONS: list[Any] = [
    0, 34, -1, -35, np.int64(7), np.uint8(7), np.int32(-2),
    slice(None), slice(3, 30, 4), slice(None, None, -1), slice(30, 2, -7), slice(40, 50), slice(-3, None),
    [3, 3, -1, 17], (1, 2), range(5, 20, 5), [], np.array([34, 0, 11, 10, 9]), np.array([], np.int64),
    np.array([5], np.uint64), np.arange(35) % 3 == 0, [True] * 35, np.zeros(35, bool),
]  # fmt: skip


@pytest.mark.parametrize("at", SELECTIONS, ids=repr)
def test_selections_mean_what_they_mean_in_numpy(directory: Path, at: Any) -> None:
    dataset = LocalDataset(directory)
    expected = np.arange(35)[list(at) if isinstance(at, (tuple, range)) and len(at) else at]
    if np.ndim(expected) == 0:
        assert dataset[at] == SAMPLES[int(expected)]
    else:
        assert dataset[at] == [SAMPLES[i] for i in expected.astype(int)]


def test_arrays_of_more_dimensions_give_nested_lists(directory: Path) -> None:
    dataset = LocalDataset(directory)
    ids = np.array([[[3, -1], [0, 12]], [[5, 5], [20, 34]]])
    assert dataset[ids] == [[[SAMPLES[i] for i in row] for row in block] for block in ids]
    assert dataset[[[1, 2], [3, 4]]] == [SAMPLES[1:3], SAMPLES[3:5]]
    assert dataset[np.zeros((2, 0), int)] == [[], []]
    assert dataset[np.array(4)] == SAMPLES[4]


BEYOND: list[Any] = [35, -36, 10**30, [0, 35], np.array([-36]), np.array([2**64 - 1], np.uint64), [10**30]]


@pytest.mark.parametrize("at", BEYOND, ids=repr)
def test_beyond_the_end_is_an_index_error_with_the_range(directory: Path, at: Any) -> None:
    (wrong,) = {int(value) for value in np.ravel(at) if not -35 <= int(value) < 35}
    with pytest.raises(IndexError, match=rf"sample {wrong}: the dataset has 35 samples, so from -35 to 34"):
        LocalDataset(directory)[at]


@pytest.mark.parametrize(
    "at", ["0", 1.0, None, True, [0.5], ["a"], {1, 2}, np.array([1.0]), [[1], [2, 3]]], ids=repr
)
def test_what_is_no_selection_is_a_type_error(directory: Path, at: Any) -> None:
    with pytest.raises(TypeError, match=r"selected by|one shape"):
        LocalDataset(directory)[at]


def test_a_mask_must_be_as_long_as_the_dataset(directory: Path) -> None:
    with pytest.raises(IndexError, match=r"mask of shape \(3,\) for 35"):
        LocalDataset(directory)[np.ones(3, bool)]


def test_b067_the_last_sample_of_each_shard_is_read(tmp_path: Path) -> None:
    samples = text_samples(57)
    write_dataset(tmp_path, samples, samples_per_shard=12)
    dataset = LocalDataset(tmp_path)
    assert [dataset[i] for i in (11, 23, 35, 47, 56)] == [samples[i] for i in (11, 23, 35, 47, 56)]


def test_columns_can_be_chosen(directory: Path) -> None:
    dataset = LocalDataset(directory, columns=["number", "id"])
    assert dataset[11] == {"id": "a11", "number": 11}
    assert dataset.columns == {"id": "str", "number": "int"}
    with pytest.raises(ValueError, match=r"'nope'.*'id', 'number', 'text'"):
        LocalDataset(directory, columns=["nope"])
    with pytest.raises(ValueError, match="list of names"):
        LocalDataset(directory, columns="id")


def test_b139_it_pickles_before_and_after_use(directory: Path) -> None:
    dataset = LocalDataset(directory, columns=["id"])
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(dataset))
        assert copy[-1] == dataset[-1] == {"id": "a34"}
        iterator = iter(dataset)
        next(iterator)
    assert pickle.loads(pickle.dumps(copy))[:] == dataset[:]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_b139_torch_reads_it_as_a_map_style_dataset(tmp_path: Path, method: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    write_dataset(tmp_path, SAMPLES, compression="zstd")
    dataset = LocalDataset(tmp_path)
    dataset[0]
    loader = data.DataLoader(
        dataset, batch_size=8, num_workers=2, multiprocessing_context=method, collate_fn=list
    )
    assert [sample for batch in loader for sample in batch] == SAMPLES


def test_it_needs_neither_torch_nor_a_picture_library(directory: Path) -> None:
    program = (
        "import sys; from streamshard import LocalDataset; LocalDataset(sys.argv[1])[3];"
        "print(sorted({'torch', 'PIL', 'fsspec'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_batch_reader_calls_the_getitem_of_a_subclass(directory: Path) -> None:
    class Upper(LocalDataset):
        def __getitem__(self, at: Any) -> Any:
            return super().__getitem__(at)["id"].upper()

    dataset = Upper(directory)
    assert dataset.__getitems__([3, 4]) == ["A3", "A4"]
    assert list(dataset)[:2] == ["A0", "A1"]
    assert LocalDataset(directory).__getitems__([4, 3]) == [SAMPLES[4], SAMPLES[3]]


def test_b047_the_error_names_shard_row_number_and_id_and_the_rest_stays_readable(tmp_path: Path) -> None:
    write_dataset(tmp_path, SAMPLES)
    path = tmp_path / "shard.00002.mds"
    path.write_bytes(path.read_bytes().replace(b"text of 26", b"text of \xff6"))
    dataset = LocalDataset(tmp_path)
    pattern = r"'shard.00002.mds', row 6, sample 26 .*id='a26'.*column 'text'"
    for at in (26, -9, slice(None), [1, 26], np.arange(20, 30)):
        with pytest.raises(FormatError, match=pattern):
            dataset[at]
    seen = []
    with pytest.raises(FormatError, match=pattern):
        seen.extend(dataset)
    iterator = iter(dataset)
    assert [next(iterator) for _ in range(26)] == SAMPLES[:26]
    with pytest.raises(FormatError, match=pattern):
        next(iterator)
    assert dataset[:26] + dataset[27:] == SAMPLES[:26] + SAMPLES[27:]
    assert LocalDataset(tmp_path, columns=["id"])[26] == {"id": "a26"}


def jpeg(color: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 8), color).save(out, "JPEG")
    return out.getvalue()


def test_b063_pictures_come_as_bytes_when_decoding_is_off(tmp_path: Path) -> None:
    one, two = jpeg((250, 0, 0)), jpeg((0, 0, 250))
    write_dataset(tmp_path, [{"i": one, "l": [two, one]}], {"i": "jpeg", "l": "list[jpeg]"})
    assert LocalDataset(tmp_path, decode_images=False)[0] == {"i": one, "l": [two, one]}
    assert LocalDataset(tmp_path)[0]["i"].size == (16, 8)


def test_b046_a_cut_picture_names_its_sample_and_source_and_others_are_read(tmp_path: Path) -> None:
    whole = jpeg((1, 2, 3))
    samples = [
        {"image": whole[: len(whole) // 2] if i == 1 else whole, "image_path": f"x/{i}.jpg"} for i in range(3)
    ]
    write_dataset(tmp_path, samples, {"image": "jpeg", "image_path": "str"})
    dataset = LocalDataset(tmp_path)
    with pytest.raises(
        FormatError, match=r"'shard.00000.mds', row 1, sample 1 .*image_path='x/1.jpg'.*'image'"
    ):
        dataset[1]
    assert dataset[0]["image"].size == dataset[2]["image"].size == (16, 8)
    assert LocalDataset(tmp_path, decode_images=False)[1] == samples[1]


def test_s19_arrays_are_writeable_on_request(tmp_path: Path) -> None:
    write_dataset(tmp_path, [{"a": np.arange(4)}] * 3, {"a": "ndarray:int64:4"})
    assert not LocalDataset(tmp_path)[0]["a"].flags.writeable
    found = LocalDataset(tmp_path, writeable_arrays=True)
    for sample in (found[0], found[:][1], next(iter(found))):
        sample["a"] += 1
        assert sample["a"].tolist() == [1, 2, 3, 4]


def test_shards_of_different_columns_are_read_each_as_it_is(tmp_path: Path) -> None:
    from streamshard.format.index import index_text

    first, second = Schema.from_columns({"a": "int"}), Schema.from_columns({"a": "str", "b": "int"})
    shards = [
        write_shard(tmp_path, 0, first, [first.encode_sample({"a": 1})]),
        write_shard(tmp_path, 1, second, [second.encode_sample({"a": "x", "b": 2})]),
    ]
    (tmp_path / "index.json").write_bytes(index_text(shards))
    assert list(LocalDataset(tmp_path)) == [{"a": 1}, {"a": "x", "b": 2}]
    assert LocalDataset(tmp_path, columns=["a"])[:] == [{"a": 1}, {"a": "x"}]
    with pytest.raises(ValueError, match="'b'"):
        LocalDataset(tmp_path, columns=["b"])


def test_s8_empty_shards_and_empty_datasets_are_read(tmp_path: Path) -> None:
    from streamshard.format.index import index_text

    schema = Schema.from_columns({"a": "int"})
    encoded = [schema.encode_sample({"a": i}) for i in range(3)]
    parts: list[Sequence[bytes]] = [[], encoded[:1], [], [], encoded[1:], []]
    shards = [write_shard(tmp_path, number, schema, part) for number, part in enumerate(parts)]
    (tmp_path / "index.json").write_bytes(index_text(shards))
    dataset = LocalDataset(tmp_path)
    assert [sample["a"] for sample in dataset] == [dataset[i]["a"] for i in range(3)] == [0, 1, 2]
    (tmp_path / "index.json").write_bytes(index_text([]))
    empty = LocalDataset(tmp_path)
    assert len(empty) == 0
    assert list(empty) == empty[:] == []
    with pytest.raises(IndexError, match="empty"):
        empty[0]


def test_a_split_and_shards_in_sub_directories_are_found(tmp_path: Path) -> None:
    write_dataset(tmp_path / "train", SAMPLES)
    write_dataset(tmp_path / "train" / "more" / "deep", text_samples(5))
    edit_index(
        tmp_path / "train",
        lambda shards: shards.append(
            {**shards[0], **_entry(tmp_path / "train" / "more" / "deep", "more/deep/shard.00000.mds")}
        ),
    )
    assert LocalDataset(tmp_path, split="train")[:] == SAMPLES + text_samples(5)
    assert LocalDataset(f"file://{tmp_path}/train")[-1] == text_samples(5)[-1]


def _entry(directory: Path, basename: str) -> dict[str, Any]:
    import json

    (entry,) = json.loads((directory / "index.json").read_text())["shards"]
    entry["raw_data"]["basename"] = basename
    return dict(entry)


def test_a_raw_file_beside_a_compressed_one_is_used(tmp_path: Path) -> None:
    write_dataset(tmp_path, SAMPLES, compression="gz", keep_raw=True)
    for path in tmp_path.glob("*.gz"):
        path.unlink()
    assert list(LocalDataset(tmp_path)) == SAMPLES


def test_b042_b043_odd_directory_names_are_only_names(tmp_path: Path) -> None:
    odd = tmp_path / "a b+c=d%20é" / "train.v1"
    write_dataset(odd, SAMPLES)
    assert LocalDataset(odd)[3] == LocalDataset(odd.parent, split="train.v1")[3] == SAMPLES[3]


def test_urls_of_other_machines_are_refused() -> None:
    for url in ("s3://bucket/x", "memory://x"):
        with pytest.raises(ValueError, match="StreamingDataset"):
            LocalDataset(url)


def test_open_files_are_bounded_and_b097_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, text_samples(100), samples_per_shard=2)
    monkeypatch.setattr(open_shards, "MAX_OPEN_SHARDS", 8)
    before = len(os.listdir("/proc/self/fd"))
    dataset = LocalDataset(tmp_path)
    assert list(dataset) == text_samples(100)
    assert dataset[::-1] == text_samples(100)[::-1]
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 8
    del dataset
    for _ in range(500):
        LocalDataset(tmp_path)[7]
    assert len(os.listdir("/proc/self/fd")) == before


def test_decompressed_copies_are_bounded_and_have_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, temporary = tmp_path / "data", tmp_path / "tmp"
    temporary.mkdir()
    infos = write_dataset(data, SAMPLES, compression="zstd")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(open_shards, "MAX_INFLATED_NBYTES", infos[0].raw.nbytes + 10)
    dataset = LocalDataset(data)
    before = len(os.listdir("/proc/self/fd"))
    assert [dataset[i] for i in (0, 15, 30, 1, 16)] == [SAMPLES[i] for i in (0, 15, 30, 1, 16)]
    assert list(temporary.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match=r"shard.00003.mds.*TMPDIR"):
        dataset[34]


def test_threads_and_forked_children_share_one_dataset(directory: Path) -> None:
    dataset = LocalDataset(directory)
    wrong: list[int] = []

    def read(seed: int) -> None:
        for at in np.random.default_rng(seed).integers(0, 35, 300).tolist():
            if dataset[at] != SAMPLES[at]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0 if list(dataset) == SAMPLES else 1)
        children.append(child)
    for thread in threads:
        thread.join()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert not wrong


def test_a_child_reads_though_another_thread_held_the_lock_when_it_was_forked(directory: Path) -> None:
    dataset = LocalDataset(directory)
    with dataset._shards._lock:
        child = os.fork()
        if not child:
            signal.alarm(20)  # a child that waits for that lock is ended
            os._exit(0 if dataset[3] == SAMPLES[3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestB070MissingIndex:
    def message(self, place: Path, **options: Any) -> str:
        with pytest.raises(BlobNotFoundError) as caught:
            LocalDataset(place, **options)
        return str(caught.value)

    def test_shards_without_an_index_mean_an_unfinished_writer(self, tmp_path: Path) -> None:
        write_dataset(tmp_path, SAMPLES)
        (tmp_path / "index.json").unlink()
        message = self.message(tmp_path)
        assert str(tmp_path / "index.json") in message
        assert "4 shard files" in message
        assert "killed" in message
        assert "run it again" in message
        assert "streamshard repair" in message

    def test_the_parent_of_a_split_names_the_split(self, tmp_path: Path) -> None:
        write_dataset(tmp_path / "train", SAMPLES)
        write_dataset(tmp_path / "val", SAMPLES)
        message = self.message(tmp_path)
        assert "'train', 'val'" in message
        assert "split='train'" in message

    def test_a_wrong_split_names_the_right_ones(self, tmp_path: Path) -> None:
        write_dataset(tmp_path / "train", SAMPLES)
        message = self.message(tmp_path, split="valid")
        assert str(tmp_path / "valid" / "index.json") in message
        assert "'train'" in message

    def test_a_split_that_is_not_needed(self, tmp_path: Path) -> None:
        write_dataset(tmp_path, SAMPLES)
        assert "leave out split='train'" in self.message(tmp_path, split="train")

    def test_the_path_is_given_in_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert str(tmp_path / "data" / "index.json") in self.message(Path("data"))

    def test_a_large_tree_is_not_walked_to_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("streamshard.read.missing._MAX_SCANNED", 50)
        for i in range(100):
            (tmp_path / f"{i}").touch()
        write_dataset(tmp_path / "a" / "b" / "c" / "d", SAMPLES)
        assert "split" not in self.message(tmp_path)

    def test_a_directory_that_is_not_there_or_empty_or_of_something_else(self, tmp_path: Path) -> None:
        assert "does not exist" in self.message(tmp_path / "nope")
        assert "nothing at all" in self.message(tmp_path)
        (tmp_path / "notes.txt").write_text("x")
        assert "notes.txt" in self.message(tmp_path)
        assert "is not a directory" in self.message(tmp_path / "notes.txt")
