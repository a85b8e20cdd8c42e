"""What an epoch takes of each stream: exact shares of samples or of a cost, and weights that make no sense."""

from __future__ import annotations

import collections
import json
import logging
import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard import Stream, StreamingDataLoader, StreamingDataset
from streamshard.dataset.weights import sample_weights, samples_per_epoch
from streamshard.format.costs import costs_entry
from tests.support.faulty_proxy import FaultyProxy
from tests.support.pretended_ranks import numbers, write_numbers
from tests.support.seaweedfs import SeaweedServer


def costly(directory: Path, sizes: Sequence[int], *, first: int = 0, **costs: int | Sequence[int]) -> Path:
    """Write numbers whose index carries costs: one number for every sample, or the sum of each shard."""
    write_numbers(directory, sizes, first=first)
    path = directory / "index.json"
    document = json.loads(path.read_text())
    sums = {
        name: [cost * size for size in sizes] if isinstance(cost, int) else cost
        for name, cost in costs.items()
    }
    document["streamshard"] = {"costs": costs_entry(sums)}
    path.write_text(json.dumps(document))
    return directory


def shares_of(streams: Sequence[Stream], **arguments: Any) -> dict[int, int]:
    """Samples of each stream in one epoch that was really read; stream s holds the numbers from 1000 s on."""
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=8, **arguments)
    seen = [number for batch in StreamingDataLoader(dataset, collate_fn=numbers) for number in batch]
    assert len(seen) == len(dataset)
    return dict(collections.Counter(number // 1000 for number in seen))


# Shares of samples


@settings(max_examples=200, deadline=None)
@given(
    available=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    size=st.integers(6, 10**7),
    data=st.data(),
)
def test_shares_add_up_and_are_within_one_of_exact(available, size, data):
    weights = data.draw(st.lists(st.integers(1, 50), min_size=len(available), max_size=len(available)))
    streams = [Stream(local=".", proportion=weight) for weight in weights]
    try:
        shares = samples_per_epoch(streams, available, size)
    except ValueError:
        assert min(weights) * size < sum(weights)
        return
    assert sum(shares) == size
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - size * weight) < sum(weights)


def test_a_size_that_leaves_out_a_stream_without_a_weight_is_reported(caplog):
    streams = [Stream(local="large"), Stream(local="small")]
    with caplog.at_level(logging.WARNING):
        assert samples_per_epoch(streams, [1000, 1], 10) == [10, 0]
    [record] = caplog.records
    assert "stream 'small' would give 0 of its 1 samples" in record.getMessage()
    assert "large" not in record.getMessage()
    caplog.clear()
    assert samples_per_epoch(streams, [1000, 1], 1001) == [1000, 1]
    assert not caplog.records


# Shares of a cost


@settings(max_examples=300, deadline=None)
@given(data=st.data(), count=st.integers(1, 6))
def test_shares_of_a_cost_are_within_one_sample_of_exact(data, count):
    def drawn(values: st.SearchStrategy[int]) -> list[int]:
        return data.draw(st.lists(values, min_size=count, max_size=count))

    proportions, available = drawn(st.integers(1, 20)), drawn(st.integers(1, 10**5))
    totals = [data.draw(st.integers(1, 10**12)) for _ in available]
    mean = [Fraction(total, samples) for total, samples in zip(totals, available, strict=True)]
    streams = [Stream(local=f"{number}", proportion=p) for number, p in enumerate(proportions)]
    size = data.draw(st.integers(1, 10**9))
    exact = [Fraction(p) / cost for p, cost in zip(proportions, mean, strict=True)]
    wanted = [size * weight / sum(exact) for weight in exact]
    try:
        shares = samples_per_epoch(streams, available, size, mean)
    except ValueError:
        assert min(wanted) < 1
        return
    assert sum(shares) == size
    assert all(abs(share - wish) < 1 for share, wish in zip(shares, wanted, strict=True))
    # So each stream's cost is its part of all cost, but for one sample of each stream.
    cost = [share * each for share, each in zip(shares, mean, strict=True)]
    for mine, proportion, each in zip(cost, proportions, mean, strict=True):
        assert abs(mine - sum(cost) * Fraction(proportion, sum(proportions))) < each + sum(mean)


def test_costs_of_a_thousand_streams_are_shared_out_without_adding_fractions(monkeypatch):
    """Each sum of fractions reduces numbers of thousands of digits: that took half a minute."""
    chance = random.Random(1)
    streams = [Stream(local=f"{number}", proportion=chance.random()) for number in range(1000)]
    available = [chance.randrange(1000, 10**7) for _ in streams]
    mean = [Fraction(chance.randrange(10**9, 10**13), samples) for samples in available]
    with monkeypatch.context() as patched:
        for name in ("__add__", "__radd__"):
            patched.delattr(Fraction, name)
        shares = samples_per_epoch(streams, available, 10**12, mean)
    assert sum(shares) == 10**12
    weights = [Fraction(str(s.proportion)) / cost for s, cost in zip(streams, mean, strict=True)]
    total = sum(float(weight) for weight in weights)
    for share, weight in zip(shares, weights, strict=True):
        assert share == pytest.approx(10**12 * float(weight) / total, rel=1e-9, abs=1)


def test_weights_without_costs_are_the_proportions():
    assert sample_weights(["a", "b"], [Fraction(1), Fraction(3)]) == [1, 3]
    assert sample_weights(["a", "b"], [Fraction(1), Fraction(1)], [Fraction(10), Fraction(1, 3)]) == [
        Fraction(1, 10),
        3,
    ]
    # A stream that is off may cost nothing.
    assert sample_weights(["a", "b"], [Fraction(1), Fraction(0)], [Fraction(4), Fraction(0)]) == [
        Fraction(1, 4),
        0,
    ]


@pytest.mark.parametrize(
    ("weight_by", "wanted"),
    [
        ("samples", {0: 100, 1: 100}),
        ("tokens", {0: 150, 1: 50}),  # a sample of the second costs three times as much
        ("seconds", {0: 40, 1: 160}),
    ],
)
def test_proportions_are_shares_of_what_weight_by_names(tmp_path, weight_by, wanted):
    costly(tmp_path / "a", [60, 40], tokens=10, seconds=8)
    costly(tmp_path / "b", [50, 50], first=1000, tokens=[1000, 2000], seconds=2)
    streams = [Stream(local=tmp_path / name, proportion=0.5) for name in "ab"]
    assert shares_of(streams, epoch_size=200, weight_by=weight_by) == wanted
    # Without a size: as many samples as the streams have together.
    assert sum(shares_of(streams, weight_by=weight_by).values()) == 200


def test_bytes_are_those_of_the_raw_shards_and_need_no_cost(tmp_path):
    for number, (name, how) in enumerate({"a": {}, "b": {"compression": "gz"}}.items()):
        write_numbers(tmp_path / name, [200 << number] * 2, first=1000 * number, **how)
    streams = [Stream(local=tmp_path / name, proportion=1) for name in "ab"]
    totals = []
    for name in "ab":
        shards = json.loads((tmp_path / name / "index.json").read_text())["shards"]
        nbytes = sum(shard["raw_data"]["bytes"] for shard in shards)
        totals.append(Fraction(nbytes, sum(shard["samples"] for shard in shards)))
    assert totals[0] != totals[1]  # a shard's head weighs less where it holds more samples
    shares = shares_of(streams, epoch_size=3000, weight_by="bytes")
    exact = 3000 * totals[1] / sum(totals)
    assert abs(shares[0] - exact) < 1
    assert shares[0] + shares[1] == 3000
    assert shares[0] < shares[1]


# What is refused


def listed(message: str) -> dict[str, str]:
    """What a message says of streams a, b, c."""
    return dict(re.findall(r"stream '(\w)'(?:: | with | )([\w.=' ]+)", message))


CASES: list[tuple[list[Mapping[str, Any]], dict[str, Any], str, dict[str, str]]] = [
    (
        [{"proportion": 0.5}, {"repeat": 2}, {}],
        {},
        "some streams have a proportion, some have none",
        {"a": "proportion=0.5", "b": "repeat=2", "c": "without a weight"},
    ),
    (
        [{"proportion": 0.5}, {"choose": "10"}],
        {},
        "some streams have a proportion, some have none",
        {"a": "proportion=0.5", "b": "choose='10'"},
    ),
    ([{"proportion": 0}, {"proportion": 0.0}], {}, "all proportions are 0", {"a": "0", "b": "0"}),
    (
        [{"choose": 5}, {}, {"repeat": 2}],
        {"epoch_size": 10},
        "epoch_size=10 cannot",
        {"a": "choose=5", "b": "without a weight", "c": "repeat=2"},
    ),
    (
        [{"proportion": 1}, {"proportion": 1e-9}, {"proportion": 1e-8}],
        {},
        "at least 1 is needed",
        {
            "b": "proportion=1e",
            "c": "proportion=1e",
        },
    ),
    (
        [{"repeat": 0.01}, {"repeat": 0.02}, {"repeat": 0.001}],
        {},
        "at least 1 is needed",
        {
            "a": "repeat=0.01 would give 0 of its 50 samples",
            "c": "repeat=0.001 would give 0 of its 50 samples to an epoch",
        },
    ),
    ([{"repeat": 1e300}, {}], {}, r"more than 2\*\*53 - 1", {"a": "repeat=1e", "b": "without a weight"}),
    (
        [{"choose": "9008T"}, {}],
        {},
        r"more than 2\*\*53 - 1",
        {"a": "choose='9008T'", "b": "without a weight"},
    ),
    (
        [{}, {"repeat": 2}],
        {"weight_by": "bytes"},
        "no stream has one",
        {"a": "without a weight", "b": "repeat=2"},
    ),
]


@pytest.mark.parametrize(("weights", "arguments", "words", "said"), CASES)
def test_weights_that_make_no_sense_are_refused_with_all_names_and_values(
    tmp_path, weights, arguments, words, said
):
    streams = [
        Stream(local=write_numbers(tmp_path / name, [50]), name=name, **weight)
        for name, weight in zip("abc", weights, strict=False)
    ]
    with pytest.raises(ValueError, match=words) as caught:
        StreamingDataset(streams=streams, **arguments)
    found = listed(str(caught.value))
    assert set(found) == set(said)
    for name, text in said.items():
        assert found[name].startswith(text), str(caught.value)


def test_many_streams_are_not_all_listed():
    streams = [Stream(local=f"s{number}", proportion=0) for number in range(1000)]
    with pytest.raises(ValueError, match=r"stream 's19': 0, and 980 more") as caught:
        samples_per_epoch(streams, [1] * 1000)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("size", "samples"), [("1.5M", 1_500_000), ("2k", 2000), ("1,000", 1000), (7, 7), ("0.001k", 1)]
)
def test_an_epoch_size_may_be_a_count_in_words(tmp_path, size, samples):
    write_numbers(tmp_path, [50])
    assert StreamingDataset(local=tmp_path, epoch_size=size).epoch_size == samples
    assert StreamingDataset(streams=[Stream(local=tmp_path, choose=size)]).epoch_size == samples


