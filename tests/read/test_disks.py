"""Which files may be mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamshard.read import disks

MOUNTS = """\
25 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
31 25 0:27 / /mnt/nfs rw,relatime shared:2 master:1 - nfs4 server:/export rw
32 25 0:28 / /mnt/my\\040disk rw - fuse.sshfs host: rw
33 25 0:29 / /dev/shm rw - tmpfs tmpfs rw
odd
"""


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    monkeypatch.setattr(disks, "_MOUNTS", path)
    disks.is_local_device.cache_clear()
    yield path
    disks.is_local_device.cache_clear()


@pytest.mark.parametrize(
    ("device", "expected"),
    [((259, 1), True), ((0, 29), True), ((0, 27), False), ((0, 28), False), ((7, 7), False)],
    ids=["ext4", "tmpfs", "nfs", "fuse", "unknown"],
)
def test_only_file_systems_of_this_machine_are_mapped(device: tuple[int, int], expected: bool) -> None:
    assert disks.is_local_device(os.makedev(*device)) is expected


def test_without_a_list_of_mounts_nothing_is_mapped(mounts: Path) -> None:
    mounts.unlink()
    assert disks.is_local_device(os.makedev(259, 1)) is False
