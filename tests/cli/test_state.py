"""``streamshard state show`` and ``state check``: what they say is what loaders do, and files are not trusted."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.cli.main import main
from tests.support.pretended_ranks import numbers, write_numbers
from tests.support.small_datasets import edit_index

METHODS = ["random", "stratified", "per_stream", "device_per_stream"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("state")
    for name, sizes, first in (("web", [10] * 7, 0), ("code", [5] * 9, 1000), ("math", [4] * 5, 2000)):
        (root / name).mkdir()
        write_numbers(root / name, sizes, first=first)
    return root


def dataset_of(root: Path, weights: dict[str, Any], **arguments: Any) -> StreamingDataset:
    """A dataset of these streams; "code" goes without a name."""
    streams = [
        Stream(local=root / place, name=None if place == "code" else place, **weight)
        for place, weight in weights.items()
    ]
    settings = {"shuffle": True, "shuffle_seed": 3, "global_batch_size": 8, **arguments}
    return StreamingDataset(streams=streams, **settings)


def after(dataset: StreamingDataset, steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state of a loader that went on from a state and received some batches."""
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    document: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return document


P = {"web": {"proportion": 3}, "code": {"proportion": 7}}
Q = {"web": {"proportion": 6}, "code": {"proportion": 4}}


@pytest.fixture(scope="module")
def state(root: Path) -> dict[str, Any]:
    return after(dataset_of(root, P, epoch_size=101), 4)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Write a document to a file and run `streamshard state COMMAND` on it."""

    def run(command: str, document: Any, *arguments: object) -> tuple[int, str, str]:
        path = tmp_path / "run.json"
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        path.write_bytes(content)
        result = CliRunner().invoke(main, ["state", command, str(path), *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


Run = Callable[..., tuple[int, str, str]]


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


# show


def test_show_says_where_it_stands_with_which_settings_and_streams(run: Run, state: dict[str, Any]) -> None:
    code, out, err = run("show", state)
    assert (code, err) == (0, "")
    lines = lines_of(out)
    assert lines[0].endswith("run.json: epoch 0, position 32 of 101 (31.7 %)")
    for line in ("seed 3", "batching_method random", "shuffle sliding", "shuffle_block_size not given"):
        assert line in lines
    cursor = state["columns"].index("cursor")
    web, code_ = (row[cursor] for row in state["streams"])
    assert f"web 70 {web} 0 {web} 30 (29.7 %)" in lines
    assert f"1 45 {code_} 0 {code_} 71 (70.3 %)" in lines
    assert not any("gone" in line or "mixed anew" in line for line in lines)


def test_show_of_a_run_whose_streams_changed(run: Run, root: Path, state: dict[str, Any]) -> None:
    changed = after(dataset_of(root, {"math": {}, "code": {}}, batching_method="random"), 2, state)
    code, out, _ = run("show", {"epoch": 3, "loader": changed})
    lines = lines_of(out)
    assert code == 0
    assert "(key 'loader'): epoch 0, position 48 of" in lines[0]
    assert "mixed anew from position 32 on" in lines
    gone = lines.index("streams that are gone, and go on here if they come back")
    assert lines[gone + 2] == f"web 70 {state['streams'][0][5]} 0 {state['streams'][0][5]}"
    document = json.loads(run("show", changed, "--json")[1])
    assert [stream["name"] for stream in document["gone"]] == ["web"]
    assert [stream["name"] for stream in document["streams"]] == ["math", None]
    assert document["segment"]["begin"] == 32
    assert document["position"] == 48
    assert document["percent"] == pytest.approx(100 * 48 / document["segment"]["end"])


def test_show_counts_passes_of_fixed_sampling_as_the_order_does(run: Run, root: Path) -> None:
    weights = {"web": {"repeat": 1.5}, "code": {"repeat": 0.5}}
    dataset = dataset_of(root, weights, sampling_method="fixed")
    found = []
    for steps in (2, 11):
        dataset.set_epoch(2)
        document = json.loads(run("show", after(dataset, steps), "--json")[1])
        said = [(stream["pass"], stream["place_in_pass"]) for stream in document["streams"]]
        there = dataset.where(8 * steps, epoch=2)
        assert said == [(stream.pass_number, stream.place_in_pass) for stream in there.streams]
        found.append(said[0][0])
    assert found == [4, 5]
    plain = dataset_of(root, weights)
    plain.set_epoch(2)
    streams = json.loads(run("show", after(plain, 2), "--json")[1])["streams"]
    assert (streams[0]["pass"], streams[0]["place_in_pass"]) == divmod(streams[0]["cursor"], 70)


def test_show_tells_what_workers_and_loaders_add(run: Run, root: Path) -> None:
    dataset = dataset_of(root, P, world=World(0, 1))
    samples = iter(dataset)
    next(samples)
    own = {**dataset.state_dict(), "left_out": {"bad": 1, "filtered": 2}}
    code, out, _ = run("show", own)
    assert code == 0
    assert '"workers": 1' in out
    assert 'left out {"bad": 1, "filtered": 2}' in lines_of(out)
    assert json.loads(run("show", own, "--json")[1])["progress"]["samples"] == 1


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_state_is_found_in_a_checkpoint_and_the_key_is_named(
    run: Run, state: dict[str, Any], command: str
) -> None:
    checkpoint = {"step": 9, "loaders": [{"x": [1, {"train": state}]}], "epoch": 3}
    assert "(key 'loaders[0].x[1].train')" in run(command, checkpoint)[1]
    assert json.loads(run(command, checkpoint, "--json")[1])["key"] == "loaders[0].x[1].train"
    assert json.loads(run(command, state, "--json")[1])["key"] is None
    # The same state from every rank is one state; others must be told apart.
    assert run(command, {"ranks": [state, state]})[0] == 0
    other = {**state, "position": 40}
    code, _, err = run(command, {"train": state, "val": other})
    assert code == 1
    assert "2 different states; there are states under 'train', 'val'; say which one with --key" in err
    code, out, _ = run(command, {"train": state, "val": other}, "--key", "val")
    assert code == 0
    assert "position 40" in out
    assert "no state under the key 'test'" in run(command, {"train": state}, "--key", "test")[2]


def test_very_long_keys_on_the_way_to_a_state_are_cut(run: Run, state: dict[str, Any]) -> None:
    document: Any = state
    for level in range(50):
        document = {f"{level}" + "k" * 100_000: [document]}
    code, out, _ = run("show", document)
    assert code == 0
    assert len(out) < 2000
    code, _, err = run("show", {**document, "other": {**state, "position": 40}})
    assert code == 1
    assert len(err) < 800


def test_the_standard_input_and_a_byte_order_mark(state: dict[str, Any]) -> None:
    for start in (b"", b"\xef\xbb\xbf"):
        result = CliRunner().invoke(main, ["state", "show", "-"], input=start + json.dumps(state).encode())
        assert result.exit_code == 0
        assert result.stdout.startswith("standard input: epoch 0, position 32 of 101")


HOSTILE: dict[str, tuple[Any, str]] = {
    "empty": (b"", "is no JSON"),
    "binary": (bytes(range(128, 200)), "is no JSON"),
    "cut": (b'{"epoch": 1, "posi', "is no JSON"),
    "a pickle": (pickle.dumps({"epoch": 1}), "looks like a file of torch.save or pickle"),
    "a zip": (b"PK\x03\x04aaaa", "looks like a file of torch.save or pickle"),
    "nested": (b"[" * 200_000, "is nested too deep"),
    "nested objects": (b'{"a":' * 200_000, "is nested too deep"),
    "a number": (b"17", "no training state found in a JSON int"),
    "another object": ({"model": {}, "step": 1}, "an object with the keys 'model', 'step'"),
    "many digits": (b'{"epoch": ' + b"1" * 50_000 + b"}", "run.json: "),
    "mosaic": ({"epoch": 1, "sample_in_epoch": 640}, "saved by mosaicml-streaming"),
    "no version": ({"epoch": 1, "position": 2, "streams": []}, "'version' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_no_state_is_one_line_that_names_it(run: Run, name: str, command: str) -> None:
    document, message = HOSTILE[name]
    code, out, err = run(command, document)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "run.json: " in err
    assert message in err
    assert err.count("\n") == 1
    assert len(err) < 800


def test_a_file_beyond_the_limit_is_refused_unread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamshard.cli._state_file.MAX_NBYTES", 1 << 20)
    assert "has more than 1 MiB" in run("show", b" " * ((1 << 20) + 1))[2]
    assert "is no JSON" in run("show", b" " * (1 << 20))[2]


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["state", "show", str(tmp_path / "none.json")])
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path / 'none.json'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("column", "value"), [("cursor", 70 * 2**63 + 1), ("window", 2**31), ("lanes", 2**17)]
)
def test_numbers_that_no_walk_can_have_are_refused_by_name(
    run: Run, root: Path, state: dict[str, Any], column: str, value: int
) -> None:
    wrong = copy.deepcopy(state)
    wrong["streams"][0][wrong["columns"].index(column)] = value
    code, _, err = run("check", wrong, *data(root, "web", "code"))
    assert code == 1
    assert f"run.json: state: stream 0: '{column}' is {value}, expected an integer from" in err


WRONG = [0, 1, -1, 101, 2**31, 2**53, 2**64, 2**106, 10**400, None, True, "", "x", "\x1b[2J", [], {}, [1], 1.5,
         "full", "fixed", "per_stream", "block"]  # fmt: skip


def places_in(document: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place] if place else []
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inside:
        found += places_in(value, (*place, key)) if isinstance(value, (dict, list)) else [(*place, key)]
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(WRONG)), min_size=1, max_size=3))
def test_any_changed_state_is_refused_in_one_line_or_read(
    run: Run, root: Path, state: dict[str, Any], changes: list[tuple[int, Any]]
) -> None:
    document = copy.deepcopy(state)
    for choice, value in changes:
        spots = places_in(document)
        *way, last = spots[choice % len(spots)]
        inside: Any = document
        for key in way:
            inside = inside[key]
        inside[last] = copy.deepcopy(value)
    for command, *arguments in (
        ("show",), ("show", "--json"), ("check", "--dataset", root / "web", "--dataset", root / "code"),
    ):  # fmt: skip
        code, out, err = run(command, document, *arguments)
        assert "\x1b" not in out + err
        assert code in (0, 1)
        if err:
            assert code == 1
            assert "run.json" in err
            assert err.count("\n") == 1
            assert len(err) < 900


# check


def check_json(run: Run, document: Any, *arguments: object) -> dict[str, Any]:
    code, out, _ = run("check", document, "--json", *arguments)
    found: dict[str, Any] = json.loads(out)
    assert code == (0 if found["fits"] else 1)
    return found


def data(root: Path, *names: str) -> list[object]:
    return [each for name in names for each in ("--dataset", root / name)]


@pytest.mark.parametrize("method", METHODS)
def test_check_says_what_comes_next_with_no_option_but_the_data(run: Run, root: Path, method: str) -> None:
    begun = dataset_of(root, P, epoch_size=101, batching_method=method)
    first = after(begun, 4)
    changed = dataset_of(root, Q, epoch_size=101, batching_method=method)
    second = after(changed, 3, first)
    if "per_stream" in method:  # where the state knows the global batch, it is the default
        assert check_json(run, first, *data(root, "web", "code"))["next"]["global_batch_size"] == 8
    for saved, dataset in ((first, begun), (second, changed)):
        found = check_json(
            run, saved, *data(root, "web", "code"), "--ranks", 2, "--batch-size", 4, "--samples", 9
        )
        dataset = dataset_of(
            root, P if dataset is begun else Q, epoch_size=101, batching_method=method, world=World(1, 2)
        )
        dataset.load_state_dict(saved)
        assert found["next"] == json.loads(json.dumps(dataset.where(num_samples=18).to_json()))
        assert len(found["next"]["samples"]) == 24
        [note] = found["notes"]
        assert "no weights are given" in note
        # With the weights said, nothing is to be noted.
        weights = [3, 7] if saved is first else [6, 4]
        told = check_json(
            run, saved, *data(root, "web", "code"), "--ranks", 2, "--batch-size", 4, "--samples", 9,
            "--epoch-size", "101", "--proportion", weights[0], "--proportion", weights[1],
        )  # fmt: skip
        assert (told["notes"], told["next"]) == ([], found["next"])


ORDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no weights": ({"web": {}, "code": {}}, {}),
    "no shuffle": ({"web": {}, "code": {}}, {"shuffle": False}),
    "multiples": ({"web": {"repeat": 1.5}, "code": {"choose": 20}}, {"shuffle_algo": "py1br"}),
    "fixed": ({"web": {"repeat": 1.5}, "code": {"choose": 20}}, {"sampling_method": "fixed"}),
    "lanes": ({"web": {}, "code": {}}, {"num_canonical_nodes": 3}),
    "block size": ({"web": {}, "code": {}}, {"shuffle_block_size": 20, "shuffle_algo": "full"}),
    "turned off": ({"web": {"proportion": 1}, "code": {"proportion": 0}}, {}),
    "one stream": ({"code": {}}, {"num_canonical_nodes": 1}),
}


@pytest.mark.parametrize("name", ORDERS)
def test_check_takes_the_order_from_the_state(run: Run, root: Path, name: str) -> None:
    weights, arguments = ORDERS[name]
    saved = after(dataset_of(root, weights, **arguments), 3)
    found = check_json(
        run, saved, *data(root, *weights), "--ranks", 3, "--batch-size", 2, "--remainder", "exact"
    )
    fresh = dataset_of(
        root, weights, **arguments, global_batch_size=None, batch_size=2, remainder="exact", world=World(0, 3)
    )
    fresh.load_state_dict(saved)
    assert found["next"] == json.loads(json.dumps(fresh.where(num_samples=24).to_json()))
    if name != "turned off":  # its weights cannot be known from 70 and 0
        assert found["notes"] == []


def test_a_mixture_that_changes_is_told_in_json(run: Run, root: Path) -> None:
    mixture = [(0, {"web": 1, 1: 1}), (40, {"web": 3, 1: 1})]
    saved = after(dataset_of(root, {"web": {}, "code": {}}, mixture=mixture), 7)
    text = json.dumps([["0", {"web": 1, "1": 1}], [40, {"web": 3, "1": 1}]])
    found = check_json(run, saved, *data(root, "web", "code"), "--mixture", text, "--global-batch-size", 8)
    fresh = dataset_of(root, {"web": {}, "code": {}}, mixture=mixture)
    fresh.load_state_dict(saved)
    assert found["notes"] == []
    assert found["next"] == json.loads(json.dumps(fresh.where(num_samples=8).to_json()))
    for wrong in ("{", "{}", "[[0]]"):
        assert run("check", saved, *data(root, "web", "code"), "--mixture", wrong)[0] in (1, 2)


def test_for_people(run: Run, root: Path, state: dict[str, Any]) -> None:
    code, out, err = run("check", {"a": state}, *data(root, "web", "code"), "--ranks", 2, "--batch-size", 4)
    assert (code, err) == (0, "")
    lines = lines_of(out)
    assert lines[0].endswith("run.json (key 'a'): fits")
    assert lines[2] == "epoch 0, position 32 of 101 (31.7 %): 9 batches of 8 samples to come on 2 ranks"
    dataset = dataset_of(root, P, epoch_size=101, world=World(0, 2))
    dataset.load_state_dict(state)
    samples = dataset.where(num_samples=16).samples
    assert len(samples) == 16
    for each in samples:
        stream = each.stream_name or each.stream
        assert (
            f"{each.rank} {each.batch} {each.position} {each.sample} {stream} {each.shard} {each.row}"
            in lines
        )
    few = run("check", state, *data(root, "web", "code"), "--ranks", 2, "--batch-size", 4, "--samples", 1)[1]
    assert len(few.splitlines()) == len(lines) - 14


def test_every_difference_is_named_and_the_exit_is_1(run: Run, root: Path, state: dict[str, Any]) -> None:
    options = ["--seed", 4, "--shuffle-algo", "block", "--batching-method", "stratified",
               "--sampling-method", "fixed", "--num-canonical-nodes", 1, "--shuffle-block-size", 7]  # fmt: skip
    code, out, err = run("check", state, *data(root, "web", "code"), *options)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].endswith("run.json: does not fit")
    assert lines[1:] == [
        "  seed was 3 and is 4",
        "  batching_method was 'random' and is 'stratified'",
        "  num_canonical_nodes was None and is 1",
        "  sampling_method was 'balanced' and is 'fixed'",
        "  shuffle was 'sliding' and is 'block'",
        "  shuffle_block_size was None and is 7",
        *[line for line in lines if "lanes" in line or "window" in line],
    ]
    assert "  stream 0 (web) lanes was 2 and is 1" in lines
    found = check_json(run, state, *data(root, "web", "code"), "--no-shuffle")
    assert found["next"] is None
    assert "shuffle was 'sliding' and is 'none'" in found["differences"]


def test_other_data_under_the_same_streams_are_refused(
    run: Run, root: Path, state: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    other = write_numbers(tmp_path / "code", [5] * 9, first=7)
    found = check_json(run, state, *data(root, "web"), "--dataset", other)
    assert "stream 1 data (xxh64) was" in found["differences"][0]
    assert not any("stream 0" in difference for difference in found["differences"])
    changed = check_json(run, state, "--dataset", tmp_path / "code", *data(root, "code"))["differences"]
    assert changed[0].startswith(
        "stream 0 (web) data (layout) was"
    )  # it is known by its place, so not as a new one


def test_the_same_data_elsewhere_fit(run: Run, root: Path, state: dict[str, Any], tmp_path: Path) -> None:
    def without_hashes(shards: list[dict[str, Any]]) -> None:
        for shard in shards:
            shard["raw_data"]["hashes"] = {}

    copied = tmp_path / "copy" / "train"
    copied.mkdir(parents=True)
    write_numbers(copied, [5] * 9, first=1000)
    edit_index(copied, without_hashes)
    web = root / "web"
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "train").symlink_to(web)
    found = check_json(
        run, state, "--dataset", (tmp_path / "w").as_uri(), "--dataset", copied.parent, "--split", "train"
    )
    assert found["fits"]
    assert found["next"]["streams"][0]["place"].endswith("w/train")


def test_streams_that_came_and_went_are_noted(run: Run, root: Path, state: dict[str, Any]) -> None:
    found = check_json(run, state, *data(root, "code", "math"), "--name", "code", "--name", "math")
    cursor = state["streams"][0][5]
    assert found["notes"] == [
        "stream 1 (math) is new and begins at its first sample",
        f"stream 'web' is no longer there; it goes on at its sample {cursor} if it comes back",
        "the streams are mixed anew from position 32 of epoch 0 on",
    ]
    fresh = StreamingDataset(
        streams=[Stream(local=root / name, name=name) for name in ("code", "math")],
        shuffle=True,
        shuffle_seed=3,
    )
    fresh.load_state_dict(state)
    assert found["next"] == json.loads(json.dumps(fresh.where(num_samples=8).to_json()))
    less = check_json(run, state, *data(root, "code"))
    assert less["fits"]
    assert [each["cursor"] for each in less["next"]["streams"]] == [state["streams"][1][5]]


def test_without_data_it_is_only_well_formed(run: Run, state: dict[str, Any]) -> None:
    code, out, _ = run("check", state)
    assert code == 0
    assert "a well-formed state of epoch 0, position 32" in out
    assert "name the data with --dataset URL" in out
    assert json.loads(run("check", state, "--json")[1])["fits"] is None


def test_what_a_worker_saved_amid_its_batches_cannot_change(run: Run, root: Path) -> None:
    dataset = dataset_of(root, P, world=World(0, 1))
    samples = iter(dataset)
    next(samples)
    own = dataset.state_dict()
    code, out, _ = run("check", own, *data(root, "web", "code"))
    assert code == 0
    assert "note: one worker of one rank saved it, after 1 samples of its own from there on" in out
    code, _, err = run("check", own, *data(root, "code"))
    assert code == 1
    assert "run.json: this state counts what one worker of one rank has read" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ranks", 0],
        ["--ranks", 10**9],
        ["--samples", 0],
        ["--proportion", 0.5],
        ["--name", "a", "--name", "b", "--name", "c"],
        ["--nope"],
    ],
)
def test_arguments_that_make_no_sense_are_exit_2(
    run: Run, root: Path, state: dict[str, Any], arguments: list[object]
) -> None:
    assert run("check", state, *data(root, "web", "code"), *arguments)[0] == 2


def test_arguments_that_contradict_each_other_are_exit_1(run: Run, root: Path, state: dict[str, Any]) -> None:
    both = ["--batch-size", 2, "--global-batch-size", 8]
    for arguments, message in (
        (both, "exclude each other"),
        (["--global-batch-size", 2, "--ranks", 3], "cannot be shared by 3 ranks"),
        (["--name", "a", "--name", "a"], "two streams have the name 'a'"),
        (["--dataset", root / "none"], "no index at"),
    ):
        code, out, err = run("check", state, *data(root, "web", "code"), *arguments)
        assert (code, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1


def test_it_needs_no_torch(root: Path, state: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(state))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from streamshard.cli.main import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
    )
    for command in (["show"], ["check", *map(str, data(root, "web", "code"))]):
        line = [sys.executable, "-c", code, "state", command[0], str(tmp_path / "state.json"), *command[1:]]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "epoch 0, position 32 of 101" in done.stdout


def test_help_of_check_fits_one_screen() -> None:
    done = CliRunner().invoke(main, ["state", "check", "--help"], terminal_width=80)
    assert len(done.stdout.splitlines()) <= 40
    for option in ("dataset", "ranks", "batch-size", "global-batch-size", "proportion", "mixture", "json"):
        assert f"--{option}" in done.stdout
