"""The agent's numbers: its episodes and its learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from qurate.config.choices import AdaptiveShareConfig
from qurate.runtime.checked import Bytes, Checked, Count, Positive, Rate, Share, Size, StepsOrDefault, check


@dataclass(frozen=True)
class EpisodeConfig(Checked):
    """The selection problem as the agent meets it: candidates, trial network, state."""

    candidates: Positive = 100
    """N_c, candidates per episode. Our choice."""
    even_candidates: bool = False
    """Draw candidates evenly over pseudo-classes (decision 20). Paper: at random from D_u."""
    actions: Positive = 100
    """Most actions per round, over all its episodes. Our choice; no bound for an episode of fewer candidates."""
    repeat_episodes: bool = False
    """Start new episodes until `actions` are used up. Paper: one episode per round."""
    trial_steps: StepsOrDefault = 0
    """Steps of the trial network per action; 0 for one epoch over D_s (paper; decision 9)."""
    trial_layers: Literal["head", "all"] = "head"
    """Where the backbone is trained too, the trial network trains the layers after it, on embeddings of the current
    backbone that are made once per round, or all layers, which is what line 11 says (decision 27). Our choice."""
    entropy_samples: Count = 0
    """Samples of D_u that the drop in entropy is measured on, drawn per episode; 0 for all (paper; decision 36)."""
    state_network: Literal["trial", "frozen"] = "trial"
    """Who makes the states: the trial network after its epoch (paper, line 12), or the round's network (decision 8)."""
    state_features: Count = 0
    """Project the d features of the state to this many by a fixed random matrix; 0 keeps them (paper)."""
    agent: Literal["flat", "relational"] = "flat"
    """'flat': fully connected layers on the whole state (paper). 'relational': the same layers on each candidate's
    relations to the parts of the state (decision 21; our choice)."""
    keep_rejected: bool = True
    """Keep the sample that earned -1 in D_p (decision 5). Paper: yes."""
    harvest: Literal["none", "equal", "adaptive"] = "none"
    """After the episodes of a round, let the agent choose D_p again from all of D_u (decision 24; our choice): 'equal'
    counts per class, or 'adaptive', balanced as far as the predicted classes are of equal size. Paper: none, D_p is
    what the episodes chose."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Of older versions too, whose harvest took equal counts and was there or not."""
        if isinstance(data, Mapping) and isinstance(data.get("harvest"), bool):
            data = {**data, "harvest": "equal" if data["harvest"] else "none"}
        return super().from_dict(data)


@dataclass(frozen=True)
class QLearningConfig(Checked):
    """The Q-network, its updates, the exploration and the experience pool."""

    hidden: tuple[Size, ...] = (1024, 512)
    """Widths of the hidden layers. Paper: 1024 and 512."""
    output_relu: bool = False
    """A ReLU after the last layer too (decision 1). Our choice: no, since rewards include -1. Paper: yes."""
    discount: Share = 0.9
    """Weight gamma of the future in Eq. (9). Paper: 0.9."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """How Eq. (10) steps along its gradient. Our choice: 'adam'. Paper: plain gradient descent, 'sgd'."""
    learning_rate: Rate = 1e-3
    """Step size of Eq. (10), on the mean over the batch. Our choice."""
    largest_gradient: Rate = 1.0
    """Length that a gradient of 'sgd' is cut to: it grows with the state's length squared, and a state has up to a
    million numbers (decision 28). Our choice; paper: no bound."""
    batch_size: Size = 16
    """Transitions sampled for each update. Our choice."""
    target_update: Count = 0
    """Updates between copies into a target network that makes the max of Eq. (9) (decision 3); 0 is none.
    Paper: none."""
    exploration_start: Share = 1.0
    """Probability of a random action in the first round. Paper: 1 at first."""
    exploration_end: Share = 0.0
    """Probability of a random action in the last round of the budget, and in the only one; in between it falls
    linearly from round to round (decision 33). Paper: 0 at last."""
    pool_bytes: Bytes = 512 * 2**20
    """Upper bound of the experience pool. Our choice: 512 MiB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(self.hidden) > 0, "QLearningConfig.hidden", "one or more positive widths", self.hidden)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Of older versions too, which counted exploration in actions, by `exploration_steps`; now rounds say it."""
        if isinstance(data, Mapping):
            data = {key: value for key, value in data.items() if key != "exploration_steps"}
        return super().from_dict(data)


@dataclass(frozen=True)
class DQNConfig(AdaptiveShareConfig):
    """The agent: its episodes and its learning; the shares and how far to balance them are those of its harvest."""

    name: str = field(init=False, default="dqn")
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    q_learning: QLearningConfig = field(default_factory=QLearningConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.episode.agent == "relational" or self.episode.harvest == "none"
        allowed = "'relational' when harvest is on (a flat agent cannot score all of D_u)"
        check(fits, "EpisodeConfig.agent", allowed, self.episode.agent)