def test_the_largest_epoch_is_one_that_json_holds_exactly(tmp_path):
    write_numbers(tmp_path, [50])
    dataset = StreamingDataset(local=tmp_path, epoch_size=(1 << 53) - 1)
    assert dataset.epoch_size == (1 << 53) - 1
    assert dataset.state_at(0, dataset.epoch_size - 1) == json.loads(
        json.dumps(dataset.state_at(0, dataset.epoch_size - 1))
    )


@pytest.mark.parametrize("weight_by", ["", None, 3, True])
def test_a_cost_is_named_by_a_word(tmp_path, weight_by):
    write_numbers(tmp_path, [50])
    with pytest.raises(ValueError, match=rf"weight_by={weight_by!r}: expected 'samples', 'bytes' or"):
        StreamingDataset(streams=[Stream(local=tmp_path, proportion=1)], weight_by=weight_by)


def test_a_cost_that_an_index_lacks_is_refused_with_the_way_to_add_it(tmp_path):
    costly(tmp_path / "a", [10], tokens=3)
    write_numbers(tmp_path / "b", [10])
    costly(tmp_path / "c", [10], words=3)
    streams = [Stream(local=tmp_path / name, name=name, proportion=1) for name in "abc"]
    with pytest.raises(ValueError, match="weight_by='tokens'") as caught:
        StreamingDataset(streams=streams, weight_by="tokens")
    message = str(caught.value)
    assert "stream 'a'" not in message
    assert "stream 'b': has 'samples', 'bytes', stream 'c': has 'samples', 'bytes', 'words'" in message
    assert "MDSWriter(costs={'tokens': COLUMN}) or streamshard convert --cost tokens=COLUMN" in message


