"""What true rewards are worth to the agent on Office-31: the same answers with and without them.

    python benchmarks/true_rewards.py --seeds 0,1,2,3,4

TML with selector dqn; 62 labels in two rounds. Both runs get the images that `density` asks about after the run that
has true rewards. Prints a row for each scenario and seed as it ends, and the means.
"""

from __future__ import annotations

from statistics import mean

from office_answers import ROUNDS, SCENARIOS, Asked, now, parse

from qurate.benchmark.asking import go_on

ARMS = {"with": True, "without": False}


def run(scenario: str, seed: int) -> dict[str, list[float]]:
    """Accuracy of both after each round."""
    asked = Asked.begin(scenario, "dqn", seed)
    stages = dict.fromkeys(ARMS, asked.first)
    found: dict[str, list[float]] = {name: [asked.accuracy(asked.first)] for name in ARMS}
    for _ in range(ROUNDS):
        new, labels = asked.ask(stages["with"])
        for name, true_rewards in ARMS.items():
            stages[name] = go_on(asked.split, stages[name], asked.config, new, labels, now(), true_rewards=true_rewards)
            found[name].append(asked.accuracy(stages[name]))
    return found


def main() -> None:
    seeds = parse(__doc__)
    print("| | before | 31 with | 31 without | 62 with | 62 without | gain at 62 |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    for scenario in SCENARIOS:
        for seed in seeds:
            found = run(scenario, seed)
            rows.append([found["with"][0], *(found[name][i] for i in (1, 2) for name in ARMS)])
            print_row(f"{scenario} seed {seed}", rows[-1])
    print_row("mean", [mean(column) for column in zip(*rows, strict=True)])


def print_row(title: str, row: list[float]) -> None:
    cells = " | ".join(f"{value:.1f}" for value in row)
    print(f"| {title} | {cells} | {row[3] - row[4]:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
