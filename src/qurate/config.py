"""What a run is: frozen dataclasses, every number marked "paper" or "our choice"."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

Bottleneck = Literal["none", "linear", "normalized"]


def _check(condition: bool, where: str, allowed: str, got: object) -> None:
    if not condition:
        raise ValueError(f"{where} must be {allowed}, got {got!r}.")


@dataclass(frozen=True)
class NetworkConfig:
    """The network: backbone and bottleneck (F), cosine classifier (C)."""

    backbone: str = "none"
    """'none' (inputs are embeddings), 'digits' (small CNN), 'timm/NAME.TAG', 'torchvision/vgg16' or
    'torchvision/resnet34'. Paper: ResNet-34 on DomainNet, VGG-16 on Office."""
    weights: str = "none"
    """'none' (random), 'pretrained' (download), 'offline' (of an installed package, for 'timm/tf_efficientnet_lite0'),
    or the path of a safetensors or state-dict file."""
    bottleneck: Bottleneck = "linear"
    """Layer before the classifier: 'linear' as in the MME reference code, 'normalized' (dropout, linear,
    batch norm, ReLU; our choice), or 'none' (VGG-16's own 4096-wide layer)."""
    features: int = 512
    """Width d of the bottleneck. Paper (by the MME reference code): 512."""
    dropout: float = 0.3
    """Dropout of the normalized bottleneck. Our choice."""
    scale: float = 30.0
    """Logit scale s of the cosine classifier. Paper: 30."""

    def __post_init__(self) -> None:
        _check(self.features > 0, "NetworkConfig.features", "positive", self.features)
        _check(0 <= self.dropout < 1, "NetworkConfig.dropout", "in [0, 1)", self.dropout)
        _check(self.scale > 0, "NetworkConfig.scale", "positive", self.scale)


@dataclass(frozen=True)
class MethodConfig:
    """The training method, one row of the paper's tables, and its numbers."""

    name: str = "tml"
    """One of the registry: source_target, dann, adr, cdan, ent, mme, tml, cml."""
    margin: float = 0.5
    """Angular margin m of TML and CML in radians. Paper: 0.5."""
    monotone: bool = True
    """Continue the margin logit monotonically past pi - margin (decision 11). Our choice; False is as printed."""
    entropy_weight: float = 0.1
    """Weight of the entropy term in ENT, MME, TML, CML. Paper: alpha = 0.1; MME reference: 0.1."""
    domain_weight: float = 0.1
    """Weight of the domain loss in DANN and CDAN. Our choice: at 1 the domain loss drowns three labels a class."""
    discriminator_width: int = 1024
    """Hidden width of the domain discriminator. CDAN's authors: 1024."""
    warmup_rate: float = 10.0
    """Rate of the reversal warm-up 2 / (1 + exp(-rate * progress)) - 1 in DANN and CDAN. DANN's authors: 10."""
    entropy_conditioning: bool = True
    """CDAN weighs samples by certainty (CDAN+E). CDAN's authors: on in their best variant."""
    random_map: int = 1024
    """Width of CDAN's randomised multilinear map, used when d * K exceeds 4096. CDAN's authors: 1024."""
    critic_dropout: float = 0.5
    """Dropout on the classifier's input in ADR's two passes. ADR's authors: 0.5."""
    critic_weight: float = 0.1
    """Weight of ADR's symmetric KL. Our choice."""
    feature_steps: int = 4
    """Feature updates per classifier update in ADR. ADR's authors: 4."""

    def __post_init__(self) -> None:
        _check(0 <= self.margin <= math.pi / 2, "MethodConfig.margin", "an angle in [0, pi / 2]", self.margin)
        for name in ("entropy_weight", "domain_weight", "critic_weight", "warmup_rate"):
            _check(getattr(self, name) >= 0, f"MethodConfig.{name}", "non-negative", getattr(self, name))
        _check(0 < self.critic_dropout < 1, "MethodConfig.critic_dropout", "in (0, 1)", self.critic_dropout)
        for name in ("discriminator_width", "random_map", "feature_steps"):
            _check(getattr(self, name) > 0, f"MethodConfig.{name}", "positive", getattr(self, name))


@dataclass(frozen=True)
class TrainingConfig:
    """Optimiser, schedule and batches of the one training loop."""

    steps: int = 1500
    """Training steps. Our choice."""
    batch_source: int = 24
    """Source samples a step. Paper (MME reference code): 24."""
    batch_target: int = 24
    """Labelled target samples a step. Paper (MME reference code): 24."""
    batch_unlabeled: int = 48
    """Unlabelled target samples a step. Paper (MME reference code): 48."""
    positive_share: float | None = None
    """Share of positives (D_p) in a target batch, once there are any; None draws from D_t and D_p alike (decision 19).
    Our choice."""
    learning_rate: float = 0.01
    """Learning rate of new layers. Paper (MME reference code): 0.01."""
    backbone_learning_rate: float = 0.001
    """Learning rate of pretrained layers. Paper (MME reference code): 0.001."""
    momentum: float = 0.9
    """SGD momentum, Nesterov. Paper: 0.9."""
    weight_decay: float = 0.0005
    """Weight decay. Paper: 0.0005."""
    decay_rate: float = 1e-4
    """The rate is learning_rate * (1 + decay_rate * step) ** -decay_power. Paper (Ganin 2016): 1e-4."""
    decay_power: float = 0.75
    """See decay_rate. Paper (Ganin 2016): 0.75."""
    largest_loss: float = 1e4
    """A loss above this, or one that is not finite, stops the run. Our choice."""
    workers: int = 0
    """Processes that decode images. Our choice; the result does not depend on it."""
    threads: int = 0
    """CPU threads of a step; 0 chooses: 1 for tensors in memory (small heads lose by
    more), all cores for image files."""
    device: str = "auto"
    """Where to train: 'auto', 'cpu', 'cuda', 'mps'."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    """Floating-point precision, as Lightning Fabric names it."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_source", "batch_target", "batch_unlabeled"):
            _check(getattr(self, name) > 0, f"TrainingConfig.{name}", "positive", getattr(self, name))
        for name in ("learning_rate", "backbone_learning_rate", "largest_loss"):
            _check(getattr(self, name) > 0, f"TrainingConfig.{name}", "positive", getattr(self, name))
        share = self.positive_share
        _check(share is None or 0 < share < 1, "TrainingConfig.positive_share", "None or in (0, 1)", share)
        _check(
            share is None or self.batch_target > 1,
            "TrainingConfig.batch_target",
            "2 or more, or positive_share None",
            self.batch_target,
        )
        _check(0 <= self.momentum < 1, "TrainingConfig.momentum", "in [0, 1)", self.momentum)
        for name in ("workers", "threads"):
            _check(getattr(self, name) >= 0, f"TrainingConfig.{name}", "0 or more", getattr(self, name))


