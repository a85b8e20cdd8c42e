"""The store that lives in this process."""

from __future__ import annotations

import secrets

import pytest

from streamshard.storage import open_store
from streamshard.storage.memory_store import MemoryStore
from tests.support.store_contract import StoreContract


class TestContract(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(f"memory://{secrets.token_hex(8)}")


def test_two_stores_of_one_name_are_one_place() -> None:
    name = secrets.token_hex(8)
    open_store(f"memory://{name}/sub").put_bytes("a", b"1")
    assert open_store(f"memory://{name}/").list() == ["sub/a"]
    assert open_store(f"memory://{name}/sub/").read("a") == b"1"
    assert open_store(f"memory://{name}x").list() == []
