"""The training methods: one file is one row of the paper's tables."""

from __future__ import annotations

from qurate.config import MethodConfig
from qurate.methods.adr import AdversarialDropout
from qurate.methods.base import Method, Minimize
from qurate.methods.cdan import ConditionalDomainAdversarial
from qurate.methods.cml import CompleteMargin
from qurate.methods.dann import DomainAdversarial
from qurate.methods.ent import EntropyMinimization
from qurate.methods.mme import MinimaxEntropy
from qurate.methods.source_target import SourceTarget
from qurate.methods.tml import TargetMargin
from qurate.networks.heads import Network
from qurate.runtime.randomness import seeded

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        SourceTarget,
        DomainAdversarial,
        AdversarialDropout,
        ConditionalDomainAdversarial,
        EntropyMinimization,
        MinimaxEntropy,
        TargetMargin,
        CompleteMargin,
    )
}
"""Every method by name, in the order of the paper's tables."""


def build_method(config: MethodConfig, network: Network, *, seed: int) -> Method:
    """The method of a config around a network; the seed draws weights that a method adds."""
    if config.name not in METHODS:
        raise ValueError(f"MethodConfig.name must be one of {', '.join(METHODS)}, got {config.name!r}.")
    with seeded(seed):
        return METHODS[config.name](network, config)


__all__ = ["METHODS", "Method", "Minimize", "build_method"]