@dataclass(frozen=True)
class RewardConfig:
    """What makes a pseudo-labelled sample good: phi (Eq. 4) and its threshold."""

    center_weight: float = 1.0
    """Weight beta of log p_f. Paper: 1."""
    entropy_drop_weight: float = 0.1
    """Weight lambda of the drop in entropy. Paper: 0.1."""
    threshold_prob: float = 0.9
    """The threshold is tau = (1 + beta) * log(threshold_prob). Paper: 0.9."""
    threshold: Literal["fixed", "class_median"] = "fixed"
    """'fixed': tau as above (paper). 'class_median': the median of phi within the sample's pseudo-class, so that half
    of every class is good whatever the calibration (decision 23; our choice)."""
    network: Literal["trial", "round"] = "trial"
    """Whose p_c and p_f: the trial network after it trained on the sample (paper), or the network and centres of the
    round, which have not seen it (decision 18; our choice)."""
    leave_one_out_centers: bool = False
    """Take a sample out of its own class centre (decision 10). Paper: no."""
    center: Literal["centers", "neighbors"] = "centers"
    """p_f from the class centres (paper), or from the predictions of the nearest target samples (decision 22; our
    choice; needs network='round')."""
    neighbors: int = 10
    """How many nearest target samples. Our choice."""
    neighbor_floor: float = 0.01
    """Added to the neighbours' probability before its logarithm, which else is -inf where none agrees. Our choice."""

    def __post_init__(self) -> None:
        _check(0 < self.threshold_prob < 1, "RewardConfig.threshold_prob", "in (0, 1)", self.threshold_prob)
        _check(self.neighbors > 0, "RewardConfig.neighbors", "positive", self.neighbors)
        _check(
            self.center == "centers" or self.network == "round",
            "RewardConfig.network",
            "'round' when center is 'neighbors'",
            self.network,
        )

    @property
    def tau(self) -> float:
        """(1 + beta) * log(threshold_prob)."""
        return (1 + self.center_weight) * math.log(self.threshold_prob)


