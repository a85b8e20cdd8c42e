"""Samples that the scan makes ready: the same shards as from the input, used only where they are whole and fit."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard.convert import job, kept, ready, ready_samples
from streamshard.convert.fetch_limits import FetchLimits
from streamshard.convert.plan import Plan
from streamshard.errors import ConvertError
from streamshard.storage import open_store
from tests.support.jsonl_inputs import files_of, noise, run, stopped_after, write_lines

_CHAT = [{"from": "human", "value": "<image>\nWas ist das? é"}, {"from": "gpt", "value": "\u65e5\u672c"}]
_OTHER = [{"role": "user", "content": "<image>"}]
COLUMNS: dict[str, list[Any]] = {
    "text": ["a", "b", "\u65e5"],
    "whole": [1, -(2**63), 2**63 - 1],
    "number": [0.5, 1e300, -0.0],
    "mixed": ["a", 1, None],
    "chat": [_CHAT, _OTHER, []],
    "nested": [{"a": [1, None]}, {}, {"b": "x"}],
    "null": [None, None, None],
    "truth": [True, False, True],
}
UNFIT: dict[str, list[Any]] = {"text": ["a", "\ud800", "b"], "whole": [1, 2**63, 2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ready")
    for number in range(3):
        (made / f"{number}.jpg").write_bytes(noise(seed=number))
    (made / "link.jpg").symlink_to("1.jpg")
    return made


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made."""
    made: list[Plan] = []
    real = job.make_plan

    def noted(*args: Any) -> Plan:
        made.append(real(*args))
        return made[-1]

    monkeypatch.setattr(job, "make_plan", noted)
    return made


def _rows(columns: dict[str, list[Any]], images: list[str]) -> list[dict[str, Any]]:
    return [
        {"image": image, **{key: values[number] for key, values in columns.items()}}
        for number, image in enumerate(images)
    ]


def _never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "_LEAST_IMAGE_SHARE", 1 << 40)


@pytest.mark.parametrize(
    ("columns", "is_ready"),
    [(COLUMNS, True), *(({key: UNFIT[key]}, False) for key in UNFIT)],
    ids=["all", "surrogate", "large"],
)
@pytest.mark.parametrize("options", [{"check": False}, {"shuffle": 1, "sample_hash": "xxh64"}], ids=str)
def test_shards_are_those_that_are_made_from_the_input(
    columns: dict[str, list[Any]],
    is_ready: bool,
    options: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    plans: list[Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = ["0.jpg", str(folder / "1.jpg"), "link.jpg"]
    sources = [write_lines(tmp_path / f"{name}.jsonl", _rows(columns, images)) for name in "ab"]
    options = {**options, "image_root": str(folder), "size_limit": 10_000}
    run(sources, tmp_path / "A", **options)
    _never(monkeypatch)
    run(sources, tmp_path / "B", **options)
    assert [plan.ready for plan in plans] == [is_ready, False]
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["id", "n", "é"]),
            st.one_of(
                st.text(max_size=3), st.integers(), st.none(), st.lists(st.text(max_size=2), max_size=2)
            ),
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_records_give_the_same_shards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{**row, "image": "0.jpg"} for row in rows])
    options = {"image_root": str(folder), "check": False, "resume": False, "overwrite": True}
    run(source, tmp_path / "A", **options)
    with monkeypatch.context() as patch:
        _never(patch)
        run(source, tmp_path / "B", **options)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({}, {"engine": "local", "costs": (("n", "n"),)}),
        ({}, {"columns": (("n", "int32"),)}),
        ({}, {"image_keys": ("image", "second")}),
        ({"text": "long" * 5000}, {}),
        ({}, {"fetch": FetchLimits()}),
        ({}, {"image_root": "memory://ready"}),
    ],
    ids=["costs", "declared", "two images", "long text", "fetched", "distant"],
)
def test_nothing_is_ready_where_more_is_asked_for(
    row: dict[str, Any], options: dict[str, Any], folder: Path, tmp_path: Path, plans: list[Plan]
) -> None:
    rows = [{"n": 1, "image": "0.jpg", "second": "1.jpg", **row}] * 3
    for name in ("0.jpg", "1.jpg"):
        open_store("memory://ready").put_bytes(name, (folder / name).read_bytes())
    options = {"image_root": str(folder), **options}
    run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", **options)
    assert [plan.ready for plan in plans] == [False]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _other(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("spoil", [Path.unlink, _cut, _other], ids=["gone", "cut", "other"])
def test_spoiled_entries_of_an_interrupted_run_are_not_used(
    spoil: Callable[[Path], None],
    folder: Path,
    tmp_path: Path,
    plans: list[Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write_lines(tmp_path / "a.jsonl", _rows(COLUMNS, ["0.jpg"] * 3))
    run(source, tmp_path / "A", image_root=str(folder))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "make_plan", killed)
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "B", image_root=str(folder))
    (entries,) = tmp_path.glob("B/.streamshard-convert/scan/*.ready")
    spoil(entries)
    run(source, tmp_path / "B", image_root=str(folder))
    assert [plan.ready for plan in plans] == [True, False]
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


def test_an_interrupted_run_goes_on_with_what_is_ready(
    folder: Path, tmp_path: Path, plans: list[Plan]
) -> None:
    source = write_lines(tmp_path / "a.jsonl", _rows(COLUMNS, ["0.jpg"] * 3))
    options = {"image_root": str(folder), "samples_per_shard": 1}
    run(source, tmp_path / "A", **options)
    with stopped_after(1):
        run(source, tmp_path / "B", **options)
    assert not list(tmp_path.glob("B/.streamshard-convert/scan/*.ready")), "joined, so not needed any more"
    run(source, tmp_path / "B", **options)
    assert [plan.ready for plan in plans] == [True, True], "the third run has loaded the plan"
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    with stopped_after(1):
        run(source, tmp_path / "C", **options)
    (tmp_path / "C/.streamshard-convert/samples").unlink()
    run(source, tmp_path / "C", **options)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "C")


