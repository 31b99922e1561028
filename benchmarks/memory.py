"""Peak memory of a DomainNet-size run of three rounds, against what was printed before it began.

Random embeddings: 70,000 source, 18,000 unlabelled, d = 512, K = 126, N_c = 100. The trial epochs are cut to 20 steps:
a step's memory does not depend on how many there are.

    python benchmarks/memory.py --preset paper
    python benchmarks/memory.py --preset qurate
"""

from __future__ import annotations

import argparse
import re
import resource
from dataclasses import replace

from action import SIZES, make_config, random_split

from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import Event, adapt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("qurate", "paper"), default="paper")
    parser.add_argument("--actions", type=int, default=100)
    arguments = parser.parse_args()
    keep_freed_memory()  # as the command line does
    config = make_config(arguments.preset, 100)
    episode = replace(config.selection.episode, actions=arguments.actions, trial_steps=20)
    selection = replace(config.selection, rounds=3, round_steps=20, episode=episode)
    split = random_split(SIZES["domainnet"])
    said: list[str] = []

    def on_event(event: Event) -> None:
        if event.what == "memory":
            said.extend(event.data["lines"])
            print("\n".join(said), flush=True)
        elif event.line == 20:
            print(f"round {event.data['round']}: {event.data['positives']} positives", flush=True)

    adapt(split, replace(config, selection=selection), on_event=on_event)
    match = re.search(r"peak: about ([\d.]+) (GB|MB)", said[-1])
    assert match is not None, said[-1]
    expected = float(match[1]) * {"GB": 1.0, "MB": 1e-3}[match[2]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"measured peak: {peak:.2f} GB; said before: {expected:.2f} GB ({expected / peak - 1:+.0%})")


if __name__ == "__main__":
    main()
