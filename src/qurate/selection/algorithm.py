"""Algorithm 1: selective pseudo-labelling by deep Q-learning, line by line.

`adapt` holds lines 1-5 and 20, `DQNSelector.select` lines 6-19. The comments number the lines of the paper.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from qurate.config import RunConfig, SelectionConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Split
from qurate.methods import Method
from qurate.runtime.machine import reused_buffers, torch_threads
from qurate.runtime.randomness import generator
from qurate.selection.checkpoint import Checkpoint, RoundRecord, below, keep, restore
from qurate.selection.episode import SelectionEnv, observation_shape, relations_of_all
from qurate.selection.pseudo_labels import Positives, Round, nearest_neighbors, view
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.memory import expected_peak, memory_cost
from qurate.selection.q_learning.networks import QNetworkKind
from qurate.selection.q_learning.pool import pool_slots
from qurate.selection.refresh import on_embeddings, trains_backbone
from qurate.selection.selectors import (
    BalancedSelector,
    ConfidenceSelector,
    NoneSelector,
    QualitySelector,
    RandomSelector,
    Selector,
    harvest,
    share_now,
)
from qurate.training import OnStep, Trainer, start

RULES: dict[str, Callable[[SelectionConfig], Selector]] = {
    "none": NoneSelector,
    "confidence": ConfidenceSelector,
    "quality": QualitySelector,
    "balanced": BalancedSelector,
    "random": RandomSelector,
}
"""Selectors that are a rule; 'dqn' is the agent below."""

SELECTORS = (*RULES, "dqn")


@dataclass(frozen=True)
class Event:
    """A line of Algorithm 1 was carried out.

    Args:
        line: Its number in the paper.
        what: The line in a few words.
        data: What came of it.
    """

    line: int
    what: str
    data: dict[str, Any]


OnEvent = Callable[[Event], None]


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What `adapt` gives back.

    Args:
        method: The trained F and C.
        positives: D_p at the end, each with why it was trusted.
        stopped: Why the rounds ended.
        rounds: One record a round.
    """

    method: Method
    positives: Positives
    stopped: str
    rounds: tuple[RoundRecord, ...]


@reused_buffers()
def adapt(
    split: Split,
    config: RunConfig,
    *,
    selector: Selector | None = None,
    on_event: OnEvent | None = None,
    on_step: OnStep | None = None,
    checkpoint: Checkpoint | None = None,
    pretrained: Mapping[str, Tensor] | None = None,
) -> Adaptation:
    """Algorithm 1 with any method and any selector.

    Args:
        split: D_s, D_t, D_u; sealed labels and validation are not touched.
        config: Network, method, training, selection, seed.
        selector: One of your own in place of `config.selection.selector`.
        on_event: Called after each line.
        on_step: Called after each training step of lines 1 and 20.
        checkpoint: Keeps progress after line 1 and after each round; a run goes on from what it holds.
        pretrained: State of the trainer after line 1 of a run that differs in selection alone; saves training it again.
    """
    tell = _teller(on_event)
    chosen = config.selection
    data = TrainingData.of(split)
    trainer = start(split, config)
    if selector is None:
        selector = build_selector(chosen, trainer, data, config.seed, on_event)
    tell(0, "build F and C", trainer=trainer)
    progress = None if checkpoint is None else checkpoint.load()
    if progress is None:
        # 1: pre-train F and C with D_s, D_t and D_u
        if pretrained is None:
            terms = trainer.run(data, steps=config.training.steps, seed=config.seed, on_step=on_step)
            tell(1, "pre-train F and C", terms=terms)
        else:
            trainer.load_state_dict(pretrained)
        # 2: D_p is empty
        positives = Positives.none()
        tell(2, "D_p is empty")
        # 3: the experience pool M is empty; it is the agent's
        tell(3, "the pool is empty")
        neighbors = None
        if chosen.reward.center == "neighbors" and not isinstance(selector, NoneSelector):
            neighbors = nearest_neighbors(trainer.method, data.target.inputs, data.unlabeled, chosen.reward.neighbors)
        records: list[RoundRecord] = []
        unchanged = 0
        keep(checkpoint, trainer, selector, positives, neighbors, records, unchanged)
    else:
        restore(progress, trainer, selector)
        positives, neighbors = progress.positives, progress.neighbors
        records, unchanged = list(progress.rounds), progress.unchanged
    if isinstance(selector, NoneSelector):
        return Adaptation(trainer.method, positives, "no selector: the base model is the result", ())
    # 4: while not converged
    while len(records) < chosen.rounds and unchanged < chosen.patience:
        began, number = time.perf_counter(), len(records)
        # 5: pseudo-labels of D_u by the current F and C
        round = pseudo_label(trainer, data, positives, number, config, neighbors)
        tell(5, "pseudo-label D_u", round=number)
        # 6-19: which of them to trust
        previous, positives = round.positives, selector.select(round)
        # 20: update F and C with D_s, D_t, D_u and D_p
        terms = trainer.run(
            data.with_positives(positives.indices, positives.labels),
            steps=chosen.round_steps,
            seed=_stream_seed(config.seed, 20, number),
            on_step=on_step,
        )
        new = len(positives.pairs() - previous.pairs())
        records.append(RoundRecord(number, len(positives), new, time.perf_counter() - began))
        tell(20, "update F and C", round=number, positives=len(positives), new=new, terms=terms, chosen=positives)
        unchanged = unchanged + 1 if positives.same_as(previous) else 0
        keep(checkpoint, trainer, selector, positives, neighbors, records, unchanged)
    stopped = f"the budget of {chosen.rounds} rounds is used up"
    if unchanged >= chosen.patience:
        stopped = f"D_p did not change for {chosen.patience} rounds"
    return Adaptation(trainer.method, positives, stopped, tuple(records))


