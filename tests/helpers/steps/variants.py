"""Every strategy that trains, and some in other than their default options."""

from functools import cache

import pytest

from membench.core.graph.schedule import Schedule
from membench.steps.plan import plan
from membench.strategies.base import Strategy, strategies
from membench.strategies.by_module import ByModule
from membench.strategies.epmc import Epmc
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra
from membench.strategies.network_wide import NetworkWide
from tests.helpers.devices import DEVICE
from tests.helpers.networks.contract import COST, reference
from tests.helpers.steps.host_updates import HostUpdates

OPTIONS: dict[str, Strategy] = {
    "network_wide, shared gradients": NetworkWide(shared_gradients=True),
    "network_wide, gradient streams": NetworkWide(gradient_streams=True),
    "network_wide, shared gradients on streams": NetworkWide(gradient_streams=True, shared_gradients=True),
    "layrub_intra, gradient streams": LayrubIntra(gradient_streams=True),
    "epmc, fp8": Epmc(values="fp8"),
    "layrub_inter, fixed region": LayrubInter(fixed_region=True),
    "layrub_hybrid, fixed region": LayrubHybrid(fixed_region=True),
    "layrub_inter, Algorithm 1": LayrubInter(only_needed=False),
    "layrub_hybrid, Algorithm 1, fixed region": LayrubHybrid(fixed_region=True, only_needed=False),
    "updates on the host": HostUpdates(),
    "by_module, all offloaded": ByModule(offload=["*"]),
    "by_module, all recomputed": ByModule(offload=["*"], recompute=["*"]),
}
VARIANTS = {name: strategy() for name, strategy in strategies().items()} | OPTIONS

DISTINCT = (
    *("eager", "pytorch", "network_wide", "network_wide, shared gradients on streams", "layrub_hybrid"),
    *("layrub_intra, gradient streams", "vdnn_dyn", "superneurons", "rotor", "joint", "modnn", "gist"),
    *("epmc", "epmc, fp8", "ratel", "zero_infinity", "zero_offload", "updates on the host"),
)
"""One for each kind of instructions and memory."""

COMBINED = {name: each for name, each in VARIANTS.items() if DEVICE.type == "cpu" or name in DISTINCT}
"""Those tested in combination with what `test_strategies` leaves out.

On an accelerator it is the backend that differs, not the
plans, which take the time."""

COMBINED_STRATEGIES = [name for name in strategies() if name in COMBINED]


def marks_of(variant: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a variant's test: slow where another one has the same kinds of instructions and memory."""
    return () if variant in DISTINCT else (pytest.mark.slow,)


EACH_VARIANT = [pytest.param(name, marks=marks_of(name)) for name in VARIANTS]
EACH_COMBINED = [pytest.param(name, marks=marks_of(name)) for name in COMBINED]
EACH_COMBINED_STRATEGY = [pytest.param(name, marks=marks_of(name)) for name in COMBINED_STRATEGIES]

ONE_AFTER_ANOTHER = [each for each in EACH_COMBINED if not VARIANTS[each.values[0]].layer_by_layer]
"""Variants whose micro-batches draw random numbers in the order of the program; others refuse to."""
STRATEGIES_ONE_AFTER_ANOTHER = [each for each in ONE_AFTER_ANOTHER if each.values[0] in COMBINED_STRATEGIES]


@cache
def planned(network: str, variant: str) -> Schedule:
    """Return the schedule of a network without a budget, which several tests need and is the same in all."""
    return plan(reference(network).captured.graph, VARIANTS[variant], COST, None)
