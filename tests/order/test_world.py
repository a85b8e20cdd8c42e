import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import TopologyError
from streamshard.order.world import World


def test_one_process_is_the_whole_world():
    world = World()
    assert (world.rank, world.world_size, world.local_world_size) == (0, 1, 1)
    assert (world.node, world.num_nodes, world.local_rank) == (0, 1, 0)


def test_ranks_are_numbered_node_by_node():
    world = World(rank=13, world_size=24, local_world_size=8)
    assert (world.node, world.num_nodes, world.local_rank) == (1, 3, 5)


def test_without_local_world_size_all_ranks_share_a_node():
    assert World(3, 4).num_nodes == 1
    assert World(3, 4).local_world_size == 4


def test_the_last_node_may_be_smaller():
    world = World(rank=9, world_size=10, local_world_size=4)
    assert (world.node, world.num_nodes, world.local_rank) == (2, 3, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, 4), ("rank=4", "world_size=4", "0 to 3")),
        ((-1, 4), ("rank=-1", "world_size=4")),
        ((0, 0), ("world_size=0",)),
        ((0, 4, 5), ("local_world_size=5", "world_size=4")),
        ((0, 4, 0), ("local_world_size=0",)),
        (("0", 4), ("rank='0'", "integer")),
        ((0, 2.0), ("world_size=2.0", "integer")),
        ((True, 2), ("rank=True", "integer")),
    ],
)
def test_nonsense_is_refused_with_the_values(arguments, words):
    with pytest.raises(TopologyError) as caught:
        World(*arguments)
    assert all(word in str(caught.value) for word in words)


def test_numpy_integers_are_integers_and_become_plain_ones():
    world = World(np.int64(1), np.int32(4), np.uint8(2))
    assert [type(value) for value in (world.rank, world.world_size, world.local_world_size)] == [
        int,
        int,
        int,
    ]


def test_replicated_ranks_count_as_one():
    worlds = [World(rank, 8, 4).replicate(2) for rank in range(8)]
    assert [world.rank for world in worlds] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {(world.world_size, world.num_nodes) for world in worlds} == {(4, 2)}


def test_a_replica_group_may_fill_whole_nodes():
    world = World(rank=9, world_size=16, local_world_size=4).replicate(8)
    assert (world.rank, world.world_size, world.num_nodes) == (1, 2, 2)


@pytest.mark.parametrize(
    ("world", "k"), [(World(0, 8), 3), (World(0, 8), 0), (World(0, 24, 8), 3), (World(0, 6), 8)]
)
def test_a_replication_that_does_not_go_into_the_world_is_refused(world, k):
    with pytest.raises(TopologyError, match=f"replication={k}"):
        world.replicate(k)


@given(st.data())
def test_each_rank_has_one_place_on_one_node(data):
    size = data.draw(st.integers(1, 100))
    local = data.draw(st.integers(1, size))
    worlds = [World(rank, size, local) for rank in range(size)]
    assert len({(world.node, world.local_rank) for world in worlds}) == size
    assert {world.node for world in worlds} == set(range(worlds[0].num_nodes))
    assert all(0 <= world.local_rank < local for world in worlds)


def test_a_world_travels_to_workers():
    assert pickle.loads(pickle.dumps(World(1, 4, 2))) == World(1, 4, 2)


def test_b117_data_parallel_rank_and_size_can_be_given_by_hand():
    # 2 context-parallel peers on each of 4 data-parallel ranks: peers must read the same samples.
    assert World(rank=5, world_size=8).replicate(2) == World(rank=2, world_size=4)
