"""Encode and Decode: the builder refuses what cannot be; validate finds what the builder would never emit."""

from dataclasses import replace

import pytest

from membench.codecs.rows import csr, vp_encoding
from membench.core.errors import InvalidSchedule, UnsupportedStrategy
from membench.core.graph.schedule import Compute, Decode, Encode, Free, Instruction, Schedule, Wait
from membench.core.graph.task_graph import Role, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.checking.validate import validate
from membench.planning.encoding import add_encoded_forms
from membench.planning.memory.liveness import live_bytes, residencies
from tests.helpers.planning.toy import SIZE_BYTES, encoding, graph

FIRST, SECOND, RESULT, ENCODED = 1, 2, 3, 4
DENSITY = 0.25


@pytest.fixture
def toy() -> TaskGraph:
    """One activation may be encoded, at a density of a quarter."""
    encodable, forms = add_encoded_forms(graph(), {FIRST: vp_encoding()}, {FIRST: DENSITY})
    assert forms == {FIRST: ENCODED}
    return encodable


def test_the_encoded_form_is_a_block_of_the_planned_size(toy: TaskGraph) -> None:
    elements = SIZE_BYTES // 4
    block = toy.blocks[ENCODED]
    assert block.role is Role.ENCODED
    assert block.size_bytes == vp_encoding().size_bytes(elements, round(DENSITY * elements))


@pytest.mark.parametrize("stream", ["compute", "codec"])
def test_memory_is_held_from_encoding_to_decoding(toy: TaskGraph, stream: str) -> None:
    schedule = encoding(toy, ENCODED, vp_encoding(), stream)
    validate(schedule)
    assert "encode block1" in str(schedule) and "decode block1" in str(schedule)
    held = dict(zip(schedule.instructions, live_bytes(schedule), strict=True))  # at the last of equal ones
    encoded_bytes = toy.blocks[ENCODED].size_bytes
    assert held[Encode(FIRST, ENCODED, vp_encoding(), stream)] == toy.external_bytes + SIZE_BYTES + encoded_bytes
    assert schedule.peak_bytes == max(live_bytes(schedule)) == toy.external_bytes + 3 * SIZE_BYTES
    assert [block for block, begins in residencies(schedule) if begins] == [FIRST, ENCODED, SECOND, FIRST, RESULT]


def test_an_activation_is_not_freed_before_it_is_encoded(toy: TaskGraph) -> None:
    program = encoding(toy, ENCODED, vp_encoding(), "codec").instructions
    encode = program.index(Encode(FIRST, ENCODED, vp_encoding(), "codec"))
    assert Wait("compute", encode) in program[encode : program.index(Free(FIRST))]


def test_the_builder_refuses(toy: TaskGraph) -> None:
    builder = ScheduleBuilder("test", toy, budget_bytes=None)
    with pytest.raises(UnsupportedStrategy, match="not resident and cannot be encoded"):
        builder.encode(FIRST, ENCODED, csr(), stream="codec")
    builder.compute(toy.tasks[0])
    with pytest.raises(UnsupportedStrategy, match="no encoded form"):
        builder.free(FIRST)
    builder.encode(FIRST, ENCODED, vp_encoding(), stream="codec")
    with pytest.raises(UnsupportedStrategy, match="resident already"):
        builder.decode(FIRST, stream="codec")
    with pytest.raises(UnsupportedStrategy, match="still needed"):
        builder.free(ENCODED)
    builder.free(FIRST)
    builder.decode(FIRST, stream="codec")
    with pytest.raises(UnsupportedStrategy, match="no encoded form"):
        builder.free(FIRST)


def test_what_was_written_since_cannot_be_decoded(toy: TaskGraph) -> None:
    in_place = replace(toy.tasks[1], reads=(FIRST,), writes=(FIRST,), creates=())
    builder = ScheduleBuilder("test", replace(toy, tasks=(toy.tasks[0], in_place, toy.tasks[2])), budget_bytes=None)
    builder.compute(toy.tasks[0])
    builder.encode(FIRST, ENCODED, vp_encoding(), stream="codec")
    builder.compute(in_place)
    assert not builder.is_encoded(FIRST)
    assert ENCODED in builder.dead_blocks()


ENCODE = Encode(FIRST, ENCODED, vp_encoding(), "codec")
DECODE = Decode(FIRST, ENCODED, vp_encoding(), "codec")


@pytest.mark.parametrize(
    ("program", "hazard"),
    [
        ((Compute(0), ENCODE), "is read on codec while task0"),
        ((ENCODE,), "read while it is not resident"),
        ((Compute(0), Wait("codec", 0), ENCODE, Free(FIRST)), "given back while the encode"),
        ((Compute(0), Wait("codec", 0), DECODE), "read while it is not resident"),
        (
            (Compute(0), Wait("codec", 0), ENCODE, Wait("compute", 2), Free(FIRST), replace(DECODE, codec=csr())),
            "no valid form",
        ),
        (
            (Compute(0), Wait("codec", 0), ENCODE, Wait("compute", 2), Free(FIRST), DECODE, Compute(1)),
            "is read on compute while the decode",
        ),
    ],
)
def test_validate_finds(toy: TaskGraph, program: tuple[Instruction, ...], hazard: str) -> None:
    with pytest.raises(InvalidSchedule, match=hazard):
        validate(Schedule("test", toy, program, 10**9))
