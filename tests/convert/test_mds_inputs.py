"""MDS datasets as sources: re-shard, re-compress, shuffle, select, join."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset, MDSWriter, merge_index
from streamshard.errors import ConvertError, FormatError
from tests.support.jsonl_inputs import converted, picture, run, shards_of, write_lines

_COLUMNS = {
    "id": "int", "text": "str", "score": "float32", "tokens": "ndarray:uint16", "box": "ndarray:float32:4",
    "meta": "json", "photo": "jpeg", "photos": "list[png]", "blob": "bytes", "big": "str_int", "what": "pkl",
}  # fmt: skip


def _sample(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "text": f"text {number} ☃" * (number % 5),
        "score": np.float32(number / 3),
        "tokens": np.arange(number % 9, dtype=np.uint16),
        "box": np.full(4, number, np.float32),
        "meta": {"a": [number, None]},
        "photo": picture("JPEG", color=(number % 256, 0, 0)),
        "photos": [picture(color=(0, number % 256, 0))] * (number % 3),
        "blob": bytes(number % 4),
        "big": 10**30 + number,
        "what": (number, {"x"}),
    }


def _dataset(out: Path, count: int = 60, begin: int = 0, **options: Any) -> Path:
    columns = options.pop("columns", _COLUMNS)
    with MDSWriter(out=str(out), columns=columns, **options) as writer:
        for number in range(begin, begin + count):
            sample = _sample(number)
            writer.write({name: sample[name] for name in columns})
    return out


def _read(out: Path) -> list[dict[str, Any]]:
    return list(LocalDataset(str(out), decode_images=False, allow_unsafe_types=True))


def _columns(out: Path) -> list[str]:
    shards = json.loads((out / "index.json").read_text())["shards"]
    return list(map(str, shards[0]["column_encodings"]))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _dataset(tmp_path_factory.mktemp("mds") / "A", size_limit=20_000, hashes=["sha1"])


def test_mds_to_mds_sample_for_sample_with_other_shards_and_compression(
    dataset: Path, tmp_path: Path
) -> None:
    wanted = _read(dataset)
    run(dataset, tmp_path / "B", size_limit=50_000, compression="zstd:3", workers=2)
    np.testing.assert_equal(_read(tmp_path / "B"), wanted)
    # From compressed shards back: no column was touched on the way.
    run(tmp_path / "B", tmp_path / "C", size_limit=20_000)
    assert _columns(tmp_path / "C") == _columns(dataset)
    np.testing.assert_equal(_read(tmp_path / "C"), wanted)


def test_a_dataset_is_shuffled_once_on_disk(dataset: Path, tmp_path: Path) -> None:
    run(dataset, tmp_path / "B", shuffle=1, samples_per_shard=7)
    ids = [sample["id"] for sample in _read(tmp_path / "B")]
    assert ids != sorted(ids)
    assert sorted(ids) == list(range(60))
    by_id = {sample["id"]: sample for sample in _read(tmp_path / "B")}
    np.testing.assert_equal([by_id[number] for number in range(60)], _read(dataset))


def test_columns_are_chosen_renamed_and_typed_anew(dataset: Path, tmp_path: Path) -> None:
    drop = tuple(name for name in _COLUMNS if name not in ("id", "text", "box"))
    samples = converted(
        dataset,
        tmp_path / "B",
        drop=drop,
        rename=(("text", "caption"),),
        columns=(("id", "uint32"), ("box", "json")),
    )
    assert samples == [
        {"id": number, "caption": _sample(number)["text"], "box": [float(number)] * 4} for number in range(60)
    ]
    assert isinstance(samples[0]["id"], np.uint32)


def test_datasets_of_different_columns_are_joined_by_what_their_values_are(tmp_path: Path) -> None:
    a = _dataset(tmp_path / "a", 2, columns={"id": "int", "score": "float32", "photo": "jpeg"})
    b = _dataset(tmp_path / "b", 2, 2, columns={"id": "int32", "text": "str", "photo": "jpeg"})
    samples = converted([a, b], tmp_path / "B")
    assert [sample["id"] for sample in samples] == [0, 1, 2, 3]
    assert [sample["photo"] for sample in samples] == [_sample(number)["photo"] for number in range(4)]
    assert [sample["score"] for sample in samples[2:]] == [None, None]
    pickled = _dataset(tmp_path / "c", 2, columns={"id": "int", "what": "pkl"})
    with pytest.raises(ConvertError, match=r"column 'what' is pkl, which is not decoded.*--drop what"):
        run([a, pickled], tmp_path / "C")
    assert len(converted([a, pickled], tmp_path / "C", drop=("what",))) == 4


def test_a_merged_index_and_a_dataset_at_a_url_are_read(tmp_path: Path) -> None:
    from streamshard.storage import open_store

    for name, begin in (("x", 0), ("y", 10)):
        _dataset(tmp_path / "all" / name, 10, begin, compression="zstd", size_limit=8000)
    merge_index(str(tmp_path / "all"))
    run(tmp_path / "all", tmp_path / "B")
    np.testing.assert_equal(
        _read(tmp_path / "B"),
        [_read(tmp_path / "all" / "x")[n] for n in range(10)] + _read(tmp_path / "all" / "y"),
    )
    url = f"memory://{tmp_path.name}/all"
    for path in (tmp_path / "all").rglob("*"):
        if path.is_file():
            open_store(url).put(str(path.relative_to(tmp_path / "all")), path)
    run(url, tmp_path / "C")
    assert shards_of(tmp_path / "C") == shards_of(tmp_path / "B")


def test_an_unreadable_image_is_found_unless_checks_are_off(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "a"), columns={"photo": "jpeg"}) as writer:
        writer.write({"photo": picture("JPEG")})
        writer.write({"photo": b"\xff\xd8\xff" + bytes(30)})
    with pytest.raises(
        ConvertError, match=r"shard\.00000\.mds: sample 2: column 'photo': content is not a readable"
    ):
        run(tmp_path / "a", tmp_path / "B")
    assert run(tmp_path / "a", tmp_path / "B", check=False).samples == 2
    assert run(tmp_path / "a", tmp_path / "C", on_error="skip").skipped == {"unreadable image": 1}


@pytest.mark.parametrize("damage", ["bit", "cut", "gone", "columns", "path"])
def test_damaged_datasets_are_refused_by_name(dataset: Path, tmp_path: Path, damage: str) -> None:
    broken = tmp_path / "a"
    shutil.copytree(dataset, broken)
    shard = broken / "shard.00001.mds"
    index = json.loads((broken / "index.json").read_text())
    if damage == "bit":
        content = bytearray(shard.read_bytes())
        content[-20] ^= 1
        shard.write_bytes(bytes(content))
    elif damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-5])
    elif damage == "gone":
        shard.unlink()
    elif damage == "columns":
        index["shards"][1]["column_encodings"][0] = "str"
    else:
        index["shards"][1]["raw_data"]["basename"] = "../../etc/passwd"
    (broken / "index.json").write_text(json.dumps(index))
    with pytest.raises((FormatError, ConvertError, OSError), match=r"shard\.00001\.mds|passwd"):
        run(broken, tmp_path / "B")
    assert not (tmp_path / "B" / "index.json").exists()


def test_the_same_job_over_its_own_outcome_has_nothing_to_do(dataset: Path, tmp_path: Path) -> None:
    run(dataset, tmp_path / "B")
    assert run(dataset, tmp_path / "B").finished_before


def test_marks_in_the_text_stand_for_images_that_are_stored_already(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png", "text": "<image> what?"}] * 2)
    assert run(source, tmp_path / "A").warnings == ()
    assert run(tmp_path / "A", tmp_path / "B", drop=("image_path",)).warnings == ()
