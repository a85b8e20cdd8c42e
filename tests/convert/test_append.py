"""``--append``: readers have the old dataset or the new one; what is added is like what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, MDSWriter, convert_records
from streamshard.convert import job
from streamshard.convert.job import convert_splits, dry_run
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError, DirectoryInUseError
from streamshard.read.verify import verify_dataset
from streamshard.storage import open_store
from streamshard.write.claim import Claim
from tests.support.jsonl_inputs import files_of, noise, picture, run, shards_of, write_lines

_SMALL: dict[str, Any] = {"size_limit": 2000}


def _lines(path: Path, first: int, count: int = 30) -> Path:
    rows = [{"id": number, "text": f"nº {number}" * 10} for number in range(first, first + count)]
    return write_lines(path, rows)


def _ids(out: Path) -> list[int]:
    return [sample["id"] for sample in LocalDataset(str(out))]


def test_old_readers_go_on_with_the_old_and_new_ones_have_all(tmp_path: Path) -> None:
    out = tmp_path / "A"
    run(_lines(tmp_path / "a.jsonl", 0), out, **_SMALL, append=True)
    before, old = shards_of(out), LocalDataset(str(out))
    summary = run(_lines(tmp_path / "b.jsonl", 100), out, **_SMALL, append=True)
    assert (summary.samples, summary.samples_before) == (30, 30)
    assert "added to the 30 samples there; 60 in all" in summary.lines()
    assert [sample["id"] for sample in old] == [*range(30)]
    assert _ids(out) == [*range(30), *range(100, 130)]
    assert before.items() <= shards_of(out).items()
    assert len(shards_of(out)) == 2 * len(before)
    assert verify_dataset(str(out)).ok
    # What is added is what these records alone become.
    run(tmp_path / "b.jsonl", tmp_path / "B", **_SMALL)
    assert set(shards_of(tmp_path / "B").values()) <= set(shards_of(out).values())


def test_the_same_command_adds_once(tmp_path: Path) -> None:
    out = tmp_path / "A"
    for number in range(3):
        source = _lines(tmp_path / f"{number}.jsonl", 100 * number)
        assert not run(source, out, **_SMALL, append=True).finished_before
        whole = files_of(out)
        for earlier in range(number + 1):
            assert run(tmp_path / f"{earlier}.jsonl", out, **_SMALL, append=True).finished_before
        assert files_of(out) == whole
    with pytest.raises(ConvertError, match="not made by this job"):
        run(tmp_path / "0.jsonl", out, **_SMALL)
    run(tmp_path / "0.jsonl", out, **_SMALL, append=True, resume=False)
    assert len(_ids(out)) == 120


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_leaves_the_old_dataset_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    out = tmp_path / "A"
    run(_lines(tmp_path / "a.jsonl", 0), out, **_SMALL)
    index = (out / "index.json").read_bytes()
    source = _lines(tmp_path / "b.jsonl", 100)
    with monkeypatch.context() as patched:
        patched.setattr(job._Job, "_publish", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(source, out, **_SMALL, append=True, workers=workers)
    assert (out / "index.json").read_bytes() == index
    assert _ids(out) == [*range(30)]
    assert verify_dataset(str(out)).ok
    summary = run(source, out, **_SMALL, append=True, workers=workers)
    assert summary.resumed_shards == summary.shards
    run(tmp_path / "a.jsonl", tmp_path / "B", **_SMALL)
    run(source, tmp_path / "B", **_SMALL, append=True)
    assert files_of(out) == files_of(tmp_path / "B")


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_others_have_added_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "A"
    run(_lines(tmp_path / "a.jsonl", 0), out, **_SMALL)
    source = _lines(tmp_path / "b.jsonl", 100)
    with monkeypatch.context() as patched:
        patched.setattr(job._Job, "_publish", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(source, out, **_SMALL, append=True)
    with MDSWriter(out=str(out), columns={"id": "int", "text": "str"}, append=True) as writer:
        writer.write({"id": 77, "text": "by another"})
    run(source, out, **_SMALL, append=True)
    assert _ids(out) == [*range(30), 77, *range(100, 130)]
    assert verify_dataset(str(out)).ok


def test_an_index_that_changes_before_the_end_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "A"
    run(_lines(tmp_path / "a.jsonl", 0), out, **_SMALL)
    real = job._Job._extra

    def and_then_replaced(*args: Any) -> Any:
        (out / "index.json").write_bytes((out / "index.json").read_bytes() + b"\n")
        return real(*args)

    monkeypatch.setattr(job._Job, "_extra", and_then_replaced)
    with pytest.raises(ConvertError, match="was replaced by somebody else"):
        run(_lines(tmp_path / "b.jsonl", 100), out, **_SMALL, append=True)
    assert _ids(out) == [*range(30)]


def test_two_at_once_one_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "A"
    run(_lines(tmp_path / "a.jsonl", 0), out)
    claim = Claim(out)
    with pytest.raises(DirectoryInUseError, match="is writing here"):
        run(_lines(tmp_path / "b.jsonl", 100), out, append=True)
    claim.release()
    assert _ids(out) == [*range(30)]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"id": 1, "text": "x", "more": 2}, r"column 'more' \(int\) is new"),
        ({"id": 1}, "key 'text' is absent"),
        ({"id": 1.5, "text": "x"}, r"b\.jsonl:1: key 'id' holds"),
        ({"id": 1, "text": None}, "key 'text' is null"),
    ],
)
def test_other_columns_are_refused_by_name(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    out = tmp_path / "A"
    run(_lines(tmp_path / "a.jsonl", 0), out)
    whole = files_of(out)
    with pytest.raises(ConvertError, match=what):
        run(write_lines(tmp_path / "b.jsonl", [row]), out, append=True)
    assert whole.items() <= files_of(out).items()
    options = ConvertOptions(sources=(str(tmp_path / "b.jsonl"),), out=str(out), append=True, workers=1)
    with pytest.raises(ConvertError):
        dry_run(options)


def test_values_take_the_types_that_are_there(tmp_path: Path) -> None:
    out = tmp_path / "A"
    run(write_lines(tmp_path / "a.jsonl", [{"x": 1.5, "y": "a", "z": [1]}, {"x": 2.5, "y": None}]), out)
    run(write_lines(tmp_path / "b.jsonl", [{"x": 3, "y": "b"}, {"x": -1.0, "y": 3}]), out, append=True)
    samples = list(LocalDataset(str(out)))
    assert [(s["x"], s["y"], s["z"]) for s in samples] == [
        (1.5, "a", [1]),
        (2.5, None, None),
        (3.0, "b", None),
        (-1.0, 3, None),
    ]


def test_binary_that_is_null_is_no_bytes_as_in_the_first_run(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": b"x", "b": [b"y", b""]}, {"a": None, "b": None}, {}]
    for append in (False, True):
        convert_records(rows, tmp_path / "A", append=append, workers=1, resume=False)
    expected = [{"a": b"x", "b": [b"y", b""]}, *[{"a": b"", "b": []}] * 2]
    assert list(LocalDataset(str(tmp_path / "A"))) == expected * 2
    with pytest.raises(ConvertError, match="key 'a' is null, and its column is to be bytes"):
        convert_records(rows, tmp_path / "A", append=True, columns=(("a", "bytes"),), workers=1)


def test_images_take_the_column_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(noise())
    (tmp_path / "b.png").write_bytes(picture())
    one, other = [{"image": "a.jpg"}], [{"image": "b.png"}]
    out = tmp_path / "A"
    run(write_lines(tmp_path / "a.jsonl", one), out)
    run(write_lines(tmp_path / "b.jsonl", other), out, append=True)
    stored = [bytes(sample["image"]) for sample in LocalDataset(str(out), decode_images=False)]
    assert stored == [noise(), picture()]
    assert json.loads((out / "index.json").read_bytes())["streamshard"]["images"] == {
        "image": {"jpeg": 1, "png": 1}
    }
    with pytest.raises(
        ConvertError, match="has one image in every record there; here 1 records have 2 images"
    ):
        run(write_lines(tmp_path / "c.jsonl", [{"image": ["a.jpg", "b.png"]}]), out, append=True)
    run(tmp_path / "b.jsonl", tmp_path / "B")
    with pytest.raises(ConvertError, match="has PNG files alone there; here are jpeg files too"):
        run(tmp_path / "a.jsonl", tmp_path / "B", append=True)
    run(write_lines(tmp_path / "c.jsonl", [{"image": ["a.jpg"]}, {"image": []}]), tmp_path / "C")
    run(write_lines(tmp_path / "d.jsonl", [{"image": "a.jpg"}]), tmp_path / "C", append=True)
    run(write_lines(tmp_path / "e.jsonl", [{"image": None}]), tmp_path / "C", append=True)
    assert [len(sample["image"]) for sample in LocalDataset(str(tmp_path / "C"))] == [1, 0, 1, 0]


_WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(24)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            {"file_keys": ("audio",), "rename": (("n", "m"),), "image_keys": ("pic",), "drop": ("x y",)},
            {},
            "made with --drop 'x y' --file-key audio --image-key pic --rename n=m, which this run lacks",
        ),
        (
            {},
            {"file_keys": ("audio",)},
            "this run has --file-key audio, which the dataset there was made without",
        ),
        (
            {"drop": ("n",)},
            {"drop": ("audio",)},
            "made with --drop n, which .* this run has --drop audio, which",
        ),
        ({"costs": (("c", "x y"),)}, {}, "made with --cost 'c=x y', which"),
    ],
)
def test_an_error_names_the_options_that_the_dataset_was_made_with(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    (tmp_path / "1.wav").write_bytes(_WAV)
    (tmp_path / "1.png").write_bytes(picture())
    source = write_lines(tmp_path / "a.jsonl", [{"n": "1", "audio": "1.wav", "pic": "1.png", "x y": 2}] * 3)
    run(source, tmp_path / "A", **first)
    whole = files_of(tmp_path / "A")
    with pytest.raises(ConvertError, match=words) as caught:
        run(source, tmp_path / "A", append=True, resume=False, **second)
    assert str(caught.value).endswith(": what is added takes the options of what is there")
    assert whole.items() <= files_of(tmp_path / "A").items()
    assert run(source, tmp_path / "A", append=True, resume=False, **first).samples == 3


def test_of_a_dataset_without_a_note_the_columns_tell_the_options(tmp_path: Path) -> None:
    (tmp_path / "1.wav").write_bytes(_WAV)
    columns = {"audio": "bytes", "audio_path": "str"}
    with MDSWriter(out=str(tmp_path / "A"), columns=columns, costs={"c": len}, sample_hash="xxh64") as writer:
        writer.write({"audio": _WAV, "audio_path": "0.wav"})
    source = write_lines(tmp_path / "a.jsonl", [{"audio": "1.wav", "c": 1}])
    options: dict[str, Any] = {"append": True, "sample_hash": "xxh64", "costs": (("c", "c"),)}
    with pytest.raises(
        ConvertError, match="made with --cost c=KEY --file-key audio --sample-hash xxh64, which"
    ):
        run(source, tmp_path / "A", append=True)
    with pytest.raises(ConvertError, match="made with --file-key audio, which this run lacks: what"):
        run(source, tmp_path / "A", **options)
    run(source, tmp_path / "A", **options, file_keys=("audio",), drop=("c",))
    assert [sample["audio_path"] for sample in LocalDataset(str(tmp_path / "A"))] == ["0.wav", "1.wav"]


def test_a_note_of_options_may_hold_anything(tmp_path: Path) -> None:
    run(write_lines(tmp_path / "a.jsonl", [{"n": 1}]), tmp_path / "A", drop=("m",))
    index = tmp_path / "A" / "index.json"
    shown = json.loads(index.read_text())
    shown["streamshard"]["convert"]["given"] = {
        "\x1b[2J": ["x"],
        "--drop": ["\x1b[2J"],
        "y": "z",
        "--cost": [1],
    }
    index.write_text(json.dumps(shown))
    with pytest.raises(ConvertError, match="made with ") as caught:
        run(write_lines(tmp_path / "b.jsonl", [{"o": 1}]), tmp_path / "A", append=True)
    assert str(caught.value).replace("\n", "").isprintable()


def test_images_that_are_scaled_otherwise_are_told(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(noise())
    source = write_lines(tmp_path / "a.jsonl", [{"image": "1.jpg"}])
    again: dict[str, Any] = {"append": True, "resume": False}
    assert run(source, tmp_path / "A", max_side=16).warnings == ()
    (warning,) = run(source, tmp_path / "A", **again).warnings
    assert warning == "images there were converted with --max-side 16, those added with neither"
    (warning,) = run(source, tmp_path / "A", **again, max_side=16, quality=50).warnings
    assert warning.endswith("with --max-side 16, those added with --max-side 16 --quality 50")
    assert run(source, tmp_path / "A", **again, max_side=16).warnings == ()


def test_costs_and_hashes_of_samples_are_joined_or_refused(tmp_path: Path) -> None:
    out = tmp_path / "A"
    options: dict[str, Any] = {**_SMALL, "costs": (("n", "id"),), "sample_hash": "xxh64"}
    run(_lines(tmp_path / "a.jsonl", 0), out, **options)
    source = _lines(tmp_path / "b.jsonl", 100, 5)
    with pytest.raises(ConvertError, match=r"the costs of what is there: \['n'\], found none"):
        run(source, out, append=True, sample_hash="xxh64")
    with pytest.raises(ConvertError, match="hashes of samples that are there: xxh64, found none"):
        run(source, out, append=True, costs=(("n", "id"),))
    run(source, out, append=True, **options)
    facts = json.loads((out / "index.json").read_bytes())["streamshard"]
    assert facts["costs"]["n"]["total"] == sum(range(30)) + sum(range(100, 105))
    assert verify_dataset(str(out), deep=True).ok


def test_what_was_left_out_is_listed_together(tmp_path: Path) -> None:
    out = tmp_path / "A"
    (tmp_path / "b.png").write_bytes(picture())
    for name in ("a", "b"):
        rows = [{"id": 1, "image": "nope.png"}, {"id": 2, "image": "b.png"}]
        source = write_lines(tmp_path / f"{name}.jsonl", [*rows, {"id": name, "image": "b.png"}])
        run(source, out, append=True, on_error="skip")
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [entry["file"] for entry in rejected] == ["a.jsonl", "b.jsonl"]


def test_adding_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"memory://append-{tmp_path.name}"
    run(_lines(tmp_path / "a.jsonl", 0), url, **_SMALL)
    run(_lines(tmp_path / "b.jsonl", 100), url, **_SMALL, append=True)
    run(tmp_path / "a.jsonl", tmp_path / "A", **_SMALL)
    run(tmp_path / "b.jsonl", tmp_path / "A", **_SMALL, append=True)
    store = open_store(url)
    assert {name: store.read(name) for name in store.list()} == {
        path.name: path.read_bytes() for path in (tmp_path / "A").iterdir()
    }


def test_what_does_not_go_together(tmp_path: Path) -> None:
    source = _lines(tmp_path / "a.jsonl", 0)
    with pytest.raises(ValueError, match="append: not together"):
        run(source, tmp_path / "A", append=True, overwrite=True)
    options = ConvertOptions(sources=(str(source),), out=str(tmp_path / "A"), append=True, workers=1)
    with pytest.raises(ValueError, match="append: not together"):
        convert_splits(options, [("train", 0.5), ("val", 0.5)])
