"""Peak memory of a DomainNet-size run of three rounds, against what was printed before it began.

Random embeddings: 70,000 source, 18,000 unlabelled, d = 512, K = 126, N_c = 100. The trial epochs are cut to 20 steps:
a step's memory does not depend on how many there are.

    python benchmarks/memory.py --preset paper
    python benchmarks/memory.py --preset qurate
"""

from __future__ import annotations

import argparse
import resource
from dataclasses import replace

from action import SIZES, random_split, small_config, with_episode

from qurate.methods import Method
from qurate.presets import PRESETS
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.pseudo_labels import Positives


class Peak(Callback):
    """Prints and keeps what a run says of its memory before it begins."""

    said = 0

    def on_memory(self, peak: int) -> None:
        """In bytes."""
        self.said = peak
        print(f"expected peak: {peak / 1e9:.2f} GB", flush=True)

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """How far it is."""
        print(f"round {record.round}: {record.positives} positives", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="paper")
    parser.add_argument("--actions", type=int, default=100)
    arguments = parser.parse_args()
    config = with_episode(small_config(arguments.preset, 100), actions=arguments.actions, trial_steps=20)
    config = replace(config, selection=replace(config.selection, rounds=3, round_steps=20))
    peak = Peak()
    keep_freed_memory()  # as the command line does
    fit(random_split(SIZES["domainnet"]), config, callbacks=[peak])
    measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    difference = peak.said / measured - 1
    print(f"measured peak: {measured / 1e9:.2f} GB; said before: {peak.said / 1e9:.2f} GB ({difference:+.0%})")


if __name__ == "__main__":
    main()
