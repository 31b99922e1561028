"""What a run is: network, method, training, selection, seed; read from and written to plain tables."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from qurate.errors import ConfigError
from qurate.registry import FITTED, METHODS, SELECTORS, SLA, TRAINED, Registry, goes_with, split_sla
from qurate.runtime.validation import (
    Allowed,
    Below1,
    Bytes,
    Checked,
    Count,
    Inside,
    Positive,
    Rate,
    Seed,
    Share,
    Size,
    Steps,
    StepsOrDefault,
    Weight,
    check,
    show,
)


def read_settings(path: Path | str) -> dict[str, Any]:
    """The table in a JSON or TOML file.

    Raises:
        ConfigError: If there is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"a file of settings must be given by its path, got {show(path)}.")
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text) if file.suffix.lower() == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: cannot be read as a JSON or TOML file ({reason}).") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must hold a table of settings, got {type(data).__name__}.")
    return data


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)


def fingerprint(config: Any) -> str:
    """A name for a config, or for what `to_dict` made of it: twelve hex digits of the hash of its canonical JSON."""
    plain = config if isinstance(config, dict) else to_dict(config)
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Choice(Checked):
    """The numbers of what a registry names: a subclass for each, in its own file."""

    registry: ClassVar[Registry]
    example: ClassVar[str]

    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            kind = type(self).__name__
            raise ConfigError(f"{kind} is abstract. Use {kind}.of('{self.example}') or a subclass.")

    @classmethod
    def of(cls, name: str, /, **numbers: Any) -> Self:
        """The config of a name or title, with these numbers changed."""
        config: Self = cls.registry.find(name).load().Config.from_dict(numbers)
        return config

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The subclass of the entry 'name'; a subclass reads its own numbers."""
        if cls.name:
            return super().from_dict(data)
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            known = ", ".join(cls.registry)
            raise ConfigError(f"{cls.__name__} must be a table with a name ({known}), got {show(data)}.")
        return cls.of(data["name"], **{str(key): value for key, value in data.items() if key != "name"})


@dataclass(frozen=True)
class SourceLabelConfig(Checked):
    """SLA: labels of the source are mixed with what prototypes of the target say of it (`methods/source_labels.py`)."""

    weight: Share = 0.3
    """Weight alpha of what the prototypes say; 0 leaves the labels as they are. SLA's authors: 0.3."""
    temperature: Rate = 12.0
    """What distances to the prototypes are multiplied by. SLA's authors: 0.6, for features of length 20; ours have
    length 1."""
    warmup: Below1 = 0.2
    """Share of the steps of line 1 before labels are adapted. SLA's authors: 2,000 of 10,000 steps."""
    interval: Inside = 0.05
    """Share of the steps of line 1 from one computation of the prototypes to the next. SLA's authors: 500 of 10,000."""


@dataclass(frozen=True)
class MethodConfig(Choice):
    """The training method, one row of the paper's tables; its numbers are the subclass in its own file.

    Example:
        >>> MethodConfig.of("tml", margin=0.3)
        TargetMarginConfig(name='tml', source_labels=None, entropy_weight=0.1, margin=0.3, monotone=True)
        >>> MethodConfig.of("tml+sla").source_labels
        SourceLabelConfig(weight=0.3, temperature=12.0, warmup=0.2, interval=0.05)
    """

    registry: ClassVar[Registry] = METHODS
    example: ClassVar[str] = "tml"

    source_labels: SourceLabelConfig | None = field(default=None, kw_only=True)
    """Adapts the labels of the source, with any method; None leaves them as they are."""

    @classmethod
    def of(cls, name: str, /, **numbers: Any) -> Self:
        """The config of a name or title, with these numbers changed; 'mme+sla' is MME with adapted source labels."""
        method, is_adapted = split_sla(name)
        return super().of(method, **({"source_labels": SourceLabelConfig()} if is_adapted else {}) | numbers)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_labels is not None and self.name in FITTED:
            raise ConfigError(
                f"source_labels adapts labels while a network is trained, and method '{self.name}' takes no training "
                f"steps. Leave it out, or use one of the methods {', '.join(TRAINED)}."
            )

    @property
    def row_name(self) -> str:
        """In results.csv: its name, with '+sla' where source labels are adapted."""
        return self.name if self.source_labels is None else f"{self.name}+{SLA}"


@dataclass(frozen=True)
class SelectorConfig(Choice):
    """Which pseudo-labels to trust; the numbers of a selector are the subclass beside it.

    Example:
        >>> SelectorConfig.of("confidence", threshold=0.8)
        ConfidenceConfig(name='confidence', threshold=0.8)
    """

    registry: ClassVar[Registry] = SELECTORS
    example: ClassVar[str] = "dqn"


@dataclass(frozen=True)
class NoneConfig(SelectorConfig):
    """No pseudo-label is trusted, and there are no rounds."""

    name: str = field(init=False, default="none")


