"""The orders of a pipeline's micro-batches: those of torch.distributed.pipelining, and what every order must keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from membench.core.errors import MembenchError
from membench.core.step.pipeline import Action, ActionKind, Pipeline, PipelineSchedule

FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD
OF_TORCH = {"F": FORWARD, "B": BACKWARD, "I": ActionKind.INPUT_GRADIENT, "W": ActionKind.WEIGHT_GRADIENT}


def pipeline(ranks: int, each: int, micro_batches: int, schedule: PipelineSchedule) -> Pipeline:
    begins = tuple(f"blocks.{number}" for number in range(1, ranks * each))
    return Pipeline(ranks, begins, micro_batches, schedule)


def torch_order(joined: Pipeline, rank: int) -> list[Action]:
    """Return the actions of torch's schedule, whose constructor needs a process group."""
    kind = schedules.get_schedule_class(str(joined.schedule))
    made = object.__new__(kind)
    made._n_microbatches, made.pp_group_size = joined.micro_batches, joined.ranks
    made._num_stages, made.n_local_stages = joined.stages, joined.stages // joined.ranks
    made.number_of_rounds = max(1, joined.micro_batches // joined.ranks)
    made.microbatches_per_round = joined.micro_batches // made.number_of_rounds
    if joined.stages == joined.ranks and joined.schedule in ("GPipe", "1F1B"):
        found = made._get_pipeline_order()[rank]
    else:
        found = made._calculate_single_rank_operations(rank)
    return [
        Action(OF_TORCH[each.computation_type.value], each.stage_index, each.microbatch_index)
        for each in found
        if each is not None and each.computation_type.value in OF_TORCH
    ]


SIZES = [(1, 1), (2, 1), (4, 2), (8, 1), (3, 3)]


@pytest.mark.parametrize("schedule", PipelineSchedule)
@pytest.mark.parametrize(("ranks", "each"), SIZES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_orders_are_those_of_torch(schedule: PipelineSchedule, ranks: int, each: int, rounds: int) -> None:
    is_single = schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)
    joined = pipeline(ranks, 1 if is_single else each, rounds * ranks, schedule)
    for rank in range(ranks):
        found, expected = joined.actions(rank), torch_order(joined, rank)
        if (
            schedule == "1F1B" and rank == ranks - 1
        ):  # where torch's order, which is for pictures, counts forward passes from 1
            expected = [each._replace(micro_batch=each.micro_batch - (each.kind is FORWARD)) for each in expected]
        assert found == expected


@given(st.sampled_from(list(PipelineSchedule)), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_no_rank_waits_for_ever(schedule: PipelineSchedule, ranks: int, each: int, rounds: int) -> None:
    is_single = schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)
    joined = pipeline(ranks, 1 if is_single else each, rounds * ranks, schedule)
    left = [joined.actions(rank) for rank in range(ranks)]
    assert all(len(each) == len({*each}) for each in left)
    done: set[tuple[ActionKind, int, int]] = set()

    def is_ready(action: Action) -> bool:
        kind, stage, micro_batch = action
        if kind is FORWARD:
            return not stage or (FORWARD, stage - 1, micro_batch) in done
        if kind is ActionKind.WEIGHT_GRADIENT:
            return (ActionKind.INPUT_GRADIENT, stage, micro_batch) in done
        follows = stage == joined.stages - 1 or (kind, stage + 1, micro_batch) in done
        return follows and (FORWARD, stage, micro_batch) in done

    while any(left):
        ready = [each for each in left if each and is_ready(each[0])]
        assert ready
        for actions in ready:
            done.add(actions.pop(0))


@pytest.mark.parametrize(
    ("ranks", "stages", "micro_batches", "schedule", "message"),
    [
        (4, 6, 8, PipelineSchedule.INTERLEAVED, "6 stages cannot be divided equally over 4 ranks"),
        (2, 4, 8, PipelineSchedule.GPIPE, "GPipe has one stage on each rank"),
        (4, 4, 9, PipelineSchedule.ZERO_BUBBLE, "9 micro-batches cannot be divided into rounds of 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused(
    ranks: int, stages: int, micro_batches: int, schedule: PipelineSchedule, message: str
) -> None:
    with pytest.raises(MembenchError, match=message):
        Pipeline(ranks, tuple(map(str, range(1, stages))), micro_batches, schedule)
