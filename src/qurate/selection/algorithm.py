"""Algorithm 1: selective pseudo-labelling by deep Q-learning, line by line; the researcher's door.

`begin` holds lines 1-3, `fit` lines 4, 5 and 20, `DQNSelector.select` lines 6-18. The comments number the lines of the
paper.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from torch import Tensor

from qurate.config import DQNConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Split
from qurate.distributed import init_process_group, run_in_group
from qurate.methods import Method
from qurate.registry import SELECTORS
from qurate.runtime.machine import torch_threads
from qurate.runtime.process_group import ProcessGroup, use_group
from qurate.runtime.randomness import stream_seed
from qurate.selection.agents import build_agent
from qurate.selection.answered import Previous, before_answers, shorten
from qurate.selection.callbacks import Action, Callback, Callbacks, RoundRecord
from qurate.selection.environment import SelectionEnv, relations_of_all
from qurate.selection.harvest import harvest
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors, pseudo_label
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.update import exploration_at
from qurate.selection.selectors import NamedSelector, NoneSelector, Selector, Sizes
from qurate.selection.session import (
    Checkpoint,
    Keeper,
    Progress,
    Task,
    Within,
    agree,
    check_fit,
    decide,
    restore,
    resumed,
)
from qurate.training import Trainer, start


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What `fit` gives back.

    Args:
        method: The trained F and C; `qurate.evaluate(method, part)` measures it.
        positives: D_p at the end, each with why it was trusted.
        stopped: Why the rounds ended.
        rounds: One record per round.
    """

    method: Method
    positives: Positives
    stopped: str
    rounds: tuple[RoundRecord, ...]


def fit(
    split: Split,
    config: RunConfig,
    *,
    selector: Selector | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    pretrained: Mapping[str, Tensor] | None = None,
    previous: Previous | None = None,
) -> Adaptation:
    """Algorithm 1 with any method and any selector.

    Args:
        split: D_s, D_t, D_u; sealed labels and validation are not touched.
        config: Network, method, training, selection, seed; see `qurate.make_config`.
        selector: One of your own in place of `config.selection.selector`.
        callbacks: Told how the run goes.
        checkpoint: Keeps progress after line 1 and after each round; a run resumes from what it holds.
        pretrained: State of the trainer after line 1 of a run that differs in selection alone; see `pretrain`.
        previous: A finished run that people answered questions about; see `answer`. This run then takes a third of the
            config's steps and actions.

    Example:
        >>> from qurate import NetworkConfig, digits_split, make_config
        >>> network = NetworkConfig("digits", bottleneck="normalized", features=64)
        >>> config = make_config("TML_SPL", network=network, steps=20, rounds=2, round_steps=5)
        >>> result = fit(digits_split(shots=3, seed=0), config)
        >>> result.stopped
        'the budget of 2 rounds is used up'
    """
    check_fit(split, config, selector, callbacks, checkpoint, pretrained, previous)
    config = config if previous is None else shorten(config)
    group = init_process_group(config.execution, follow_rank_zero)
    with run_in_group(group):
        task = Task(split, config, selector, tuple(callbacks), checkpoint, pretrained, previous)
        return _fit(task if group is None else agree(group, task))


def follow_rank_zero(group: ProcessGroup) -> Any:
    """Take part in the runs that rank 0 broadcasts, until it broadcasts something else.

    Returns:
        That other value.
    """
    while isinstance(task := group.broadcast(), Task):
        with run_in_group(group):
            _pretrain(task) if task.pretrains else _fit(task)
    return task


def _fit(task: Task) -> Adaptation:
    """`fit`, in every process that takes part in it."""
    split, config, selector, callbacks, checkpoint, pretrained, previous, _ = task
    chosen, tell = config.selection, Callbacks(callbacks)
    data, trainer = TrainingData.of(split), start(split, config)
    rewarding = previous if previous is not None and previous.true_rewards and previous.answered else None
    answers = 0 if rewarding is None else rewarding.answered
    selector = selector or build_selector(config, trainer, data, tell, answers=answers)
    tell.on_start(trainer.method)
    # 1-3, unless they were done before
    done, keeper = restore(checkpoint, trainer, selector), Keeper(checkpoint, config.execution, trainer, selector)
    if done is None or done.at(1):
        if done is None and rewarding is not None and isinstance(selector, DQNSelector):
            with use_group(None):  # rank 0 alone
                selector.learn_from_answers(*asked_about(split, config, rewarding))
        done = begin(trainer, data, config, selector, tell, keeper, pretrained, None if done is None else done.at(1))
        keeper.save(done)
    if isinstance(selector, NoneSelector):
        tell.on_waited(trainer.waited, trainer.seconds)
        return Adaptation(trainer.method, done.positives, "no selector: the base model is the result", ())
    # 4: while not converged
    while not done.converged(chosen):
        began, number = time.perf_counter(), done.next_round
        tell.on_round_start(number)
        if (within := done.at(20)) is None:
            # 5: pseudo-labels of D_u by the current F and C
            round = pseudo_label(trainer, data, done.positives, number, config, done.neighbors)
            # 6-18: which of them to trust
            done, positives = replace(done, positives=round.positives), decide(selector, round)
        else:  # the run was stopped in the middle of line 20
            assert within.chosen is not None
            positives = within.chosen
        # 20: update F and C with D_s, D_t, D_u and D_p
        with keeper.during(tell.on_step, done, 20, positives) as told:
            trainer.run(
                data.with_positives(positives.indices, positives.labels),
                steps=chosen.round_steps,
                seed=stream_seed(config.seed, 20, number),
                on_step=told,
                **resumed(within),
            )
        done = done.after(positives, done.positives, time.perf_counter() - began)
        tell.on_round(done.rounds[-1], trainer.method, positives)
        keeper.save(done)
    tell.on_waited(trainer.waited, trainer.seconds)
    return Adaptation(trainer.method, done.positives, done.why_stopped(chosen), done.rounds)