def test_a_stream_whose_samples_cost_nothing_has_no_share_of_the_cost(tmp_path):
    costly(tmp_path / "a", [10], tokens=3)
    costly(tmp_path / "b", [10], first=1000, tokens=0)
    streams = [Stream(local=tmp_path / name, name=name, proportion=1) for name in "ab"]
    with pytest.raises(
        ValueError, match=r"cost nothing cannot make up a share of the cost \(stream 'b': 1\)"
    ):
        StreamingDataset(streams=streams, weight_by="tokens")
    off = [streams[0], Stream(local=tmp_path / "b", proportion=0)]
    assert shares_of(off, weight_by="tokens") == {0: 20}


def test_two_streams_of_one_name_are_refused_with_both_places(tmp_path):
    a, b = write_numbers(tmp_path / "a", [10]), write_numbers(tmp_path / "b" / "train", [10], first=1000)
    twins = [Stream(local=a, name="text"), Stream(local=b.parent, split="train", name="text")]
    with pytest.raises(ValueError, match="two streams have the name 'text'") as caught:
        StreamingDataset(streams=twins)
    assert repr(str(a)) in str(caught.value)
    assert repr(str(b)) in str(caught.value)
    with pytest.raises(ValueError, match="two streams have the name 'text'"):
        StreamingDataset(streams=[twins[0], twins[0]])
    hidden = [Stream(remote=f"s3://user:sesame@host/{name}", name="x") for name in "ab"]
    with pytest.raises(ValueError, match="'s3://host/a' and of 's3://host/b'") as caught:
        StreamingDataset(streams=hidden)
    assert "sesame" not in str(caught.value)


