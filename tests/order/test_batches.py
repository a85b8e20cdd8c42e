import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import TopologyError
from streamshard.order.batches import BatchPlan


@st.composite
def plans(draw):
    samples = draw(st.integers(0, 300))
    size = draw(st.integers(1, 60))
    remainder = draw(st.sampled_from(["pad", "exact"] + (["drop"] if samples >= size else [])))
    return BatchPlan(samples, size, draw(st.integers(1, size)), draw(st.integers(0, samples)), remainder)


@given(plans())
def test_sizes_of_batches_add_up_to_samples_of_ranks(plan):
    for rank in range(plan.ranks):
        sizes = [plan.rank_batch_size(batch, rank) for batch in range(plan.num_batches)]
        assert sum(sizes) == plan.samples_of_rank(rank)
        assert sum(size > 0 for size in sizes) == plan.rank_num_batches(rank)
        assert plan.num_batches - plan.rank_num_batches(rank) in (
            (0, 1) if plan.remainder == "exact" else (0,)
        )


@given(plans())
def test_no_sample_is_lost_and_padding_is_less_than_the_ranks(plan):
    given_out = sum(plan.samples_of_rank(rank) for rank in range(plan.ranks))
    pads = sum(plan.rank_padding(plan.full_batches, rank) for rank in range(plan.ranks))
    left = plan.num_samples - plan.start
    if plan.remainder == "drop":
        assert given_out == left - left % plan.global_batch_size
    else:
        assert given_out == left + pads
    assert pads < plan.ranks


@given(plans())
def test_with_pad_and_drop_all_ranks_step_equally(plan):
    if plan.remainder == "exact":
        return
    assert len({plan.rank_num_batches(rank) for rank in range(plan.ranks)}) == 1
    if plan.tails:
        assert len({plan.rank_batch_size(plan.full_batches, rank) for rank in range(plan.ranks)}) == 1


@given(plans())
def test_position_after_all_batches_is_the_end_unless_some_are_dropped(plan):
    end = plan.position_after(plan.num_batches)
    assert end == (
        plan.start + plan.full_batches * plan.global_batch_size
        if plan.remainder == "drop"
        else plan.num_samples
    )
    assert plan.position_after(0) == plan.start


def test_ranks_differ_by_at_most_one_where_the_batch_does_not_divide():
    plan = BatchPlan(100, 10, 4)
    assert [plan.rank_batch_size(0, rank) for rank in range(4)] == [2, 3, 2, 3]


def test_with_one_rank_nothing_is_padded():
    plan = BatchPlan(103, 10, 1)
    assert plan.rank_batch_size(10, 0) == 3
    assert plan.rank_padding(10, 0) == 0


def test_more_ranks_than_samples_in_a_batch_are_refused():
    with pytest.raises(TopologyError, match="global batch of 3 samples cannot be shared by 4 ranks"):
        BatchPlan(100, 3, 4)


def test_drop_of_everything_is_refused_with_both_numbers():
    with pytest.raises(TopologyError, match=r"3 samples .* 8"):
        BatchPlan(3, 8, 1, remainder="drop")


def test_a_resumed_epoch_may_have_less_than_one_batch_left_to_drop():
    plan = BatchPlan(100, 8, 2, start=97, remainder="drop")
    assert (plan.num_batches, plan.samples_of_rank(0)) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((10, 2, 1, 11), "start=11"),
        ((10, 2, 1, -1), "start=-1"),
        ((-1, 2), "num_samples=-1"),
        ((10, 2, 0), "ranks=0"),
        ((10, 2, 1, 0, "wrap"), "pad, drop, exact"),
        ((10, 1 << 40), "global_batch_size"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        BatchPlan(*arguments)


def test_a_rank_or_batch_outside_the_plan_is_refused():
    plan = BatchPlan(10, 4, 2)
    with pytest.raises(TopologyError, match="rank=2"):
        plan.samples_of_rank(2)
    with pytest.raises(ValueError, match="batch=3"):
        plan.rank_batch_size(3, 0)
    with pytest.raises(ValueError, match="batches=-1"):
        plan.position_after(-1)


def test_b104_the_number_of_batches_is_exact():
    # n=50, batch 8, one rank.
    assert BatchPlan(50, 8).num_batches == 7
    assert BatchPlan(50, 8, remainder="drop").num_batches == 6


def test_b107_a_batch_larger_than_the_dataset_is_one_short_batch():
    plan = BatchPlan(3, 8)
    assert (plan.num_batches, plan.rank_batch_size(0, 0)) == (1, 3)


def test_b106_dropping_loses_less_than_one_global_batch():
    for ranks in (1, 3):
        plan = BatchPlan(203, 4 * ranks, ranks, remainder="drop")
        assert {
            plan.rank_batch_size(batch, rank) for batch in range(plan.num_batches) for rank in range(ranks)
        } == {4}
        assert 203 - sum(plan.samples_of_rank(rank) for rank in range(ranks)) < 4 * ranks


def test_b124_a_resumed_epoch_has_the_rest_of_its_batches():
    # Resume at batch 21 of 25: 4 are left, then 25 again.
    assert BatchPlan(100, 4, 1, start=84).num_batches == 4
    assert BatchPlan(100, 4, 1).num_batches == 25