def pseudo_label(
    trainer: Trainer,
    data: TrainingData,
    positives: Positives,
    number: int,
    config: RunConfig,
    neighbors: Tensor | None,
) -> Round:
    """Line 5: label D_u by F and C, and gather what selectors need."""
    chosen = config.selection
    if chosen.selector == "dqn" and chosen.episode.trial_layers == "head" and trains_backbone(trainer.method):
        trainer, data = on_embeddings(trainer, data, chosen.episode, generator(config.seed, 11, number))
    unlabeled = view(trainer.method, data.unlabeled)
    labels = unlabeled.probabilities.argmax(dim=1)
    return Round(
        number=number,
        progress=number / max(1, config.selection.rounds - 1),
        trainer=trainer,
        data=data,
        target=view(trainer.method, data.target.inputs),
        unlabeled=unlabeled,
        pseudo_labels=labels,
        positives=positives.relabeled(labels) if config.selection.relabel_positives else positives,
        neighbors=neighbors,
        config=config.selection.reward,
        rng=generator(config.seed, 5, number),
    )


class DQNSelector:
    """A deep Q-network chooses: lines 6-19. The paper's TML_DQNPL with method 'tml'.

    Args:
        config: Episodes, reward, Q-learning.
        n_unlabeled: Samples in D_u.
        n_features: d.
        n_classes: K.
        seed: Decides candidates, exploration, Q's weights and batches.
        on_event: Called after each line.

    Raises:
        OversizeStateError: If state, network and pool do not fit in memory.
    """

    def __init__(
        self,
        config: SelectionConfig,
        *,
        n_unlabeled: int,
        n_features: int,
        n_classes: int,
        seed: int,
        on_event: OnEvent | None = None,
    ) -> None:
        self.config = config
        self.seed = seed
        self._tell = _teller(on_event)
        shape = observation_shape(config.episode, n_unlabeled, n_features, n_classes)
        n_actions = min(config.episode.candidates, n_unlabeled)
        kind: QNetworkKind = "shared" if config.episode.agent == "relational" else "flat"
        learning = _with_pool_for_the_run(config, shape, n_actions).q_learning
        cost = memory_cost(shape, n_actions, learning, kind)
        peak = expected_peak(cost, n_unlabeled, n_features + n_classes)
        self._tell(0, "memory", lines=[*cost.lines(), peak])
        self.agent = DeepQAgent(kind, shape, n_actions, learning, seed)

    def state_dict(self) -> dict[str, Tensor]:
        """The agent and its pool."""
        return self.agent.state_dict() | {f"pool.{name}": v for name, v in self.agent.pool.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict`."""
        self.agent.load_state_dict(state)
        self.agent.pool.load_state_dict(below("pool.", state))

    def select(self, round: Round) -> Positives:
        """Lines 6-19, then the harvest if the config asks for one."""
        config, agent, tell = self.config.episode, self.agent, self._tell
        positives, actions = round.positives, 0
        env = SelectionEnv(round, config, seed=_stream_seed(self.seed, 6, round.number), on_line=tell)
        with torch_threads(1):
            while actions < config.actions:
                # 6: copy F and C to F' and C'    7: draw D_c, build s_0
                env.limit = config.actions - actions
                observation, info = env.reset(options={"positives": positives})
                if not info["action_mask"].any():
                    break
                ended = False
                # 8: while D_c is not empty
                while not ended:
                    # 9: choose an action
                    action = agent.act(observation, info["action_mask"])
                    tell(9, "choose an action", action=action)
                    # 10: update D_c and D_p    11: train F', C'    12: next state    13: reward
                    following, gain, terminated, truncated, info = env.step(np.int64(action))
                    ended = terminated or truncated
                    # 14: insert the recording into M
                    agent.remember(
                        observation,
                        action,
                        gain,
                        following,
                        info["action_mask"],
                        terminated=terminated,
                        last=ended,
                    )
                    tell(14, "remember")
                    # 15: sample recordings from M, update Q
                    loss = agent.learn()
                    tell(15, "update Q", loss=loss)
                    observation, actions = following, actions + 1
                    # 16-18: a negative reward ends the episode
                    if gain < 0:
                        tell(17, "break")
                positives = env.positives
                if not config.repeat_episodes:
                    break
        if config.harvest:
            scores = agent.q_values(relations_of_all(round))
            harvested = harvest(round, scores, share_now(self.config, round.progress))
            positives = harvested.remembering(positives).remembering(round.positives)
            tell(19, "harvest", positives=len(positives))
        return positives


def total_steps(config: RunConfig) -> int:
    """Training steps of lines 1 and 20 if the budget of rounds is used up."""
    rounds = 0 if config.selection.selector == "none" else config.selection.rounds
    return config.training.steps + rounds * config.selection.round_steps


def build_selector(
    config: SelectionConfig, trainer: Trainer, data: TrainingData, seed: int, on_event: OnEvent | None = None
) -> Selector:
    """The selector of a config."""
    if config.selector in RULES:
        return RULES[config.selector](config)
    if config.selector != "dqn":
        raise ValueError(f"SelectionConfig.selector must be one of {', '.join(SELECTORS)}, got {config.selector!r}.")
    network = trainer.method.network
    return DQNSelector(
        config,
        n_unlabeled=len(data.unlabeled),
        n_features=network.n_features,
        n_classes=network.n_classes,
        seed=seed,
        on_event=on_event,
    )


def _with_pool_for_the_run(config: SelectionConfig, shape: tuple[int, ...], n_actions: int) -> SelectionConfig:
    """The pool no larger than all transitions of the run need."""
    _, slot = pool_slots(config.q_learning.pool_bytes, shape, n_actions)
    episode = config.episode
    of_a_round = 2 * episode.actions if episode.repeat_episodes else episode.actions + 1
    most = max(config.rounds * of_a_round, 2 * config.q_learning.batch_size) + 2
    pool = min(config.q_learning.pool_bytes, most * slot)
    return dataclasses.replace(config, q_learning=dataclasses.replace(config.q_learning, pool_bytes=pool))


def _stream_seed(seed: int, *stream: int) -> int:
    return generator(seed, *stream).initial_seed()


def _teller(on_event: OnEvent | None) -> Callable[..., None]:
    def tell(line: int, what: str, **data: Any) -> None:
        if on_event is not None:
            on_event(Event(line, what, data))

    return tell
