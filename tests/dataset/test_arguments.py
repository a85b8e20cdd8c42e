"""The arguments of StreamingDataset, Stream and StreamingDataLoader."""

from __future__ import annotations

import inspect
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, SequentialSampler

import streamshard
from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.errors import BlobNotFoundError, FormatError, TopologyError
from tests.support.pretended_ranks import loader_of, numbers, read_part, world_of, write_numbers


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("arguments") / "set", [10] * 5)


MOSAIC = """
    streams remote local split download_retry download_timeout validate_hash keep_zip epoch_size predownload
    cache_limit sampling_method num_canonical_nodes batch_size shuffle shuffle_algo shuffle_seed
    shuffle_block_size batching_method allow_unsafe_types replication
"""
OURS = "global_batch_size world storage_options on_error remainder transform batch_transform"


def test_all_promised_arguments_are_there() -> None:
    parameters = inspect.signature(StreamingDataset.__init__).parameters
    assert {*MOSAIC.split(), *OURS.split()} <= set(parameters)
    stream = set(inspect.signature(Stream).parameters)
    assert {"remote", "local", "split", "proportion", "repeat", "choose", "name"} <= stream
    assert {"download_retry", "download_timeout", "validate_hash", "keep_zip"} <= stream


def test_an_unknown_argument_is_a_type_error(directory: Path) -> None:
    with pytest.raises(TypeError, match="no argument 'shufle'"):
        StreamingDataset(local=directory, shufle=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition_algo", "relaxed"),
        ("sampling_granularity", 1),
        ("stream_name", "stream"),
        ("stream_config", None),
    ],
)
def test_an_argument_that_only_mosaicml_streaming_has_is_one_warning(
    directory: Path, name: str, value: Any
) -> None:
    with pytest.warns(FutureWarning, match=rf"StreamingDataset\({name}=\.\.\.\) has no effect: ") as caught:
        dataset = StreamingDataset(local=directory, **{name: value})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(list(dataset)) == 50


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size=0"),
    ({"batch_size": 2.0}, "batch_size=2.0"),
    ({"batch_size": True}, "batch_size=True"),
    ({"global_batch_size": -1}, "global_batch_size=-1"),
    ({"batch_size": 2, "global_batch_size": 2}, "exclude each other"),
    ({"replication": 0}, "replication=0"),
    ({"predownload": 0}, "predownload=0"),
    ({"remainder": "keep"}, "remainder='keep': expected one of pad, drop, exact"),
    ({"sampling_method": "random"}, "sampling_method='random'"),
    ({"batching_method": "odd"}, "batching_method='odd'"),
    ({"on_error": "ignore"}, "on_error='ignore'"),
    ({"shuffle_algo": "py9", "shuffle": True}, "py9"),
    ({"shuffle_seed": -1}, "seed=-1"),
    ({"shuffle_seed": 1 << 64}, "seed="),
    ({"shuffle_seed": 1.5}, "seed=1.5"),
    ({"num_canonical_nodes": 0, "shuffle": True}, "num_canonical_nodes"),
    ({"shuffle_block_size": 0, "shuffle": True}, "shuffle_block_size"),
    ({"epoch_size": 0}, r"epoch_size=0: expected 1 to 2\*\*53 - 1"),
    ({"epoch_size": "0.4"}, "epoch_size='0.4'"),
    ({"epoch_size": 1 << 53}, "epoch_size=9007199254740992: expected 1 to"),
    ({"epoch_size": 2.5}, "epoch_size=2.5"),
    ({"epoch_size": True}, "epoch_size=True"),
    ({"epoch_size": "-5"}, "epoch_size='-5'"),
    ({"epoch_size": -5}, "epoch_size=-5"),
    ({"epoch_size": "many"}, "epoch_size='many'"),
    ({"cache_limit": "much"}, "cache_limit='much'"),
    ({"download_retry": -1}, "download_retry=-1"),
    ({"download_retry": 1.5}, "download_retry=1.5"),
    ({"download_timeout": 0}, "download_timeout=0"),
    ({"download_timeout": float("nan")}, "download_timeout=nan"),
    ({"download_timeout": "60"}, "download_timeout='60'"),
    ({"validate_hash": "crc9"}, "crc9"),
    ({"validate_hash": "md5"}, "md5"),  # known, but not in this index
    ({"columns": "number"}, r"expected a list of names, such as \['number'\]"),
    ({"columns": ["nmber"]}, "number"),
    ({"transform": len, "batch_transform": len}, "give one of them"),
    ({"streams": []}, "holds no stream"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_refused_at_once(
    directory: Path, arguments: dict[str, Any], message: str
) -> None:
    where = {} if "streams" in arguments else {"local": directory}
    with pytest.raises(ValueError, match=message):
        StreamingDataset(**where, **arguments)


@pytest.mark.parametrize("lanes", [0, -1, 1.5, "2", True, 1 << 17])
@pytest.mark.parametrize("count", [1, 2])
def test_lanes_are_checked_for_any_number_of_streams(directory: Path, lanes: Any, count: int) -> None:
    streams = [Stream(local=directory, name=f"{number}") for number in range(count)]
    with pytest.raises(TopologyError, match=f"^num_canonical_nodes={lanes!r}: expected an integer from 1 to"):
        StreamingDataset(streams=streams, num_canonical_nodes=lanes)


def test_integers_of_numpy_are_integers(directory: Path) -> None:
    dataset = StreamingDataset(
        local=directory,
        shuffle=True,
        shuffle_seed=np.uint64(7),
        batch_size=np.int64(8),
        epoch_size=np.int32(40),
        predownload=np.int64(9),
        download_retry=np.int8(1),
        cache_limit=np.int64(1 << 30),
        replication=np.int64(1),
    )
    loader = StreamingDataLoader(dataset, batch_size=np.int16(8))
    assert len(list(loader)) == 5
    assert type(loader.batch_size) is int
    json.dumps(loader.state_dict())


def test_a_url_is_no_cache_directory(directory: Path) -> None:
    with pytest.raises(ValueError, match="a URL is remote="):
        StreamingDataset(remote=directory, local="s3://bucket/cache")


def test_sources_are_given_one_way(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"give remote= or local="):
        StreamingDataset()
    for other in ({"local": directory}, {"remote": directory}, {"split": "train"}):
        with pytest.raises(ValueError, match="streams= excludes"):
            StreamingDataset(streams=[Stream(local=directory)], **other)
    assert StreamingDataset(streams=Stream(local=directory)).size == 50  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected streamshard\.Stream"):
        StreamingDataset(streams=[str(directory)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="neither remote= nor local="):
        Stream(split="train")


STREAMS: list[tuple[dict[str, Any], str]] = [
    ({"repeat": 0}, "repeat=0 must be above 0"),
    ({"repeat": -1.0}, "repeat=-1.0 must be above 0"),
    ({"repeat": float("nan")}, "repeat=nan"),
    ({"repeat": float("inf")}, "repeat=inf"),
    ({"repeat": "2"}, "repeat='2'"),
    ({"repeat": True}, "repeat=True"),
    ({"repeat": [2]}, r"repeat=\[2\]"),
    ({"choose": 0}, "choose=0 must be above 0"),
    ({"choose": "0"}, "choose='0' must be above 0"),
    ({"choose": -1}, "choose=-1: must not be negative"),
    ({"choose": True}, "choose=True"),
    ({"choose": "-5"}, "choose='-5'"),
    ({"choose": "some"}, "choose='some'"),
    ({"choose": 2.5}, "choose=2.5"),
    ({"repeat": 0.001}, "would give 0 of its 50 samples"),
    ({"repeat": 2, "choose": 5}, "repeat=2 and choose=5 exclude each other"),
    ({"proportion": -0.5}, "proportion=-0.5"),
]


@pytest.mark.parametrize(("arguments", "message"), STREAMS, ids=lambda value: str(value)[:40])
def test_wrong_weights_of_a_stream_are_refused(
    directory: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        StreamingDataset(streams=[Stream(local=directory, **arguments)])


def test_a_directory_without_an_index_and_an_empty_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError, match=str(tmp_path)):
        StreamingDataset(local=tmp_path)
    write_numbers(tmp_path, [])
    with pytest.raises(FormatError, match="no samples"):
        StreamingDataset(local=tmp_path)


def test_s17_one_stream_object_serves_many_datasets(directory: Path) -> None:
    """mosaicml-streaming writes derived weights into it, and refuses it the next time."""
    stream = Stream(local=directory, repeat=2.0)
    before = repr(stream)
    for epoch_samples in (100, 100):
        assert len(StreamingDataset(streams=[stream])) == epoch_samples
    assert repr(stream) == before
    assert StreamingDataset(streams=[stream]).streams == (stream,)


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_s18_download_retry_counts_the_tries_after_the_first(directory: Path, retries: int) -> None:
    """0 is refused by mosaicml-streaming, and 2 means two tries in all."""
    dataset = StreamingDataset(remote=directory.as_uri(), local=directory, download_retry=retries)
    assert len(list(dataset)) == 50
    assert dataset._source.streams[0].cache.retry.attempts == retries + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_s20_without_a_batch_size_the_loader_brings_one(directory: Path, workers: int) -> None:
    """mosaicml-streaming fails in one process of a node, and the others wait for ever."""
    dataset = StreamingDataset(local=directory, shuffle=True)
    loader = StreamingDataLoader(dataset, 8, num_workers=workers, collate_fn=numbers)
    assert dataset.batch_size == 8
    assert list(loader) == list(
        StreamingDataLoader(StreamingDataset(local=directory, shuffle=True, batch_size=8), collate_fn=numbers)
    )
    single = StreamingDataLoader(StreamingDataset(local=directory), num_workers=workers, collate_fn=numbers)
    assert [len(batch) for batch in single] == [1] * 50
    assert len(list(StreamingDataset(local=directory))) == 50


@pytest.mark.slow  # torch waits 5 s for a worker that has failed
def test_without_a_batch_size_workers_of_a_plain_loader_warn(directory: Path) -> None:
    loader = DataLoader(StreamingDataset(local=directory), 8, num_workers=1, collate_fn=numbers)
    with pytest.raises(
        UserWarning, match="StreamingDataset has no batch_size"
    ):  # warnings are errors in tests
        list(loader)


# What a loader takes and refuses


def test_batch_sizes_of_loader_and_dataset_must_agree(directory: Path) -> None:
    dataset = StreamingDataset(local=directory, batch_size=8)
    with pytest.raises(ValueError, match="loader's batch_size=4 contradicts the dataset's batch_size=8"):
        StreamingDataLoader(dataset, 4)
    assert StreamingDataLoader(dataset, 8).batch_size == StreamingDataLoader(dataset).batch_size == 8
    whole = StreamingDataset(local=directory, global_batch_size=8)
    with pytest.raises(ValueError, match="contradicts the dataset's global_batch_size=8"):
        StreamingDataLoader(whole, 8)
    with pytest.raises(ValueError, match="batch_size=0"):
        StreamingDataLoader(StreamingDataset(local=directory), 0)


def test_drop_last_means_drop(directory: Path) -> None:
    for remainder in ("pad", "exact"):
        with pytest.raises(
            ValueError, match=f"drop_last=True contradicts the dataset's remainder='{remainder}'"
        ):
            StreamingDataLoader(StreamingDataset(local=directory, remainder=remainder), 8, drop_last=True)  # type: ignore[arg-type]
    dataset = StreamingDataset(local=directory, remainder="drop")
    assert len(StreamingDataLoader(dataset, 8, drop_last=True)) == 6
    loader = StreamingDataLoader(StreamingDataset(local=directory), 8, drop_last=True)
    assert (loader.drop_last, loader.dataset.remainder, len(loader)) == (True, "drop", 6)


@pytest.mark.parametrize("name", ["shuffle", "sampler", "batch_sampler"])
def test_what_would_change_the_order_is_refused(directory: Path, name: str) -> None:
    dataset = StreamingDataset(local=directory)
    value = True if name == "shuffle" else SequentialSampler(range(50))
    with pytest.raises(ValueError, match=f"{name}= has no place here"):
        StreamingDataLoader(dataset, 8, **{name: value})
    StreamingDataLoader(dataset, 8, **{name: False if name == "shuffle" else None})
    with pytest.raises(ValueError, match="in_order=False"):
        StreamingDataLoader(dataset, 8, in_order=False)
    with pytest.raises(TypeError, match="needs a StreamingDataset, not list"):
        StreamingDataLoader([1, 2])  # type: ignore[arg-type]


class Filtered(StreamingDataset):
    def __iter__(self) -> Any:
        return (sample for sample in super().__iter__() if sample["number"] % 3)


def test_a_dataset_that_filters_its_iteration_is_for_plain_loaders(directory: Path) -> None:
    dataset = Filtered(local=directory, batch_size=8)
    with pytest.raises(ValueError, match="Filtered overrides __iter__"):
        StreamingDataLoader(dataset, 8)
    kept = [number for batch in DataLoader(dataset, 8, collate_fn=numbers) for number in batch]
    assert kept == [number for number in range(50) if number % 3]


# Sizes of an epoch


@pytest.mark.parametrize("size", [1, 7, 49, 50, 51, 100, 125, "0.02k"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_the_size_asked_for_and_the_next_goes_on(
    directory: Path, size: int | str, shuffle: bool
) -> None:
    wanted = 20 if size == "0.02k" else int(size)
    loader = loader_of(directory, batch_size=4, epoch_size=size, shuffle=shuffle)
    assert loader.dataset.epoch_size == len(loader.dataset) == wanted
    assert loader.dataset.size == 50
    epochs = [read_part([loader]).sequence for _ in range(8)]
    assert [len(epoch) for epoch in epochs] == [wanted] * 8
    # All samples are used evenly: each run of 50 in the whole course is a pass over all of them.
    course = list(itertools.chain(*epochs))
    if not shuffle:
        assert course == [number % 50 for number in range(8 * wanted)]
    for epoch in epochs:
        assert max(Counter(epoch).values()) <= wanted // 50 + 2
    counts = Counter(course)
    assert max(counts.values()) - min(counts[number] for number in range(50)) <= 1


@pytest.mark.parametrize(
    ("weight", "size"),
    [
        ({"repeat": 2}, 100),
        ({"repeat": 0.5}, 25),
        ({"repeat": 1.5}, 75),
        ({"repeat": 0.58}, 29),
        ({"choose": 30}, 30),
        ({"choose": "0.12k"}, 120),
    ],
)
def test_repeat_and_choose_set_a_single_streams_share(
    directory: Path, weight: dict[str, Any], size: int
) -> None:
    dataset = StreamingDataset(streams=[Stream(local=directory, **weight)], shuffle=True, batch_size=4)
    assert len(dataset) == dataset.epoch_size == size
    loader = StreamingDataLoader(dataset, collate_fn=numbers)
    epochs = [read_part([loader]).sequence for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [size] * 4
    counts = Counter(itertools.chain(*epochs))
    assert max(counts.values()) - min(counts[number] for number in range(50)) <= 1
    with pytest.raises(ValueError, match="epoch_size=10 cannot"):
        StreamingDataset(streams=[Stream(local=directory, **weight)], epoch_size=10)


def test_a_proportion_of_a_single_stream_is_all_of_it(directory: Path) -> None:
    streams = [Stream(local=directory, proportion=0.3)]
    assert len(StreamingDataset(streams=streams)) == 50
    assert len(StreamingDataset(streams=streams, epoch_size=70)) == 70


def test_an_epoch_of_another_size_is_resumed_in_any_world(directory: Path) -> None:
    how = {"epoch_size": 70, "global_batch_size": 8}
    whole = [read_part([loader], steps=None) for loader in [loader_of(directory, **how)] for _ in range(2)]
    first = read_part(world_of(directory, 2, **how), steps=4)
    loaders = world_of(directory, 3, **how)
    second = read_part(loaders, state=first.state)
    assert first.steps + second.steps == whole[0].steps
    assert read_part(loaders).steps == whole[1].steps


def test_nothing_but_names_is_public() -> None:
    assert streamshard.StreamingDataset is StreamingDataset
    assert streamshard.StreamingDataLoader is StreamingDataLoader


def test_more_lanes_than_samples_work(tmp_path: Path) -> None:
    write_numbers(tmp_path, [2, 1])
    loader = loader_of(tmp_path, batch_size=2, num_canonical_nodes=64)
    assert sorted(read_part([loader]).sequence) == [0, 1, 2]
    with pytest.raises(TopologyError):
        StreamingDataset(local=tmp_path, shuffle=True, num_canonical_nodes=1 << 40)


def test_a_dataset_says_what_it_is(directory: Path) -> None:
    dataset = StreamingDataset(local=directory, world=World(0, 2))
    assert repr(dataset) == f"StreamingDataset({directory}: 50 samples in 5 shards)"
    assert (dataset.size, dataset.num_samples, dataset.num_shards, len(dataset)) == (50, 50, 5, 25)
