"""Cost of one action of Algorithm 1 (lines 6-15) against a straightforward implementation, as ratios of one run.

Both sides take the same actions on the same random embeddings with the same batches; their rewards and states are
compared number by number. The straightforward side is benchmarks/straightforward.py.

    python benchmarks/action.py --size office31
    python benchmarks/action.py --size domainnet --preset paper --actions 2
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from straightforward import Straightforward
from torch import Tensor, nn

from qurate.config import Bottleneck, DQNConfig, NetworkConfig, RunConfig
from qurate.data.batches import TrainingData, stream_batches
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.presets import PRESETS, Preset, make_config
from qurate.runtime.compute import torch_threads
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.callbacks import Callback
from qurate.selection.dqn import DQNSelector
from qurate.selection.environment import Observation, SelectionEnv
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors, pseudo_label
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.reward import ClassSums
from qurate.selection.selectors import build_selector
from qurate.training import start

SEED = 0


@dataclass(frozen=True)
class Size:
    """How much data, as random embeddings."""

    source: int
    unlabeled: int
    width: int
    classes: int
    shots: int = 3


SIZES = {
    "office31": Size(source=795, unlabeled=2724, width=1280, classes=31),
    "domainnet": Size(source=70_000, unlabeled=18_000, width=512, classes=126),
}


def random_split(size: Size) -> Split:
    """Gaussian classes, the target shifted; its labels are not known to anybody."""
    rng = torch.Generator().manual_seed(SEED)
    means = torch.randn(size.classes, size.width, generator=rng)
    shift = torch.randn(size.width, generator=rng)

    def draw(count: int, moved: bool) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % size.classes
        return means[labels] + 3 * torch.randn(count, size.width, generator=rng) + shift * moved, labels

    names = tuple(f"class {i}" for i in range(size.classes))
    labeled = draw(size.shots * size.classes, True)
    return Split(names, Labeled(*draw(size.source, False)), Labeled(*labeled), Unlabeled(draw(size.unlabeled, True)[0]))


def small_config(
    preset: Preset, candidates: int | None = None, bottleneck: Bottleneck | None = None, threads: int = 0
) -> RunConfig:
    """A preset after a short pre-training, with another number of candidates if one is given.

    Labels are those of the network alone, and neighbours have their full weight, as in `straightforward`: what is timed
    is an action, and decisions 57 and 58 are made once a round.
    """
    network = NetworkConfig(bottleneck=bottleneck or ("normalized" if preset == "qurate" else "linear"))
    config = make_config("TML_DQNPL", preset=preset, network=network, steps=200, seed=SEED)
    chosen = config.selection
    plain = replace(chosen, labeler="network", reward=replace(chosen.reward, neighbor_trust="full"))
    config = replace(config, selection=plain, execution=replace(config.execution, threads=threads))
    return config if candidates is None else with_episode(config, candidates=candidates)


def agent_of(config: RunConfig) -> DQNConfig:
    """The agent's part of a run."""
    chosen = config.selection.selector
    assert isinstance(chosen, DQNConfig)
    return chosen


def with_episode(config: RunConfig, **changes: int) -> RunConfig:
    """The run with these numbers of its episodes changed."""
    agent = agent_of(config)
    selector = replace(agent, episode=replace(agent.episode, **changes))  # type: ignore[arg-type]  # all are integers
    return replace(config, selection=replace(config.selection, selector=selector))


def make_selector(round: Round, config: RunConfig) -> DQNSelector:
    """The agent of a run."""
    selector = build_selector(config, round.trainer.method.network, len(round.data.unlabeled), Callback())
    assert isinstance(selector, DQNSelector)
    return selector


def prepare(split: Split, config: RunConfig) -> Round:
    """Lines 1-5, shortened: what both sides start from."""
    data = TrainingData.of(split)
    trainer = start(split, config)
    trainer.run(data, steps=config.training.steps, seed=SEED)
    neighbors = None
    if config.selection.reward.center == "neighbors":
        neighbors = find_neighbors(trainer.method.network, data, config.selection.reward.neighbors)
    round = pseudo_label(trainer, data, Positives.none(), 0, config, neighbors)
    _ = round.threshold  # once a round, and so before the first action on both sides
    return round


