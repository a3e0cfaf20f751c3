"""What torch.compile was told, as it can be read from what it returns."""

from typing import Any

import pytest
import torch
from torch import nn

from membench.core.libraries.torch_inductor import Compiler, changed_options, compiler_of


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Compiler("inductor", {}, False)),
        ({"dynamic": True}, Compiler("inductor", {}, True)),
        ({"dynamic": False}, Compiler("inductor", {}, False)),
        ({"mode": "default"}, Compiler("inductor", {}, False)),
        ({"mode": "reduce-overhead"}, Compiler("inductor", {"triton.cudagraphs": True}, False)),
        ({"options": {"epilogue_fusion": False}}, Compiler("inductor", {"epilogue_fusion": False}, False)),
        ({"backend": "eager"}, Compiler("eager", {}, False)),
        ({"backend": "aot_eager"}, Compiler("aot_eager", {}, False)),
    ],
    ids=str,
)
def test_what_a_module_was_compiled_with(options: dict[str, Any], expected: Compiler, fullgraph: bool) -> None:
    layer = nn.Linear(2, 2)
    layer.compile(fullgraph=fullgraph, **options)
    assert compiler_of(torch.compile(nn.Linear(2, 2), fullgraph=fullgraph, **options)) == expected
    assert compiler_of(layer) == expected
    assert compiler_of(torch.compile(torch.sin, fullgraph=fullgraph, **options)) == expected


def test_what_runs_as_it_is_has_no_compiler() -> None:
    by_inductor = torch.compile(nn.Linear(2, 2), fullgraph=True)
    assert compiler_of(nn.Linear(2, 2)) is None and compiler_of(None) is None and compiler_of(torch.sin) is None
    with torch.compiler.set_stance("force_eager"):
        assert compiler_of(by_inductor) is None


def test_options_that_the_program_has_changed_are_found_and_those_without_effect_are_not() -> None:
    import torch._functorch.config
    import torch._inductor.config

    assert changed_options() == {}
    with (
        torch._functorch.config.patch(activation_memory_budget=0.5),
        torch._inductor.config.patch(max_fusion_size=8, fx_graph_cache=False, verbose_progress=True),
    ):
        found = changed_options()
    assert found.pop("torch._inductor.config.max_fusion_size") == 8
    assert found == {"torch._functorch.config.activation_memory_budget": 0.5}
