"""The training methods: one file is one row of the paper's tables. `qurate.registry` lists them."""

from __future__ import annotations

from qurate.config import MethodConfig
from qurate.methods.base import Compute, Method, Minimize
from qurate.networks.heads import Network
from qurate.registry import METHODS
from qurate.runtime.randomness import seeded, stream_seed


def build_method(config: MethodConfig, network: Network, *, seed: int) -> Method:
    """The method of a config around a network; the seed draws weights that a method adds."""
    with seeded(stream_seed(seed, 0)):  # not the numbers that the network was drawn from
        method: Method = METHODS.find(config.name).load()(network, config)
    return method


__all__ = ["METHODS", "Compute", "Method", "Minimize", "build_method"]
