"""A damaged or missing shard is an error with a name in the training loop; never a short epoch, never a hang."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamshard import StreamingDataLoader, StreamingDataset
from streamshard.errors import BlobNotFoundError, ChecksumError, FormatError, StorageError, WrongSizeError
from tests.support import damage
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.loading import epoch_of, joined, make_loader, numbers_of, text_dataset
from tests.support.seaweedfs import SeaweedServer

# Shards of equal size, so that two of them can change places.
SAMPLES, PER_SHARD, BATCH, BAD = 96, 12, 6, 5
BEFORE = [list(range(begin, begin + BATCH)) for begin in range(0, BAD * PER_SHARD, BATCH)]
QUICK: dict[str, Any] = {"download_retry": 1, "download_timeout": 20}

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_dataset(tmp_path_factory.mktemp("sound") / "set", SAMPLES, samples_per_shard=PER_SHARD)


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "set"))


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    yield
    gc.collect()
    me = psutil.Process()
    # Forked workers look like this process; the S3 server does not.
    workers = [child for child in me.children() if child.cmdline() == me.cmdline()]
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    assert not [thread for thread in threading.enumerate() if thread.name == "streamshard-prefetch"]


class Places:
    """Puts a directory where it is read from."""

    def __init__(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self._tmp_path = tmp_path
        self._request = request

    def arguments(self, kind: str, directory: Path) -> dict[str, Any]:
        if kind == "in place":
            return {"local": directory}
        local = self._tmp_path / "cache"
        if kind == "directory":
            return {"remote": directory.as_uri(), "local": local}
        s3: SeaweedServer = self._request.getfixturevalue("s3")
        return {"remote": upload(s3, directory), "local": local, "storage_options": s3.storage_options}


def upload(s3: SeaweedServer, directory: Path) -> str:
    bucket = s3.make_bucket()
    s3.filesystem().put(str(directory), f"{bucket}/set", recursive=True)
    return f"{bucket}/set"


@pytest.fixture
def places(tmp_path: Path, request: pytest.FixtureRequest) -> Places:
    return Places(tmp_path, request)


def fails_at_the_bad_shard(
    loader: Any, error: type[Exception], words: str, before: list[list[int]] = BEFORE
) -> pytest.ExceptionInfo[Exception]:
    """The loop gets the batches before the bad shard, then the error."""
    seen = []
    with pytest.raises(error, match=words) as caught:  # noqa: PT012 the loop is what is tested
        for batch in loader:
            seen.append(numbers_of(batch))
    assert seen == before
    assert type(caught.value) is error
    return caught


SHARD = f"shard.{BAD:05d}.mds"
FAULTS: list[tuple[Callable[[Path, int], None], type[Exception], type[Exception], dict[str, Any]]] = [
    # fault, error of a fetched file, error in place, arguments that the place in place needs to see it
    (damage.remove, BlobNotFoundError, BlobNotFoundError, {}),
    (damage.truncate, WrongSizeError, FormatError, {}),
    (damage.empty, WrongSizeError, FormatError, {}),
    (damage.lengthen, WrongSizeError, FormatError, {}),
    (damage.flip_bit, ChecksumError, ChecksumError, {"validate_hash": "xxh64"}),
    (damage.swap_with_next, ChecksumError, ChecksumError, {"validate_hash": "xxh64"}),
    (damage.claim_more_samples, FormatError, FormatError, {}),
    (damage.point_outside, FormatError, FormatError, {}),
    (damage.point_backwards, FormatError, FormatError, {}),
]


CASES = [
    # Over S3 those that differ from a directory in more than the way there.
    pytest.param(*fault, place, workers, id=f"{fault[0].__name__}-{place}-{workers}")
    for fault in FAULTS
    for place in ("in place", "directory", "s3")
    for workers in (0, 2)
    if place != "s3" or (workers == 2 and fault[0] in (damage.remove, damage.flip_bit, damage.truncate))
]


@pytest.mark.parametrize(("harm", "fetched", "in_place", "arguments", "place", "workers"), CASES)
def test_s1_s2_s3_a_bad_shard_raises_its_error_after_the_batches_before_it(
    copy: Path,
    places: Places,
    harm: Callable[[Path, int], None],
    fetched: type[Exception],
    in_place: type[Exception],
    arguments: dict[str, Any],
    place: str,
    workers: int,
) -> None:
    harm(copy, BAD)
    where = places.arguments(place, copy)
    dataset = StreamingDataset(**where, **QUICK, **(arguments if place == "in place" else {}))
    error = in_place if place == "in place" else fetched
    fails_at_the_bad_shard(make_loader("streaming", dataset, BATCH, num_workers=workers), error, SHARD)


# Two workers of torch's loader take 5 s each to end after an error, whatever the dataset.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_plain_loader_raises_the_error_too(copy: Path, places: Places, workers: int) -> None:
    damage.flip_bit(copy, BAD)
    dataset = StreamingDataset(**places.arguments("directory", copy), **QUICK, batch_size=BATCH)
    fails_at_the_bad_shard(make_loader("plain", dataset, BATCH, num_workers=workers), ChecksumError, SHARD)


@pytest.mark.parametrize("place", ["in place", "directory", "s3"])
def test_a_missing_index_is_said_by_the_constructor(copy: Path, places: Places, place: str) -> None:
    damage.remove_index(copy)
    with pytest.raises(BlobNotFoundError, match=r"index\.json"):
        StreamingDataset(**places.arguments(place, copy), **QUICK)


@pytest.mark.parametrize("place", ["in place", "directory", "s3"])
def test_an_index_that_leaves_its_directory_or_is_cut_is_refused(
    copy: Path, places: Places, place: str
) -> None:
    text = (copy / "index.json").read_bytes()
    for harm, words in [
        (lambda: damage.climb_out(copy, BAD), r"\.\./outside\.mds"),
        (lambda: damage.cut_index(copy), r"index\.json"),
    ]:
        (copy / "index.json").write_bytes(text)
        harm()
        with pytest.raises(FormatError, match=words):
            StreamingDataset(**places.arguments(place, copy), **QUICK)


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (2, False), pytest.param(2, True, marks=pytest.mark.slow)]
)
def test_the_loop_can_be_begun_again_after_an_error(
    copy: Path, places: Places, workers: int, persistent: bool
) -> None:
    sound = damage.shard_path(copy, BAD).read_bytes()
    damage.truncate(copy, BAD)
    dataset = StreamingDataset(**places.arguments("directory", copy), **QUICK)
    loader = make_loader("streaming", dataset, BATCH, num_workers=workers, persistent_workers=persistent)
    fails_at_the_bad_shard(loader, WrongSizeError, SHARD)
    state = loader.state_dict()
    assert state["position"] == BAD * PER_SHARD
    damage.shard_path(copy, BAD).write_bytes(sound)
    loader.load_state_dict(state)
    assert joined(epoch_of(loader)) == list(range(BAD * PER_SHARD, SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("harm", [damage.flip_bit, damage.truncate, damage.empty], ids=lambda f: f.__name__)
def test_b073_s2_a_file_that_went_bad_in_the_cache_is_fetched_again_by_the_next_run(
    sound: Path, places: Places, tmp_path: Path, workers: int, harm: Callable[[Path, int], None]
) -> None:
    where = places.arguments("directory", sound)
    whole = list(range(SAMPLES))
    loader = StreamingDataLoader(StreamingDataset(**where, **QUICK), BATCH, num_workers=workers)
    assert joined(epoch_of(loader)) == whole
    del loader
    harm(tmp_path / "cache", BAD)
    loader = StreamingDataLoader(StreamingDataset(**where, **QUICK), BATCH, num_workers=workers)
    assert joined(epoch_of(loader)) == whole
    assert (
        damage.shard_path(tmp_path / "cache", BAD).read_bytes() == damage.shard_path(sound, BAD).read_bytes()
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_b073_a_download_that_is_bad_once_is_fetched_again(
    s3: SeaweedServer, s3_proxy: FaultyProxy, sound: Path, tmp_path: Path, workers: int
) -> None:
    options = s3.options_for(s3_proxy.endpoint_url)
    dataset = StreamingDataset(
        remote=upload(s3, sound), local=tmp_path / "cache", storage_options=options, **QUICK
    )
    s3_proxy.arm(Fault(half_body=True, method="GET", path_contains=SHARD))
    loader = StreamingDataLoader(dataset, BATCH, num_workers=workers)
    assert joined(epoch_of(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [2])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(latency_s=0.2),
        Fault(cut_after=300),
        Fault(status=(503, "SlowDown")),
        Fault(half_body=True, method="GET"),
    ],
    ids=["latency", "cut", "503", "half"],
)
def test_s3_through_a_bad_network_gives_the_whole_epoch(
    s3: SeaweedServer, s3_proxy: FaultyProxy, sound: Path, tmp_path: Path, fault: Fault, workers: int
) -> None:
    options = s3.options_for(s3_proxy.endpoint_url)
    dataset = StreamingDataset(remote=upload(s3, sound), local=tmp_path / "cache", storage_options=options)
    s3_proxy.arm(fault, times=5)
    loader = StreamingDataLoader(dataset, BATCH, num_workers=workers)
    assert joined(epoch_of(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("wrong", ["bucket", "prefix"])
def test_b150_a_wrong_place_is_said_without_trying_again(
    s3: SeaweedServer, s3_proxy: FaultyProxy, wrong: str
) -> None:
    options = s3.options_for(s3_proxy.endpoint_url)
    url = "s3://no-such-bucket-here/set" if wrong == "bucket" else f"{s3.make_bucket()}/no/such/set"
    with pytest.raises(BlobNotFoundError, match=url):
        StreamingDataset(remote=url, storage_options=options)
    assert s3_proxy.count("GET", "index.json") + s3_proxy.count("HEAD", "index.json") <= 2


class Trouble(StorageError):
    """An error of the user's own code."""


def fails_in_sample_33(sample: Any) -> Any:
    if sample["number"] == 33:
        raise Trouble("sample 33 is not wanted")
    return sample


@pytest.mark.parametrize(("kind", "workers"), [("plain", 0), ("streaming", 0), ("streaming", 2)])
def test_an_exception_of_the_users_code_keeps_its_class(sound: Path, kind: str, workers: int) -> None:
    dataset = StreamingDataset(local=sound, batch_size=BATCH, transform=fails_in_sample_33)
    loader = make_loader(kind, dataset, BATCH, num_workers=workers)
    fails_at_the_bad_shard(loader, Trouble, "sample 33 is not wanted", BEFORE[:5])