@dataclass(frozen=True)
class ShareConfig(SelectorConfig):
    """A share of D_u that grows linearly over the rounds."""

    share_start: Inside = 0.2
    """Share taken in the first round. Our choice."""
    share_end: Share = 0.9
    """Share taken in the last round. Our choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.share_start, self.share_end)
        check(shares[0] <= shares[1], f"{type(self).__name__}.share_start, share_end", "start <= end", shares)

    def share_at(self, progress: float) -> float:
        """The share at a progress of the rounds from 0 to 1."""
        return self.share_start + (self.share_end - self.share_start) * progress


@dataclass(frozen=True)
class AdaptiveShareConfig(ShareConfig):
    """A growing share of D_u, balanced as far as the predicted classes are of equal size (decision 51)."""

    imbalance_limit: Rate = 0.6
    """Imbalance d of the predicted classes, sum of |share - 1/K|, from which on nothing is balanced. Our choice."""
    imbalance_width: Rate = 0.35
    """How far d must fall below the limit until everything is balanced. Our choice."""
    class_room: Rate = 1.15
    """Where all is balanced, a class gives at most this many times an equal part. Our choice."""


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


Bottleneck = Literal["none", "linear", "normalized"]
Pooling = Literal["class", "mean", "both"]
Protocol = Literal["mme", "clean", "drawn"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["32-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True)
class NetworkConfig(Checked):
    """The network: backbone and bottleneck (F), cosine classifier (C)."""

    backbone: str = "none"
    """'none' (inputs are embeddings), 'digits' (small CNN), 'timm/NAME.TAG', 'torchvision/vgg16' or
    'torchvision/resnet34'; 'timm/NAME@224@mean' has its image size and pooling. Paper: ResNet-34 on DomainNet, VGG-16
    on Office."""
    weights: str = "none"
    """'none' (random), 'pretrained' (download), 'offline' (of an installed package, for 'timm/tf_efficientnet_lite0', 1
    and 2), or the path of a safetensors or state-dict file."""
    bottleneck: Bottleneck = "linear"
    """Layer before the classifier: 'linear' as in the MME reference code, 'normalized' (dropout, linear,
    batch norm, ReLU; our choice), or 'none': the backbone's own last layers, which in VGG-16 are the two fully
    connected ones, 4096 wide (decision 41)."""
    features: Size = 512
    """Width d of the bottleneck. Paper (by the MME reference code): 512."""
    dropout: Below1 = 0.3
    """Dropout of the normalized bottleneck. Our choice."""
    scale: Annotated[float, Allowed("between 0.01 and 10000", lambda x: 0.01 <= x <= 10_000)] = 30.0
    """Logit scale s of the cosine classifier. Paper: 30."""


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """Optimiser, schedule and batches of the one training loop."""

    steps: Steps = 1500
    """Training steps. Our choice."""
    batch_source: Size = 24
    """Source samples per step. Paper (MME reference code): 24."""
    batch_target: Size = 24
    """Labelled target samples per step. Paper (MME reference code): 24."""
    batch_unlabeled: Size = 48
    """Unlabelled target samples per step. Paper (MME reference code): 48."""
    positive_share: Inside | None = None
    """Share of positives (D_p) in a target batch, once there are any; None draws from D_t and D_p alike (decision 19).
    Our choice."""
    learning_rate: Rate = 0.01
    """Learning rate of new layers. Paper (MME reference code): 0.01."""
    backbone_learning_rate: Rate = 0.001
    """Learning rate of pretrained layers. Paper (MME reference code): 0.001."""
    momentum: Below1 = 0.9
    """SGD momentum. Paper: 0.9; in Nesterov's form, as in the MME reference code."""
    weight_decay: Weight = 0.0005
    """Weight decay. Paper: 0.0005."""
    schedule: Literal["steps", "progress"] = "steps"
    """How the rates fall. 'steps': by (1 + decay_rate * step) ** -decay_power, the MME reference code's rule, made for
    50,000 steps. 'progress': by (1 + progress_decay_rate * p) ** -decay_power, the rule of Ganin 2016, which the paper
    names; p goes from 0 to 1 over all steps of the run, those of line 1 and of the budget of rounds together, so that
    no round starts at a higher rate than the one before ended with. Line 11 keeps its round's p (decision 32). Our
    choice; preset 'paper': 'progress'."""
    decay_rate: Weight = 1e-4
    """See schedule. MME reference code: 1e-4."""
    progress_decay_rate: Weight = 10.0
    """See schedule. Paper (Ganin 2016): 10."""
    decay_power: Weight = 0.75
    """See schedule. Paper (Ganin 2016) and MME reference code: 0.75."""
    warmup_steps: Count = 0
    """Steps in which the rates rise to where the schedule has them. Our choice; 'adapt --train full' has some."""
    largest_loss: Rate = 1e4
    """A loss above this, or one that is not finite, stops the run. Our choice."""
    frozen_norms: bool = False
    """Whether batch norms of the backbone keep the statistics that they came with, in training too; their weights are
    trained. For pretrained backbones and small batches (docs/whole_networks.md). The MME reference code has them
    learn. Our choice."""
    frozen_bottleneck: bool = False
    """Whether the batch norm of the bottleneck keeps its statistics too, where the head is trained already. Our
    choice."""
    micro_batch: Count = 0
    """Rows of a batch that pass through the backbone at a time; 0 for all. Saves memory and costs a second pass. The
    result is the same but for rounding where the backbone has no dropout and no batch norms, or frozen ones. Others
    take the statistics of these rows alone, and dropout draws for them alone: another result. Our choice."""
    precision: Precision = "32-true"
    """Floating-point precision, as Lightning Fabric names it. Cosines, margins and softmax are float32 in all
    of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.positive_share is None or self.batch_target > 1
        check(fits, "TrainingConfig.batch_target", "2 or more, or positive_share None", self.batch_target)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The table [training]; fields of [execution] are refused by name."""
        if isinstance(data, Mapping) and (moved := [name for name in data if name in EXECUTION_FIELDS]):
            raise ConfigError(
                f"TrainingConfig has no '{moved[0]}'. It is a field of ExecutionConfig, table [execution]."
            )
        return super().from_dict(data)


