"""Algorithm 1 with a custom selector and callback, on the digits pair. No download, about a minute.

Run it with `python examples/own_selector.py`.
"""

from __future__ import annotations

import argparse
from typing import Any

import qurate


class AgreeingSelector:
    """Trusts a pseudo-label if the classifier is confident and the class centres agree."""

    def select(self, round: qurate.Round) -> qurate.Positives:
        """Return all positives of this round, not only the new ones."""
        agrees = (round.classifier_prob > 0.8) & (round.center_prob > 0.5)
        return round.positives_at(agrees.nonzero().squeeze(1))


class Watcher(qurate.Callback):
    """Prints the accuracy on the hidden labels, which training never sees."""

    def __init__(self, split: qurate.Split) -> None:
        self.hidden = split.target_unlabeled

    def on_pretrained(self, method: qurate.Method) -> None:
        print(f"after pre-training: {qurate.evaluate(method, self.hidden).accuracy:.1%}")

    def on_round(self, record: Any, method: qurate.Method, positives: qurate.Positives) -> None:
        accuracy = qurate.evaluate(method, self.hidden).accuracy
        print(f"round {record.round}: {len(positives)} positives, {record.new} of them new, accuracy {accuracy:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="training steps before selection")
    options = parser.parse_args()

    split = qurate.digits_split(shots=3, seed=0)
    network = qurate.NetworkConfig(backbone="digits", bottleneck="normalized", features=64)
    config = qurate.make_config(
        "tml", "none", network=network, steps=options.steps, rounds=4, round_steps=max(1, options.steps // 4)
    )
    adaptation = qurate.fit(split, config, selector=AgreeingSelector(), callbacks=[Watcher(split)])
    print(f"Stopped because {adaptation.stopped}.")
    print(adaptation.positives.table(split.classes).head())


if __name__ == "__main__":
    main()