@dataclass(frozen=True)
class EpisodeConfig:
    """The selection problem as the agent meets it: candidates, trial network, state."""

    candidates: int = 100
    """N_c, candidates an episode. Our choice."""
    even_candidates: bool = False
    """Draw candidates evenly over pseudo-classes (decision 20). Paper: at random from D_u."""
    actions: int = 100
    """Most actions a round, over all its episodes. Our choice; with one episode of N_c candidates no bound."""
    repeat_episodes: bool = False
    """Start new episodes until `actions` are used up. Paper: one episode a round."""
    trial_steps: int = 0
    """Steps of the trial network an action; 0 for one epoch over D_s (paper; decision 9)."""
    trial_layers: Literal["head", "all"] = "head"
    """Where the backbone is trained too, the trial network trains the layers after it, on embeddings of the current
    backbone that are made once a round, or all layers, which is what line 11 says (decision 27). Our choice."""
    entropy_samples: int = 0
    """Samples of D_u that the drop in entropy is measured on; 0 for all (paper)."""
    state_network: Literal["trial", "frozen"] = "trial"
    """Who makes the states: the trial network after its epoch (paper, line 12), or the round's network (decision 8)."""
    state_features: int = 0
    """Project the d features of the state to so many by a fixed random matrix; 0 keeps them (paper)."""
    agent: Literal["flat", "relational"] = "flat"
    """'flat': fully connected layers on the whole state (paper). 'relational': the same layers on each candidate's
    relations to the parts of the state (decision 21; our choice)."""
    keep_rejected: bool = True
    """Keep the sample that earned -1 in D_p (decision 5). Paper: yes."""
    harvest: bool = False
    """After the episodes of a round, let the agent choose D_p anew from all of D_u, class by class (decision 24; our
    choice). Paper: D_p is what the episodes chose."""

    def __post_init__(self) -> None:
        for name in ("candidates", "actions"):
            _check(getattr(self, name) > 0, f"EpisodeConfig.{name}", "positive", getattr(self, name))
        for name in ("trial_steps", "entropy_samples", "state_features"):
            _check(getattr(self, name) >= 0, f"EpisodeConfig.{name}", "0 or more", getattr(self, name))


