"""Every strategy that trains, and some in other than their default options."""

from membench.strategies.base import Strategy, strategies
from membench.strategies.epmc import Epmc
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter
from membench.strategies.network_wide import NetworkWide

OPTIONS: dict[str, Strategy] = {
    "network_wide, shared gradients": NetworkWide(shared_gradients=True),
    "epmc, fp8": Epmc(values="fp8"),
    "layrub_inter, fixed region": LayrubInter(fixed_region=True),
    "layrub_hybrid, fixed region": LayrubHybrid(fixed_region=True),
}
VARIANTS = {name: strategy() for name, strategy in strategies().items()} | OPTIONS
