"""Layrub: layer-centric reuse and migration."""

from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra

__all__ = ["LayrubHybrid", "LayrubInter", "LayrubIntra"]
