"""One cluster for all tests of Ray: three nodes, one that will be killed, one that does not see a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.ray_cluster import DOOMED, LocalCluster, can_hide, local_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Started when the first test asks for it, ended behind the last; the tests' process is connected as a driver."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'streamshard[ray]'")
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster() as started:
        started.pipe = folder / "pipe"
        started.hidden = folder / "hidden"
        started.hidden.mkdir()
        os.mkfifo(started.pipe)
        started.doomed = started.add(**{DOOMED: str(started.pipe)})
        if can_hide():
            started.add_blind(started.hidden)
        else:
            started.add()
        started.connect()
        started.wait(3)
        yield started
