"""One run: network, method, training, selection, seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from qurate.config.choices import MethodConfig, NoneConfig, SelectorConfig
from qurate.config.files import read_settings
from qurate.config.version_0_1 import as_meant, from_version_0_1
from qurate.errors import ConfigError
from qurate.runtime.checked import Below1, Checked, Count, Inside, Positive, Rate, Seed, Size, Steps, Weight, check

Bottleneck = Literal["none", "linear", "normalized"]
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
    scale: Rate = 30.0
    """Logit scale s of the cosine classifier. Paper: 30."""


HOW_NOT_WHAT: Mapping[str, Any] = {
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "checkpoint_steps": 0,
    "checkpoint_minutes": 10.0,
    "activation_checkpointing": False,
}
"""Fields of `TrainingConfig` that say how a run is done and not what comes of it, but for rounding, with their
defaults."""
NAMED_IF_CHANGED: Mapping[str, Any] = {**HOW_NOT_WHAT, "micro_batch": 0, "frozen_norms": False}
"""Fields that names of configs leave out where they have their defaults, since configs of before do not have them."""


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
    largest_loss: Rate = 1e4
    """A loss above this, or one that is not finite, stops the run. Our choice."""
    workers: Count = 0
    """Processes that decode images. Our choice; the result does not depend on it."""
    threads: Count = 0
    """CPU threads of a step; 0 chooses: 1 for tensors in memory (small heads lose by
    more), all cores for image files."""
    frozen_norms: bool = False
    """Whether batch norms of the backbone keep the statistics that they came with, in training too; their weights are
    trained. For pretrained backbones and small batches (docs/whole_networks.md). The MME reference code has them
    learn. Our choice."""
    micro_batch: Count = 0
    """Rows of a batch that pass through the backbone at a time; 0 for all. Saves memory and costs a second pass. The
    result is the same but for rounding where the backbone has no batch norms, or frozen ones. Others take the
    statistics of these rows alone, so with them it is another result. Our choice."""
    activation_checkpointing: bool = False
    """Make the activations of the backbone again on the way back in place of keeping them, where it is one of timm's
    that can. Saves memory and costs a second pass; the result is the same. Our choice."""
    checkpoint_steps: Count = 0
    """Training steps between two checkpoints of a run that has a folder; 0 leaves it to the minutes. Our choice."""
    checkpoint_minutes: Weight = 10.0
    """Minutes between two checkpoints; 0 for none between the end of line 1 and of each round. Our choice."""
    device: Device = "auto"
    """Where to train: 'auto', 'cpu', 'cuda', 'mps'."""
    devices: Positive = 1
    """Devices of each machine, or processes where the device is a CPU; each takes its share of every batch. The result
    does not depend on it but for rounding. Our choice."""
    num_nodes: Positive = 1
    """Machines; more than one need torchrun or a cluster to start the processes. Our choice."""
    strategy: Literal["auto", "ddp"] = "auto"
    """How several devices work together, as Lightning Fabric names it; 'auto' is 'ddp', which is all there is."""
    precision: Precision = "32-true"
    """Floating-point precision, as Lightning Fabric names it. Cosines, margins and softmax are float32 in all
    of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.positive_share is None or self.batch_target > 1
        check(fits, "TrainingConfig.batch_target", "2 or more, or positive_share None", self.batch_target)

    @property
    def processes(self) -> int:
        """How many processes train together."""
        return self.devices * self.num_nodes


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

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.center == "centers" or self.network == "round"
        check(fits, "RewardConfig.network", "'round' when center is 'neighbors'", self.network)

    @property
    def tau(self) -> float:
        """(1 + beta) * log(threshold_prob)."""
        return (1 + self.center_weight) * math.log(self.threshold_prob)


@dataclass(frozen=True)
class SelectionConfig(Checked):
    """The rounds of Algorithm 1, and who selects in them."""

    selector: SelectorConfig = field(default_factory=NoneConfig)
    rounds: Positive = 8
    """Most rounds (lines 4-21). Our choice."""
    round_steps: Steps = 200
    """Training steps of F and C per round (line 20). Our choice."""
    patience: Positive = 3
    """Stop when D_p did not change for this many rounds (decision 13). Our choice."""
    relabel_positives: bool = False
    """Give positives their current pseudo-label each round (decision 7). Paper: they keep the one given when chosen."""
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass(frozen=True)
class RunConfig(Checked):
    """One run: network, method, training, selection and the seed that decides everything random."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=lambda: MethodConfig.of("tml"))
    training: TrainingConfig = field(default_factory=TrainingConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    seed: Seed = 0
    """Seed of weights, batches, crops and dropout."""

    @property
    def total_steps(self) -> int:
        """Training steps of lines 1 and 20 if the budget of rounds is used up."""
        rounds = 0 if self.selection.selector.name == "none" else self.selection.rounds
        return self.training.steps + rounds * self.selection.round_steps

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """A run from plain dictionaries, as `to_dict` makes them; those of version 0.1 too."""
        selection = data.get("selection") if isinstance(data, Mapping) else None
        is_old = isinstance(selection, Mapping) and isinstance(selection.get("selector"), str)
        return super().from_dict(from_version_0_1(data) if is_old else data)

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """A run from a JSON or TOML file: one of these fields, or the config.json of a run folder.

        Raises:
            ConfigError: If the file cannot be read, or says what is not allowed.
        """
        data = read_settings(path)
        try:
            return cls.from_dict(_of_run_folder(data["run"]) if "qurate" in data and "run" in data else data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def _of_run_folder(run: Any) -> Any:
    """What config.json of a run folder says; it names every number that there was when it was written."""
    is_whole = isinstance(run, Mapping) and isinstance(run.get("method"), Mapping)
    return {**run, "method": as_meant(run["method"])} if is_whole else run
