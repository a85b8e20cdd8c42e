"""Samples laid into blocks are the samples of a list, wherever the blocks end; blocks are used again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.format.schema import Schema
from streamshard.write import samples as module
from streamshard.write.samples import BlockPool, SampleList, SampleMemory, Samples, holds_large_values

PARTS = st.lists(st.binary(max_size=40), min_size=1, max_size=3).map(tuple)


def _shown(samples: Samples) -> tuple[int, list[int], bytes, list[bytes]]:
    whole = b"".join(samples.buffers())
    return len(samples), samples.sizes().tolist(), whole, [bytes(each) for each in samples.each()]


@given(st.lists(st.lists(PARTS, max_size=8), min_size=1, max_size=3))
def test_blocks_hold_what_a_list_holds(shards: list[list[tuple[bytes, ...]]]) -> None:
    pool = BlockPool(0)
    pool.block_nbytes = 16
    for shard in shards:  # the blocks of the shard before, with what they held
        memory, listed = SampleMemory(pool), SampleList()
        for parts in shard:
            memory.append(parts)
            listed.append(b"".join(parts))
        assert _shown(memory) == _shown(listed)
        memory.release()
        assert _shown(memory) == (0, [], b"", [])


def test_no_more_blocks_are_kept_than_two_shards_have(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(1 << 20)
    monkeypatch.setattr(module, "_KEPT_NBYTES", 3 * pool.block_nbytes)
    blocks = [pool.take() for _ in range(5)]
    pool.give_back(blocks[:2])
    pool.give_back(blocks[2:])
    known = set(map(id, blocks))
    assert sum(id(pool.take()) in known for _ in range(5)) == 3


@pytest.mark.parametrize(
    ("encoding", "large"),
    [("int", False), ("str", False), ("json", False), ("ndarray:float32:4", False)]
    + [(name, True) for name in ("bytes", "jpeg", "list[png]", "ndarray", "ndarray:uint8", "pil")],
)
def test_what_is_laid_into_memory_at_once(encoding: str, large: bool) -> None:
    assert holds_large_values(Schema.from_columns({"a": "int", "b": encoding})) is large
