"""What a run is: frozen dataclasses, every number marked "paper" or "our choice"."""

from __future__ import annotations

import dataclasses
import hashlib
import json
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
    """'none' (random), 'pretrained' (download), or the path of a safetensors or state-dict file."""
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
        _check(0 <= self.margin < 3.14, "MethodConfig.margin", "an angle in [0, pi)", self.margin)
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
        _check(0 <= self.momentum < 1, "TrainingConfig.momentum", "in [0, 1)", self.momentum)
        for name in ("workers", "threads"):
            _check(getattr(self, name) >= 0, f"TrainingConfig.{name}", "0 or more", getattr(self, name))


@dataclass(frozen=True)
class RunConfig:
    """One run: network, method, training and the seed that decides everything random."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0
    """Seed of weights, batches, crops and dropout."""


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)


def fingerprint(config: Any) -> str:
    """A name for a config: twelve hex digits of the hash of its canonical JSON."""
    canonical = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
