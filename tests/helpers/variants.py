"""Every strategy that trains, and some in other than their default options."""

from membench.strategies.base import Strategy, strategies
from membench.strategies.epmc import Epmc
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra
from membench.strategies.network_wide import NetworkWide
from tests.helpers.host_updates import HostUpdates

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
}
VARIANTS = {name: strategy() for name, strategy in strategies().items()} | OPTIONS