@dataclass(frozen=True)
class ExecutionConfig(Checked):
    """Where and how a run is computed; on one device none of it changes the result but for rounding.

    What differs with several is said in docs/whole_networks.md.
    """

    device: Device = "auto"
    """Where to train: 'auto', 'cpu', 'cuda', 'mps'."""
    devices: Positive = 1
    """Devices of each machine, or processes where the device is a CPU. The batch sizes are those of all of them
    together; each takes an equal share. Our choice."""
    num_nodes: Positive = 1
    """Machines; more than one need torchrun or Slurm to start the processes. Our choice."""
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true"] = "auto"
    """Strategy of Lightning Fabric for several devices: 'ddp', which is also what 'auto' is, or
    'ddp_find_unused_parameters_true' for a backbone with parameters that have no part in its output. One device has
    none."""
    workers: Count = 0
    """Processes that decode images. Our choice."""
    threads: Count = 0
    """CPU threads of a step; 0 chooses: 1 for tensors in memory (small heads lose by
    more), all cores for image files."""
    activation_checkpointing: bool = False
    """Recompute the activations of the backbone in the backward pass instead of storing them, where it is one of timm's
    that can. Saves memory and costs a second pass. Our choice."""
    checkpoint_steps: Count = 0
    """Training steps between two checkpoints of a run that has a folder; 0 leaves it to the minutes. Our choice."""
    checkpoint_minutes: Weight = 10.0
    """Minutes between two checkpoints; 0 for none between the end of line 1 and of each round. Our choice."""

    @property
    def processes(self) -> int:
        """The world size: how many processes train one network."""
        return self.devices * self.num_nodes


TRAINING_FIELDS = tuple(each.name for each in dataclasses.fields(TrainingConfig))
EXECUTION_FIELDS = tuple(each.name for each in dataclasses.fields(ExecutionConfig))


