"""A process in which torch chooses the attention of cases, for each card; see `choices_of_torch`."""

import ctypes
import json
import sys
import warnings

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import SDPBackend
from torch.utils._mode_utils import no_dispatch

from tests.helpers.cuda_runtime import Case, Layout, set_switches

_FAKE = FakeTensorMode()
_NAMES = {each.value: name for name, each in SDPBackend.__members__.items()}


def on_card(layout: Layout, card: int) -> Tensor:
    """Return a tensor without data that is on a card."""
    meta = layout.meta().detach()
    return FakeTensor(_FAKE, meta, torch.device("cuda", card)).requires_grad_(layout.requires_grad)


def choice(case: Case, card: int) -> str:
    set_switches(case.switches)
    tensors = [on_card(each, card) for each in (case.query, case.key, case.value)]
    mask = None if case.mask is None else on_card(case.mask, card)
    try:
        with no_dispatch():
            chosen = torch._fused_sdp_choice(*tensors, mask, case.dropout, case.is_causal, enable_gqa=case.is_grouped)
    except RuntimeError as error:
        if "No available kernel" in str(error) or "Invalid backend" in str(error):
            return "ERROR"
        raise
    return _NAMES[chosen]


def read(case: dict) -> Case:
    layouts = {
        name: case[name] and Layout(**{**case[name], "shape": tuple(case[name]["shape"])})
        for name in ("query", "key", "value", "mask")
    }
    return Case(**{**case, **layouts})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    runtime = ctypes.CDLL(sys.argv[1])
    cases = [read(each) for each in json.load(sys.stdin)]
    answers = []
    for number in range(torch.cuda.device_count()):
        runtime.choose_card(number)
        answers.append([choice(case, number) for case in cases])
    print(json.dumps(answers))
