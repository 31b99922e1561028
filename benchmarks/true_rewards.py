"""What true rewards are worth to the agent on Office-31: the same answers with and without them.

    python benchmarks/true_rewards.py --seeds 0,1,2,3,4

TML with selector dqn; 62 labels in two rounds. Both runs get the images that `density` asks about after the run that
has true rewards. Prints a row for each scenario and seed as it ends, and the means.
"""

from __future__ import annotations

from office_answers import ROUNDS, Asked, now, parse, print_rows

from qurate.benchmark.asking import learn

ARMS = {"with": True, "without": False}


def run(scenario: str, seed: int) -> list[float]:
    """Accuracy before, of both after each round, and the gain at the end."""
    asked = Asked.begin(scenario, "dqn", seed)
    stages = dict.fromkeys(ARMS, asked.first)
    row = [asked.accuracy(asked.first)]
    for _ in range(ROUNDS):
        new, labels = asked.ask(stages["with"])
        for name, true_rewards in ARMS.items():
            stages[name] = learn(asked.split, stages[name], asked.config, new, labels, now(), true_rewards=true_rewards)
            row.append(asked.accuracy(stages[name]))
    return [*row, row[-2] - row[-1]]


def main() -> None:
    seeds = parse(__doc__)
    print_rows(("before", "31 with", "31 without", "62 with", "62 without", "gain at 62"), run, seeds)


if __name__ == "__main__":
    main()