@dataclass(frozen=True)
class RewardConfig(Checked):
    """What makes a pseudo-labelled sample good: phi (Eq. 4) and its threshold."""

    center_weight: Weight = 1.0
    """Weight beta of log p_f. Paper: 1."""
    entropy_drop_weight: Weight = 0.1
    """Weight lambda of the drop in entropy. Paper: 0.1."""
    threshold_prob: Inside = 0.9
    """The threshold is tau = (1 + beta) * log(threshold_prob). Paper: 0.9."""
    threshold: Literal["fixed", "class_median"] = "fixed"
    """'fixed': tau as above (paper). 'class_median': the median of phi, without its entropy term, within the sample's
    pseudo-class, so that half of every class is good whatever the calibration (decision 23; our choice)."""
    network: Literal["trial", "round"] = "trial"
    """Whose p_c and p_f: the trial network after it trained on the sample (paper), or the network and centres of the
    round, before that (decision 18; our choice)."""
    leave_one_out_centers: bool = False
    """Take a sample out of its own class centre (decision 10). Paper: no."""
    center: Literal["centers", "neighbors"] = "centers"
    """p_f from the class centres (paper), or from the predictions of the nearest target samples (decision 22; our
    choice; needs network='round')."""
    neighbors: Positive = 10
    """How many nearest target samples. Our choice."""
    neighbor_floor: Rate = 0.01
    """Added to the neighbours' probability before its logarithm, which would be -inf where none agrees. Our choice."""

    neighbor_trust: Literal["full", "assortative"] = "full"
    """Whether log p_f of the neighbours has the whole weight beta, or more of it the more neighbours are of one class:
    none up to `assortativity_low`, all from `assortativity_high` on, linear between (decision 58; our choice)."""
    assortativity_low: Share = 0.6
    """Assortativity of the pseudo-labels over the neighbours up to which these are not asked. Our choice."""
    assortativity_high: Share = 0.75
    """Assortativity from which on neighbours have the whole weight. Our choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = (self.assortativity_low, self.assortativity_high)
        check(limits[0] < limits[1], "RewardConfig.assortativity_low, assortativity_high", "low < high", limits)
        fits = self.center == "centers" or self.network == "round"
        check(fits, "RewardConfig.network", "'round' when center is 'neighbors'", self.network)

    @property
    def judges_neighbors(self) -> bool:
        """Whether p_f is made of neighbours, who are believed as far as they are of one class (decision 58)."""
        return self.center == "neighbors" and self.neighbor_trust == "assortative"

    @property
    def tau(self) -> float:
        """(1 + beta) * log(threshold_prob)."""
        return (1 + self.center_weight) * math.log(self.threshold_prob)


@dataclass(frozen=True)
class SelectionConfig(Checked):
    """The rounds of Algorithm 1 and their selector."""

    selector: SelectorConfig = field(default_factory=NoneConfig)
    rounds: Positive = 8
    """Most rounds (lines 4-21). Our choice."""
    round_steps: Steps = 200
    """Training steps of F and C per round (line 20). Our choice."""
    patience: Positive = 3
    """Stop when D_p did not change for this many rounds (decision 13). Our choice."""
    relabel_positives: bool = False
    """Give positives their current pseudo-label each round (decision 7). Paper: they keep the one given when chosen."""
    labeler: Literal["network", "combined"] = "network"
    """Who labels D_u in line 5. 'network': F and C (paper). 'combined': the product of their predictions with those of
    S+T, divided by its mean over D_u: distribution alignment (decision 57; our choice)."""
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass(frozen=True)
class RunConfig(Checked):
    """One run: network, method, training, selection, the seed that decides everything random, and its execution."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=lambda: MethodConfig.of("tml"))
    training: TrainingConfig = field(default_factory=TrainingConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    seed: Seed = 0
    """Decides everything random (decision 46)."""
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not goes_with(self.method.name, self.selection.selector.name):
            raise ConfigError(
                f"selector '{self.selection.selector.name}' trains the method on each candidate, and method "
                f"'{self.method.name}' takes no training steps. Use another selector, or one of the methods "
                f"{', '.join(TRAINED)}."
            )

    @property
    def total_steps(self) -> int:
        """Training steps of lines 1 and 20 if the budget of rounds is used up."""
        rounds = 0 if self.selection.selector.name == "none" else self.selection.rounds
        return self.training.steps + rounds * self.selection.round_steps

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Samples of a batch of all devices: of the source, the labelled and the unlabelled target."""
        return {name: getattr(self.training, name) for name in ("batch_source", "batch_target", "batch_unlabeled")}

    def check_shares(self) -> None:
        """Check that each device can take an equal share of every batch, and that there are batches.

        Raises:
            ConfigError: If not.
        """
        sizes, processes = self.batch_sizes, self.execution.processes
        if processes > 1 and not METHODS[self.method.name].has_network:
            raise ConfigError(
                f"ExecutionConfig.devices must be 1 for method '{self.method.name}', which is fitted by one process, "
                f"got {processes} processes."
            )
        for name, size in sizes.items():
            if size % processes:
                below, most = size - size % processes, math.gcd(*sizes.values())
                fits = [str(n) for n in range(1, most + 1) if most % n == 0]
                raise ConfigError(
                    f"TrainingConfig.{name} must be a multiple of the {processes} devices, each of which takes an "
                    f"equal share, got {size}. Use {below or processes} or {below + processes}, or one of these "
                    f"numbers of devices: {', '.join(fits)}."
                )

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """A run from a JSON or TOML file: one of these fields, or the config.json of a run folder.

        Raises:
            ConfigError: If the file cannot be read, or a value is not allowed.
        """
        data = read_settings(path)
        is_of_run = "qurate" in data and "run" in data
        try:
            return cls.from_dict(data["run"] if is_of_run else data)
        except ConfigError as error:
            hint = " If another version of qurate wrote that run, start a new run from the images." if is_of_run else ""
            raise ConfigError(f"{path}: {error}{hint}") from error


def fingerprint_fields(config: RunConfig) -> dict[str, Any]:
    """What decides the result of a run, as plain tables: all of it but [execution], and what is not used."""
    fields = to_dict(config)
    del fields["execution"]
    if config.method.source_labels is None:  # as in runs from before there was SLA
        del fields["method"]["source_labels"]
    return fields
