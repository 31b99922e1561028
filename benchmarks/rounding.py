"""How far rounding carries: the digits pair in float32 by one process, two and three, and with weights moved by 1e-6.

    python benchmarks/rounding.py

TML with the small CNN, 40 steps, seed 0. The first losses are the same in all of them; what becomes of a difference in
the last digit by the end is what a small change of the first weights of one process shows.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from qurate.config import NetworkConfig
from qurate.data.digits import digits_split
from qurate.distributed import shutdown
from qurate.evaluation import evaluate
from qurate.methods import Method
from qurate.presets import make_config
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback


class Moved(Callback):
    """Moves the first weights, each layer's by a millionth of their mean size, and keeps the losses."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.losses: list[float] = []

    @torch.no_grad()
    def on_start(self, method: Method) -> None:
        """Before the first step."""
        if self.seed is None:
            return
        rng = generator(self.seed)
        for weights in method.parameters():
            weights.add_(1e-6 * weights.abs().mean() * torch.randn(weights.shape, generator=rng))

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """One loss more."""
        self.losses.append(terms["loss"])


def main() -> None:
    split = digits_split(shots=3, seed=0)
    config = make_config("tml", "none", network=NetworkConfig("digits", bottleneck="normalized", features=64), steps=40)
    for devices, seed in ((1, None), (2, None), (3, None), (1, 0), (1, 1), (1, 2), (1, 3)):
        heard = Moved(seed)
        training = replace(config.training, device="cpu", devices=devices)
        done = fit(split, replace(config, training=training), callbacks=[heard])
        accuracy = evaluate(done.method, split.target_unlabeled).accuracy
        name = f"{devices} processes" if seed is None else f"1 process, weights moved, draw {seed}"
        print(
            f"{name}: first losses {', '.join(f'{loss:.4f}' for loss in heard.losses[:3])}; {accuracy:.1%}", flush=True
        )
    shutdown()


if __name__ == "__main__":
    main()
