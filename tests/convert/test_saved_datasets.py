"""Datasets that Hugging Face ``datasets`` saved, and the rows of a dataset in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import ConvertError, StorageError
from tests.support.jsonl_inputs import converted, picture, run

pa = pytest.importorskip("pyarrow")


def save_dataset(folder: Path, columns: dict[str, Any], files: int = 2, **state: Any) -> Path:
    """Lay a dataset out as ``Dataset.save_to_disk`` does: Arrow streams, ``state.json``, ``dataset_info.json``."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in range(files)]
    size = -(-table.num_rows // files)
    for number, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(number * size, size))
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], "_split": None, **state})
    )
    (folder / "dataset_info.json").write_text("{}")
    return folder


_COLUMNS = {
    "label": [0, 1, 2],
    "text": ["a", "b", "ü"],
    "image": [{"bytes": picture(color=(number, 0, 0)), "path": None} for number in range(3)],
}


def test_a_saved_dataset_is_its_data_files_in_their_order(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "set", _COLUMNS)
    (folder / "cache-1234.arrow").write_bytes(b"not of the data")
    assert converted(folder, tmp_path / "A") == [
        {"label": number, "text": _COLUMNS["text"][number], "image": picture(color=(number, 0, 0))}
        for number in range(3)
    ]


def test_what_is_no_plain_dataset_is_named(tmp_path: Path) -> None:
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ConvertError, match=r"holds several splits; name one, such as .*dict/train"):
        run(tmp_path / "dict", tmp_path / "A")
    chosen = save_dataset(tmp_path / "chosen", _COLUMNS, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(ConvertError, match=r"save it again after dataset\.flatten_indices\(\)"):
        run(chosen, tmp_path / "A")
    for state in ("{", "[]", '{"_data_files": [{}]}'):
        (chosen / "state.json").write_text(state)
        with pytest.raises(ConvertError, match=r"state\.json: not what `datasets` writes"):
            run(chosen, tmp_path / "A")
    (chosen / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    with pytest.raises(StorageError, match="no plain relative path"):
        run(chosen, tmp_path / "A")


@pytest.mark.slow
def test_what_datasets_saves_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "ids": datasets.Sequence(datasets.Value("int32")),
        }
    )
    rows = {
        "image": [Image.new("RGB", (8, 8), (number, 0, 0)) for number in range(10)],
        "label": [number % 2 for number in range(10)],
        "ids": [list(range(number)) for number in range(10)],
    }
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk(str(tmp_path / "set"), num_shards=3)
    samples = converted(tmp_path / "set", tmp_path / "A")
    assert [sample["label"] for sample in samples] == rows["label"]
    assert [sample["ids"].tolist() for sample in samples] == rows["ids"]
    assert run(tmp_path / "set", tmp_path / "B").images == {"image": {"png": 10}}