def test_one_stream_twice_without_a_name_counts_twice(tmp_path):
    stream = Stream(local=write_numbers(tmp_path, [10]))
    dataset = StreamingDataset(streams=[stream, stream], shuffle=True, batch_size=4)
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    seen = collections.Counter(number for batch in loader for number in batch)
    assert seen == dict.fromkeys(range(10), 2)


# What a partial epoch fetches


@pytest.mark.parametrize(
    ("shuffle", "workers"),
    [
        ("sliding", 0),
        (None, 0),
        ("sliding", 2),
        pytest.param("block", 0, marks=pytest.mark.slow),
        pytest.param("block", 2, marks=pytest.mark.slow),
        pytest.param(None, 2, marks=pytest.mark.slow),
    ],
)
def test_a_partial_epoch_fetches_only_the_shards_that_it_touches(
    tmp_path: Path, s3: SeaweedServer, s3_proxy: FaultyProxy, shuffle: str | None, workers: int
) -> None:
    per_shard, num_shards = 10, 60
    write_numbers(tmp_path / "set", [per_shard] * num_shards)
    bucket = s3.make_bucket()
    s3.filesystem().put(str(tmp_path / "set"), f"{bucket}/set", recursive=True)
    dataset = StreamingDataset(
        remote=f"{bucket}/set",
        local=tmp_path / "cache",
        storage_options=s3.options_for(s3_proxy.endpoint_url),
        epoch_size=per_shard * num_shards // 10,
        batch_size=6,
        shuffle=shuffle is not None,
        shuffle_algo=shuffle or "sliding",
        shuffle_block_size=2 * per_shard,
    )
    loader = StreamingDataLoader(
        dataset, num_workers=workers, persistent_workers=workers > 0, collate_fn=numbers
    )
    epochs, touched = [], []
    for _ in range(2):
        epochs.append([number for batch in loader for number in batch])
        touched.append({number // per_shard for number in epochs[-1]})
        fetched = [path for method, path in s3_proxy.requests if method == "GET" and ".mds" in path]
        found = collections.Counter(int(re.search(r"shard\.(\d+)\.mds", path)[1]) for path in fetched)  # type: ignore[index]
        # Once each, none for the next epoch, and what the first epoch has fetched serves the second.
        assert found == dict.fromkeys(set().union(*touched), 1)
    assert [len(epoch) for epoch in epochs] == [60, 60]
    assert not set(epochs[0]) & set(epochs[1])
    if shuffle is None:
        assert epochs == [list(range(60)), list(range(60, 120))]
    assert len(set().union(*touched)) < num_shards
    # Ten such epochs are one pass: each sample once.
    course = [number for epoch in epochs for number in epoch]
    for _ in range(8):
        course += [number for batch in loader for number in batch]
    assert sorted(course) == list(range(per_shard * num_shards))


def test_each_stream_fetches_only_what_its_share_touches(tmp_path):
    for number, name in enumerate("ab"):
        write_numbers(tmp_path / name, [10] * 50, first=1000 * number)
    streams = [
        Stream(remote=(tmp_path / name).as_uri(), local=tmp_path / f"cache-{name}", proportion=proportion)
        for name, proportion in (("a", 3), ("b", 1))
    ]
    dataset = StreamingDataset(
        streams=streams, epoch_size=100, shuffle=True, shuffle_block_size=10, batch_size=10
    )
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    touched: set[int] = set()
    for _ in range(2):
        seen = [number for batch in loader for number in batch]
        assert collections.Counter(number // 1000 for number in seen) == {0: 75, 1: 25}
        touched |= {number // 10 for number in seen}
        for number, name in enumerate("ab"):
            cached = {int(path.stem[-5:]) for path in (tmp_path / f"cache-{name}").rglob("shard.*.mds")}
            assert cached == {shard - 100 * number for shard in touched if shard // 100 == number}
            assert len(cached) < 50


# The page about mixtures

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mixtures.md"
EXAMPLES = dict(
    re.findall(r"<!-- example: (.*?) -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)


def run_example(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(directory)
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[name], str(PAGE), "exec"), names)
    return names


def shares(dataset: StreamingDataset) -> dict[int, int]:
    loader = StreamingDataLoader(dataset, 10, collate_fn=numbers)
    return dict(collections.Counter(number // 1000 for batch in loader for number in batch))


def test_b118_the_first_example_of_the_page_gives_180_and_20(tmp_path, monkeypatch):
    for number, name in enumerate("ab"):
        write_numbers(tmp_path / name, [25] * 4, first=1000 * number)
    dataset = run_example("two streams of 100 samples", tmp_path, monkeypatch)["dataset"]
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    epochs = [[number for batch in loader for number in batch] for _ in range(5)]
    for epoch in epochs:
        assert sum(number < 1000 for number in epoch) == 180
        assert sum(number >= 1000 for number in epoch) == 20
    # Five epochs of b are one pass over it; of a, nine.
    times = collections.Counter(number for epoch in epochs for number in epoch)
    assert times == dict.fromkeys(range(100), 9) | dict.fromkeys(range(1000, 1100), 1)


def test_b119_the_second_example_of_the_page_gives_the_sizes_it_says(tmp_path, monkeypatch):
    write_numbers(tmp_path / "a", [10])
    write_numbers(tmp_path / "b", [50, 50], first=1000)
    halves = run_example("streams of 10 and 100 samples", tmp_path, monkeypatch)["halves"]
    assert shares(StreamingDataset(streams=halves, epoch_size=100)) == {0: 50, 1: 50}
    assert shares(StreamingDataset(streams=halves)) == {0: 55, 1: 55}


def test_the_example_of_tokens_gives_equal_tokens(tmp_path, monkeypatch):
    names = run_example("an index with tokens", tmp_path, monkeypatch)
    lengths = {}
    for which in ("by_samples", "by_tokens"):
        loader = StreamingDataLoader(
            names[which], 10, collate_fn=lambda rows: [len(row["input_ids"]) for row in rows]
        )
        lengths[which] = collections.Counter(length for batch in loader for length in batch)
    assert lengths == {"by_samples": {100: 200, 300: 200}, "by_tokens": {100: 300, 300: 100}}


def test_all_examples_of_the_page_are_run_here():
    assert len(EXAMPLES) == 4
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(EXAMPLES)


def test_the_weights_of_the_page_change_where_it_says(tmp_path, monkeypatch):
    for number, name in enumerate("ab"):
        write_numbers(tmp_path / name, [25] * 4, first=1000 * number)
    dataset = run_example("weights that change", tmp_path, monkeypatch)["dataset"]
    assert [shares(dataset) for _ in range(3)] == [{0: 90, 1: 10}, {0: 70, 1: 30}, {0: 50, 1: 50}]


HUGE = 10**5000  # Python refuses to write it out


@pytest.mark.parametrize(
    "weight",
    [{"proportion": HUGE}, {"repeat": Fraction(HUGE, 3)}, {"repeat": Fraction(3, HUGE)}, {"choose": HUGE}],
)
def test_a_weight_of_thousands_of_digits_is_refused_by_name(weight):
    (key,) = weight
    with pytest.raises(ValueError, match=rf"stream 'a': {key}=<number of 16,610 bits>: "):
        Stream(local="a", name="a", **weight)


def test_numbers_of_thousands_of_digits_are_refused_by_name_everywhere(tmp_path):
    write_numbers(tmp_path, [10])
    big = "<number of 16,610 bits>"
    for arguments, words in (
        ({"epoch_size": HUGE}, "epoch_size="),
        ({"shuffle_seed": HUGE}, "seed="),
        ({"num_canonical_nodes": HUGE}, "num_canonical_nodes="),
        ({"shuffle_block_size": HUGE}, "shuffle_block_size="),
        ({"mixture": [(0, {0: HUGE})]}, "mixture: position 0: stream .*: weight "),
        ({"mixture": [(HUGE, {0: 1})]}, "mixture: position "),
    ):
        with pytest.raises(ValueError, match=words + big):
            StreamingDataset(local=tmp_path, **arguments)


def test_an_epoch_that_no_state_could_name_is_refused_with_the_reason(tmp_path):
    write_numbers(tmp_path, [10])
    dataset = StreamingDataset(local=tmp_path, batch_size=2)
    dataset.set_epoch((1 << 53) - 2)
    assert dataset.state_dict(10)["epoch"] == (1 << 53) - 1
    for epoch, text in (((1 << 53) - 1, "9007199254740991"), (HUGE, "<number of 16,610 bits>")):
        with pytest.raises(
            ValueError, match=f"epoch={text}: states hold whole numbers up to 2.*at most 9007199254740990"
        ):
            dataset.set_epoch(epoch)