def begin(
    trainer: Trainer,
    data: TrainingData,
    config: RunConfig,
    selector: Selector,
    tell: Callback,
    keeper: Keeper,
    state: Mapping[str, Tensor] | None = None,
    within: Within | None = None,
) -> Progress:
    """Lines 1-3.

    Args:
        trainer: F and C, trained in place.
        data: D_s, D_t, D_u.
        config: The run.
        selector: Who will select.
        tell: Told of each step and of the end.
        keeper: Keeps where it is.
        state: Of a trainer after line 1, taken in place of training.
        within: Where in the middle of line 1 the run was stopped.
    """
    # 1: pre-train F and C with D_s, D_t and D_u
    if state is None:
        steps, seed = config.training.steps, stream_seed(config.seed, 1)
        with keeper.during(tell.on_step, Progress(Positives.none(), None), 1) as told:
            trainer.run(data, steps=steps, seed=seed, on_step=told, **resumed(within))
    else:
        trainer.load_state_dict(state)
    tell.on_pretrained(trainer.method)
    # 2: D_p is empty    3: the experience pool M is empty; it is the agent's
    neighbors = None if isinstance(selector, NoneSelector) else _neighbors(trainer, data, config)
    return Progress(Positives.none(), neighbors)


def asked_about(split: Split, config: RunConfig, previous: Previous) -> tuple[Round, Tensor]:
    """Pseudo-labels of the finished run for D_u as it was before the answers, and what is known of it (decision 52).

    Args:
        split: After the answers.
        config: The run.
        previous: The finished run.

    Returns:
        The round, and the class of each sample of its D_u, -1 where it is not known, (N_u,) int64.
    """
    trainer = start(split, config)
    trainer.load_weights(previous.weights)
    trainer.step = trainer.total_steps  # trials are trained at the rate that the finished run ended with
    former, truth = before_answers(TrainingData.of(split), previous.answered)
    positives = previous.positives.moved(previous.answered)
    neighbors = _neighbors(trainer, former, config)
    return pseudo_label(trainer, former, positives, 0, config, neighbors), truth


def _neighbors(trainer: Trainer, data: TrainingData, config: RunConfig) -> Tensor | None:
    if config.selection.reward.center != "neighbors":
        return None
    return find_neighbors(trainer.method.network, data, config.selection.reward.neighbors)


def pretrain(split: Split, config: RunConfig, callbacks: Sequence[Callback] = ()) -> dict[str, Tensor]:
    """Line 1 alone, which runs that differ in selection alone can share: `fit(..., pretrained=...)`.

    With the schedule 'progress' they must be of equal length too, for the rates of line 1 depend on it.

    Returns:
        The state of the trainer.
    """
    group = init_process_group(config.execution, follow_rank_zero)
    with run_in_group(group):
        task = Task(split, config, None, tuple(callbacks), None, None, None, pretrains=True)
        return _pretrain(task if group is None else agree(group, task))


def _pretrain(task: Task) -> dict[str, Tensor]:
    """`pretrain`, in every process that takes part in it."""
    split, config = task.split, task.config
    tell, trainer = Callbacks(task.callbacks), start(split, config)
    tell.on_start(trainer.method)
    seed = stream_seed(config.seed, 1)
    trainer.run(TrainingData.of(split), steps=config.training.steps, seed=seed, on_step=tell.on_step)
    return trainer.state_dict()


