"""Workspaces of tasks on other streams against a list of all that the compute stream has not awaited."""

from hypothesis import given
from hypothesis import strategies as st

from membench.core.graph.schedule import EXCHANGE_STREAM
from membench.planning.workspaces import Workspaces

STREAMS = ["gradients", "other", EXCHANGE_STREAM]
STEPS = st.one_of(
    st.tuples(st.just("take"), st.sampled_from(STREAMS), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from(STREAMS), st.integers(0, 9)),
    st.tuples(st.just("synchronize"), st.sampled_from(STREAMS), st.just(0)),
)


@given(st.lists(STEPS, max_size=40))
def test_each_stream_holds_the_largest_workspace_not_waited_for(steps: list[tuple[str, str, int]]) -> None:
    workspaces = Workspaces()
    pending: list[tuple[int, str, int]] = []
    for position, (step, stream, number) in enumerate(steps):
        match step:
            case "take":
                workspaces.take(stream, position, number)
                pending.append((position, stream, number))
            case "wait":
                earlier = position - number
                workspaces.waited(stream, earlier)
                pending = [task for task in pending if task[1] != stream or task[0] > earlier]
            case _:
                workspaces.synchronized()
                pending = [task for task in pending if task[1] == EXCHANGE_STREAM]
        expected = sum(max((size for _, of, size in pending if of == stream), default=0) for stream in STREAMS)
        assert workspaces.held_bytes == expected
