"""The memory of this machine, or of its control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from streamshard.storage import memory_limit
from streamshard.storage.memory_limit import memory_nbytes


def test_it_is_what_the_machine_has_at_most() -> None:
    assert 0 < memory_nbytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"a/b": "max", "a": "5000"}, 5000),
        ({"a/b": "4000", "a": "5000"}, 4000),
        ({"a/b": "?"}, None),
    ],
)
def test_the_least_of_its_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], expected: int | None
) -> None:
    whole = memory_nbytes()
    groups, own = tmp_path / "groups", tmp_path / "own"
    (groups / "a" / "b").mkdir(parents=True)
    for name, limit in limits.items():
        (groups / name / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.max").write_text("1")  # above all groups
    own.write_text("1:name=systemd:/x\n0::/a/b\n")
    monkeypatch.setattr(memory_limit, "_GROUPS", groups)
    monkeypatch.setattr(memory_limit, "_OWN", own)
    assert memory_nbytes() == (expected or max(whole, memory_nbytes()))
    own.unlink()
    assert memory_nbytes() > 5000