class DQNSelector(NamedSelector):
    """A deep Q-network chooses: lines 6-18. The paper's TML_DQNPL with method 'tml'.

    Args:
        config: Episodes, Q-learning, harvest.
        agent: Acts, remembers and learns.
        rounds: The budget, over which exploration falls.
        seed: Decides the candidates.
        tell: Told of each action.
    """

    Config = DQNConfig

    def __init__(self, config: DQNConfig, agent: DeepQAgent, rounds: int, seed: int, tell: Callback) -> None:
        self.config = config
        self.agent = agent
        self.rounds = rounds
        self.seed = seed
        self._tell = tell

    @classmethod
    def build(cls, config: RunConfig, sizes: Sizes, tell: Callback) -> Self:
        """With the agent of a run; see `build_agent`."""
        chosen = config.selection.selector
        assert isinstance(chosen, DQNConfig)
        return cls(chosen, build_agent(config, sizes, tell), config.selection.rounds, config.seed, tell)

    def select(self, round: Round) -> Positives:
        """Lines 6-18, then the harvest if the config asks for one."""
        env = SelectionEnv(round, self.config.episode, seed=stream_seed(self.seed, 6, round.number))
        episode, exploration = self.config.episode, self.exploration(round.number)
        positives = self._play(env, exploration, episode.actions, self._tell, repeat=episode.repeat_episodes)
        return positives if episode.harvest == "none" else self._harvest(round, positives)

    def learn_from_answers(self, round: Round, truth: Tensor) -> None:
        """Lines 6-18 over samples that people have labelled, with true rewards; D_p stays as it is (decision 52).

        As many actions as there are answers. Nobody is told of them: they are on a D_u that is no more.

        Args:
            round: Pseudo-labels of D_u as it was before the answers.
            truth: The class of each sample of D_u, -1 where it is not known, (N_u,) int64.
        """
        episode = replace(self.config.episode, candidates=self.agent.pool.n_actions)  # of the smaller D_u that is left
        env = SelectionEnv(round, episode, seed=stream_seed(self.seed, 6, round.number, 1), truth=truth)
        self._play(env, self.exploration(round.number), int((truth >= 0).sum()), Callback(), repeat=True)

    def _play(self, env: SelectionEnv, exploration: float, left: int, tell: Callback, *, repeat: bool) -> Positives:
        """Lines 6-18 with so many actions, in one episode or as many as that takes; D_p afterwards."""
        agent, round, positives = self.agent, env.round, env.round.positives
        with torch_threads(1):
            while left > 0:  # more than one episode per round is ours (decision 25)
                # 6: copy F and C to F' and C'    7: draw D_c, build s_0
                observation, info = env.reset(options={"positives": positives})
                mask = info["action_mask"]
                if not mask.any():
                    break
                # 8: while D_c is not empty
                while mask.any() and left > 0:
                    # 9: choose an action
                    action = agent.act(observation, mask, exploration=exploration)
                    # 10: update D_c and D_p    11: train F' and C'    12: next state    13: reward
                    following, reward, terminated, _, info = env.step(np.int64(action))
                    mask, left = info["action_mask"], left - 1
                    ends = terminated or reward < 0
                    # 14: insert the recording into M
                    agent.remember(
                        observation, action, reward, following, mask, terminated=ends, last=ends or left == 0
                    )
                    # 15: sample recordings from M, update Q
                    loss = agent.learn()
                    observation = following
                    tell.on_action(_action(round, info, reward, loss, exploration))
                    # 16-18: if the reward is negative, break
                    if reward < 0:
                        break
                positives = env.positives
                if not repeat:
                    break
        return positives

    def exploration(self, number: int) -> float:
        """Probability of a random action in a round: the first explores most, the last not at all (decision 33)."""
        progress = number / (self.rounds - 1) if self.rounds > 1 else 1.0
        return exploration_at(progress, self.config.q_learning)

    def state_dict(self) -> dict[str, Tensor]:
        """The agent and its pool."""
        return self.agent.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`."""
        self.agent.load_state_dict(state)

    def _harvest(self, round: Round, chosen: Positives) -> Positives:
        """D_p from scratch, by the agent's score of all of D_u; what the episodes chose is remembered (decision 24)."""
        scores = self.agent.q_values(relations_of_all(round))
        found = harvest(round, scores, self.config)
        return found.remembering(chosen).remembering(round.positives)


def build_selector(
    config: RunConfig, trainer: Trainer, data: TrainingData, tell: Callback, *, answers: int = 0
) -> Selector:
    """The selector of a config; an agent's pool has room for the rewards of as many answers."""
    network = trainer.method.network
    sizes = Sizes(len(data.unlabeled), network.n_features, network.n_classes, answers)
    kind: type[NamedSelector] = SELECTORS.find(config.selection.selector.name).load()
    return kind.build(config, sizes, tell)


def _action(round: Round, info: Mapping[str, float], reward: float, loss: float | None, exploration: float) -> Action:
    chosen = int(info["indices"]), int(info["labels"])
    return Action(round.number, *chosen, reward, info["phi"], info["entropy_drop"], loss, exploration)