def test_nothing_is_ready_where_the_disk_has_no_room_for_that_and_the_shards(
    folder: Path, tmp_path: Path, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", _rows(COLUMNS, ["0.jpg"] * 3))
    options = {"image_root": str(folder), "samples_per_shard": 1}
    run(source, tmp_path / "A", **options)
    work = "B/.streamshard-convert"
    for place, (before, then, is_ready) in enumerate(
        [
            (0, 1 << 50, False),
            (1 << 50, plans[0].payload_nbytes, False),
            (1 << 50, 2 * plans[0].payload_nbytes, True),
        ]
    ):
        free = {"scan": before, work: then}
        monkeypatch.setattr(
            ready, "free_nbytes", lambda at, free=free: free["scan" if at.name == "scan" else work]
        )
        with stopped_after(1):
            run(source, tmp_path / "B", resume=False, **options)
        assert plans[1 + place].ready is is_ready
        assert (tmp_path / work / "samples").exists() is is_ready
        assert not list(tmp_path.glob(f"{work}/scan/*.ready")), "of no use to anybody"
    monkeypatch.setattr(ready, "free_nbytes", lambda _: plans[0].payload_nbytes)
    monkeypatch.setattr(kept, "free_nbytes", lambda _: 0)
    run(source, f"memory://{tmp_path.name}/C", work_dir=str(tmp_path), **options)
    assert plans[-1].ready, "the shards are not on this disk"


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["scan", "plan"])
def test_a_full_disk_is_no_error_of_what_can_be_done_without(
    place: str, folder: Path, tmp_path: Path, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", _rows(COLUMNS, ["0.jpg"] * 3))
    real = Path.write_bytes
    if place == "scan":
        monkeypatch.setattr(
            Path, "write_bytes", lambda path, data: (_full if path.suffix == ".ready" else real)(path, data)
        )
    else:
        monkeypatch.setattr(ready, "sync_file", _full)
    with stopped_after(0):
        run(source, tmp_path / "A", image_root=str(folder))
    assert [plan.ready for plan in plans] == [False]
    assert not list(tmp_path.glob("A/.streamshard-convert/**/*.ready"))
    assert not (tmp_path / "A/.streamshard-convert/samples").exists()
    assert run(source, tmp_path / "A", image_root=str(folder)).samples == 3


def test_what_was_made_ready_for_nothing_goes(folder: Path, tmp_path: Path, plans: list[Plan]) -> None:
    sources = [
        write_lines(tmp_path / f"{name}.jsonl", _rows(columns, ["0.jpg"] * 3))
        for name, columns in (("a", COLUMNS), ("b", UNFIT))
    ]
    with stopped_after(0):
        run(sources, tmp_path / "A", image_root=str(folder))
    assert [plan.ready for plan in plans] == [False]
    assert not list(tmp_path.glob("A/.streamshard-convert/scan/*.ready"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda source: source.unlink(),
            r"a\.jsonl: cannot be read \(No such file or directory\); the input",
        ),
        (lambda source: os.truncate(source, 5), r"a\.jsonl: the file was written to since it was scanned"),
        (lambda source: (source.parent / "0.jpg").unlink(), r"a\.jsonl:2: image '0\.jpg' does not exist"),
        (lambda source: os.truncate(source.parent / "0.jpg", 99), r"a\.jsonl:2: the image .* \(99 bytes\)"),
    ],
)
def test_what_changes_between_the_scan_and_the_shards_is_named(
    change: Callable[[Path], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.jpg").write_bytes(noise())
    source = tmp_path / "a.jsonl"
    source.write_text("\n" + json.dumps({"image": "0.jpg"}) + "\n")
    made = ready_samples.ReadySamples.__init__

    def changed(self: ready_samples.ReadySamples, *args: Any, **options: Any) -> None:
        change(source)
        made(self, *args, **options)

    monkeypatch.setattr(ready_samples.ReadySamples, "__init__", changed)
    with pytest.raises(ConvertError, match=message):
        run(source, tmp_path / "A", check=False)
    assert not list((tmp_path / "A").glob("*.mds"))


@pytest.mark.parametrize("other", [{"text": 1}, {"text": None}, {}, {"text": "b", "more": 1}], ids=str)
def test_chunks_that_are_unlike_each_other_are_made_from_the_input(
    other: dict[str, Any], folder: Path, tmp_path: Path, plans: list[Plan]
) -> None:
    sources = [
        write_lines(tmp_path / f"{name}.jsonl", [{"image": f"{folder}/0.jpg", **row}] * 3)
        for name, row in (("a", {"text": "a"}), ("b", other))
    ]
    options = {"allow_outside_root": True, "image_root": str(folder)}
    assert run(sources, tmp_path / "A", **options).samples == 6
    assert [plan.ready for plan in plans] == [False]
