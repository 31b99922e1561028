"""How far the drop in entropy (Eq. 7) moves phi against its threshold, on Office-31, W to A.

    python benchmarks/entropy_drop.py --preset paper

For each of the agent's actions lambda * Delta_e is a term of phi, which must exceed tau for a reward of +1.
"""

from __future__ import annotations

import argparse

import torch
from ablation import load

from qurate.config import DQNConfig, RunConfig
from qurate.presets import PRESETS, make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Action, Callback


class Drops(Callback):
    """Keeps the drop in entropy of each action, and whether the reward would be another without it."""

    def __init__(self, config: RunConfig) -> None:
        self.reward = config.selection.reward
        self.terms: list[float] = []
        self.turned = 0

    def on_action(self, action: Action) -> None:
        """Count it."""
        term = self.reward.entropy_drop_weight * action.entropy_drop
        self.terms.append(term)
        if self.reward.threshold == "fixed":
            self.turned += (action.phi - term > self.reward.tau) != (action.reward > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="paper")
    parser.add_argument("--rounds", type=int, help="the preset's unless given")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    config = make_config("TML_DQNPL", preset=arguments.preset, rounds=arguments.rounds, seed=arguments.seed)
    assert isinstance(config.selection.selector, DQNConfig)
    drops = Drops(config)
    fit(load(), config, callbacks=[drops])
    sizes, reward = torch.tensor(drops.terms).abs(), config.selection.reward
    fixed = f"tau = {reward.tau:.2f}, rewards that the term decided: {drops.turned}"
    print(
        f"preset {arguments.preset}, seed {arguments.seed}: {len(sizes)} actions, |lambda * Delta_e| at most "
        f"{sizes.max():.1e}, median {sizes.median():.1e}; "
        + (fixed if reward.threshold == "fixed" else "the threshold is the class median of phi")
    )


if __name__ == "__main__":
    main()