@dataclass
class Ours:
    """What the package did: actions by episode, states, rewards, and seconds by line."""

    episodes: list[list[int]]
    states: list[Tensor]
    rewards: list[float]
    seconds: dict[str, float]


class TimedEnv(SelectionEnv):
    """The environment with a clock at each of its lines; `seconds` is where the time is added up."""

    seconds: dict[str, float]

    @contextmanager
    def timed(self, line: str) -> Iterator[None]:
        """Add the time of the block to a line."""
        began = time.perf_counter()
        yield
        self.seconds[line] += time.perf_counter() - began

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Lines 6-7."""
        with self.timed("6-7"):
            return super().reset(seed=seed, options=options)

    def _move(self, before: tuple[Positives, ClassSums], index: Tensor) -> None:
        with self.timed("10"):
            super()._move(before, index)

    def _train_trial(self) -> None:
        with self.timed("11"):
            super()._train_trial()

    def _next_state(self) -> Observation:
        with self.timed("12"):
            return super()._next_state()

    def _judge(self, index: Tensor) -> Positives:
        with self.timed("13"):
            return super()._judge(index)


def run_ours(round: Round, config: RunConfig, selector: DQNSelector, actions: int) -> Ours:
    """Lines 6-18 as `DQNSelector.select` does them, with a clock at each line."""
    done = Ours([], [], [], defaultdict(float))
    env = TimedEnv(round, agent_of(config).episode, seed=SEED)
    env.seconds = done.seconds
    positives, left = round.positives, actions
    with torch_threads(1):
        while left > 0:
            observation, info = env.reset(options={"positives": positives})
            done.episodes.append([])
            done.states.append(torch.from_numpy(observation.copy()))
            left -= run_episode(env, observation, info["action_mask"], selector.agent, left, done)
            positives = env.positives
    return done


def run_episode(
    env: TimedEnv, observation: Observation, mask: NDArray[np.int8], agent: DeepQAgent, left: int, done: Ours
) -> int:
    """Lines 8-18; how many actions it took."""
    for number in range(left):
        with env.timed("9"):
            action = agent.act(observation, mask, exploration=1.0)
        following, gain, terminated, _, info = env.step(np.int64(action))
        ends = terminated or gain < 0
        with env.timed("14"):
            last = ends or number + 1 == left
            agent.remember(observation, action, gain, following, info["action_mask"], terminated=ends, last=last)
        with env.timed("15"):
            agent.learn()
        observation, mask = following, info["action_mask"]
        done.episodes[-1].append(action)
        done.states.append(torch.from_numpy(following.copy()))
        done.rewards.append(gain)
        if ends:
            return number + 1
    return left


def run_straightforward(
    round: Round, config: RunConfig, q_network: nn.Sequential, ours: Ours
) -> tuple[Straightforward, list[Tensor], list[float]]:
    """The same episodes and actions again."""
    side = Straightforward(round, config, SEED, q_network)
    states, rewards, positives = [], [], round.positives
    for actions in ours.episodes:
        states.append(side.reset(positives))
        for action in actions:
            state, reward = side.step(action)
            states.append(state)
            rewards.append(reward)
        indices = torch.tensor(side.indices)
        positives = round.positives_at(indices)
    return side, states, rewards


def epoch_steps(round: Round, config: RunConfig) -> int:
    """Steps of the trial network per action."""
    return agent_of(config).episode.trial_steps or -(-len(round.data.source) // config.training.batch_source)


def epoch_arithmetic(round: Round, config: RunConfig) -> float:
    """Seconds of a trial epoch's own arithmetic: forward, backward and update of one batch, times its steps.

    The same batch over and over: its rows are near at hand, so that looking them up costs next to nothing.
    """
    env = SelectionEnv(round, agent_of(config).episode, seed=SEED)
    env.reset()
    trial, training = env.trial, config.training
    steps = epoch_steps(round, config)
    batch = next(stream_batches(round.data, training, steps=1, seed=SEED, labeled_only=True))
    source, target = Labeled(batch.source, batch.source_labels), Labeled(batch.target, batch.target_labels)
    data = TrainingData(source, target, round.data.unlabeled)
    trial.run(data, steps=5, seed=SEED, labeled_only=True)
    repeats = max(steps, 20)
    began = time.perf_counter()
    trial.run(data, steps=repeats, seed=SEED, labeled_only=True)
    return (time.perf_counter() - began) / repeats * steps


def products_alone(round: Round, config: RunConfig, steps: int) -> float:
    """Seconds of the matrix products of a trial epoch, on one thread: what no way of taking its steps can go below."""
    network, training = round.trainer.method.network, config.training
    rows, d, k, width = (
        training.batch_source + training.batch_target,
        network.n_features,
        network.n_classes,
        network.width,
    )
    shapes = [(rows, d, k), (k, rows, d)]  # cosines, gradient of the classes
    if config.network.bottleneck != "none":
        shapes += [(rows, width, d), (rows, k, d), (d, rows, width)]  # features, their gradient, that of the layer
    pairs = [(torch.randn(m, inner), torch.randn(inner, n), torch.empty(m, n)) for m, inner, n in shapes]
    with torch_threads(1):
        for left, right, product in pairs:
            torch.mm(left, right, out=product)
        began = time.perf_counter()
        for _ in range(300):
            for left, right, product in pairs:
                torch.mm(left, right, out=product)
    return (time.perf_counter() - began) / 300 * steps


def compare(size: Size, config: RunConfig, actions: int) -> str:
    """Both sides, compared; a row of the table."""
    round = prepare(random_split(size), config)
    selector = make_selector(round, config)
    run_ours(round, config, selector, 2)  # the first of everything is slower
    before = epoch_arithmetic(round, config)
    ours = run_ours(round, config, selector, actions)
    arithmetic = (before + epoch_arithmetic(round, config)) / 2
    products = products_alone(round, config, epoch_steps(round, config))
    layers = selector.agent.network.layers
    assert isinstance(layers, nn.Sequential)
    side, states, rewards = run_straightforward(round, config, layers, ours)
    if ours.rewards != rewards:
        sys.exit(f"The rewards differ: {ours.rewards} and {rewards}.")
    apart = max(float((a - b).abs().max()) for a, b in zip(ours.states, states, strict=True))
    total, plain = sum(ours.seconds.values()) / actions, sum(side.seconds.values()) / actions
    for name, seconds in (("qurate", ours.seconds), ("straightforward", side.seconds)):
        lines = ", ".join(f"{line}: {1000 * value / actions:.1f}" for line, value in seconds.items())
        print(f"  {name}, ms per action by line of Algorithm 1: {lines}")
    print(f"  of line 11 the matrix products alone, on one thread: {1000 * products:.1f} ms")
    return (
        f"{1000 * total:.0f} ms | {1000 * plain:.0f} ms | {plain / total:.1f} | {apart:.0e} "
        f"| {1 - arithmetic / total:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="office31")
    parser.add_argument("--preset", choices=PRESETS, default="qurate")
    parser.add_argument("--candidates", type=int, help="N_c; the preset's unless given")
    parser.add_argument("--bottleneck", choices=get_args(Bottleneck), help="normalized (qurate) or linear (paper)")
    parser.add_argument("--threads", type=int, default=0, help="of our trial steps; 0 chooses (1)")
    parser.add_argument("--actions", type=int, default=8)
    arguments = parser.parse_args()
    keep_freed_memory()
    config = small_config(arguments.preset, arguments.candidates, arguments.bottleneck, arguments.threads)
    row = compare(SIZES[arguments.size], config, arguments.actions)
    columns = ("size, preset, bottleneck", "per action", "straightforward", "ratio", "states apart by")
    print(f"| {' | '.join(columns)} | not the epoch's arithmetic |")
    print("|---|---|---|---|---|---|")
    print(f"| {arguments.size}, {arguments.preset}, {config.network.bottleneck} | {row} |")


if __name__ == "__main__":
    main()