@dataclass(frozen=True)
class QLearningConfig:
    """The Q-network, its updates, the exploration and the experience pool."""

    hidden: tuple[int, ...] = (1024, 512)
    """Widths of the hidden layers. Paper: 1024 and 512."""
    output_relu: bool = False
    """A ReLU after the last layer too (decision 1). Our choice: no, since rewards include -1. Paper: yes."""
    discount: float = 0.9
    """Weight gamma of the future in Eq. (9). Paper: 0.9."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """How Eq. (10) steps along its gradient. Our choice: 'adam'. Paper: plain gradient descent, 'sgd'."""
    learning_rate: float = 1e-3
    """Step size of Eq. (10), on the mean over the batch. Our choice."""
    largest_gradient: float = 1.0
    """Length that a gradient of 'sgd' is cut to: it grows with the state's length squared, and a state has up to a
    million numbers (decision 28). Our choice; paper: no bound."""
    batch_size: int = 16
    """Transitions sampled for each update. Our choice."""
    target_update: int = 0
    """Updates between copies into a target network that makes the max of Eq. (9) (decision 3); 0 is none.
    Paper: none."""
    exploration_start: float = 1.0
    """Probability of a random action at first. Paper: 1."""
    exploration_end: float = 0.0
    """Probability of a random action at last. Paper: 0."""
    exploration_steps: int = 500
    """Actions over which exploration falls linearly from start to end. Our choice."""
    pool_bytes: int = 512 * 2**20
    """Upper bound of the experience pool. Our choice: 512 MiB."""

    def __post_init__(self) -> None:
        _check(
            len(self.hidden) > 0 and all(width > 0 for width in self.hidden),
            "QLearningConfig.hidden",
            "one or more positive widths",
            self.hidden,
        )
        for name in ("discount", "exploration_start", "exploration_end"):
            _check(0 <= getattr(self, name) <= 1, f"QLearningConfig.{name}", "in [0, 1]", getattr(self, name))
        for name in ("learning_rate", "largest_gradient", "batch_size", "exploration_steps", "pool_bytes"):
            _check(getattr(self, name) > 0, f"QLearningConfig.{name}", "positive", getattr(self, name))
        _check(self.target_update >= 0, "QLearningConfig.target_update", "0 or more", self.target_update)
        _check(self.optimizer in ("adam", "sgd"), "QLearningConfig.optimizer", "'adam' or 'sgd'", self.optimizer)


@dataclass(frozen=True)
class SelectionConfig:
    """Which pseudo-labels to trust, and the rounds of Algorithm 1."""

    selector: str = "none"
    """none, confidence (the paper's SPL), quality, balanced, random, or dqn."""
    rounds: int = 8
    """Most rounds (lines 4-21). Our choice."""
    round_steps: int = 200
    """Training steps of F and C a round (line 20). Our choice."""
    patience: int = 3
    """Stop when D_p did not change for so many rounds (decision 13). Our choice."""
    confidence: float = 0.9
    """Least probability that selector 'confidence' takes. Paper: 0.9."""
    share_start: float = 0.2
    """Share of D_u that 'balanced', 'random' and a harvesting agent take in the first round. Our choice."""
    share_end: float = 0.9
    """The same in the last round. Our choice."""
    relabel_positives: bool = False
    """Give positives their current pseudo-label each round (decision 7). Paper: they keep the one given when chosen."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    q_learning: QLearningConfig = field(default_factory=QLearningConfig)

    def __post_init__(self) -> None:
        for name in ("rounds", "round_steps", "patience"):
            _check(getattr(self, name) > 0, f"SelectionConfig.{name}", "positive", getattr(self, name))
        _check(0 < self.confidence < 1, "SelectionConfig.confidence", "in (0, 1)", self.confidence)
        _check(
            self.episode.agent == "relational" or not self.episode.harvest,
            "EpisodeConfig.agent",
            "'relational' when harvest is on (a flat agent cannot score all of D_u)",
            self.episode.agent,
        )
        shares = (self.share_start, self.share_end)
        _check(
            0 < shares[0] <= shares[1] <= 1, "SelectionConfig.share_start, share_end", "0 < start <= end <= 1", shares
        )


@dataclass(frozen=True)
class RunConfig:
    """One run: network, method, training, selection and the seed that decides everything random."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    seed: int = 0
    """Seed of weights, batches, crops and dropout."""


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)


def fingerprint(config: Any) -> str:
    """A name for a config: twelve hex digits of the hash of its canonical JSON."""
    canonical = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
