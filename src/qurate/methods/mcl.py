"""MCL: consistency of the target with the source, of its classes, and of each sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.errors import ConfigError
from qurate.methods.base import Method, Minimize, pseudo_label_loss, strong_view
from qurate.methods.source_labels import means_and_counts, unit
from qurate.networks.heads import Network, cosines
from qurate.runtime.validation import Allowed, Below1, Rate, Share, Weight

_SMALLEST_SHARE = 1e-12
_Smooth = Annotated[float, Allowed("0.01 or more", lambda x: x >= 0.01)]  # below, exponentials of costs vanish


@dataclass(frozen=True)
class MultiLevelConsistencyConfig(MethodConfig):
    """The numbers of MCL."""

    name: str = field(init=False, default="mcl")
    transport_weight: Weight = 1.0
    """Weight of the consistency with the source. MCL's authors: 1."""
    contrast_weight: Weight = 1.0
    """Weight of the consistency of the classes. MCL's authors: 1."""
    pseudo_weight: Weight = 1.0
    """Weight of the pseudo-labels. MCL's authors: 1."""
    threshold: Share = 0.95
    """Probability from which a pseudo-label counts. MCL's authors: 0.95."""
    entropy: _Smooth = 1.0
    """How smooth the transport plan is: the weight e of its divergence from an even one. MCL's authors: 1."""
    relaxation: Rate = 1.0
    """How much every class must get an equal share of a batch, and every sample be moved in full: the weight r of the
    divergence of both sums of the plan. MCL's authors: 1."""
    momentum: Below1 = 0.9
    """Of the prototypes, which follow the source. MCL's authors: 0.9."""
    warmup: Below1 = 0.1
    """Share of training before the consistency with the source counts. Our choice; MCL's authors: 100 of 50,000
    steps."""
    strong_dropout: Below1 = 0.5
    """Of what the backbone gives, in the strong view. Our choice; MCL's authors augment pixels."""


class MultiLevelConsistency(Method):
    """Two views of D_u agree at three levels: with prototypes of the source, as classes of a batch, and one by one.

    L = cross-entropy + a L_inter + b L_intra + c L_pl
    L_inter = mean_i [1 - cos(F(x'_i), c_m(i))],  m(i) = argmax_k T_ki
    T = argmin <T, M> + e KL(T | 1/KN) + r KL(T 1 | 1/K) + r KL(T^T 1 | 1/N),  M_ki = 1 - cos(F(x_i), c_k)
    L_intra = 1 - 1/2K sum_k [A_kk / sum_j A_kj + A_kk / sum_j A_jk],  A = P^T P'
    L_pl = mean_i [max p_i >= threshold] cross-entropy(x'_i, argmax p_i)

    x is a sample as it is and x' its strong view, P and P' are their probabilities, (N, K). The prototypes c_k are
    running means of F on the source, where features have length 1. The plan T is found by POT and is a constant.

    Paper: Yan et al., "Multi-level Consistency Learning for Semi-supervised Domain Adaptation", 2022.
    """

    Config = MultiLevelConsistencyConfig
    config: MultiLevelConsistencyConfig
    centers: Tensor

    def __init__(self, network: Network, config: MultiLevelConsistencyConfig) -> None:
        super().__init__(network, config)
        self.register_buffer("centers", torch.zeros(network.n_classes, network.n_features))
        try:
            import ot  # noqa: F401  # before the first step, not in it
        except ImportError as error:
            raise ConfigError(
                f"Method 'mcl' needs POT, which is not installed ({error}): pip install 'qurate[transport]'."
            ) from error

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L."""
        config, classifier = self.config, self.network.classifier

        def compute() -> dict[str, Tensor]:
            source, target = self.encode_labeled(batch)
            labeled = self.labeled_loss(batch, source, target)
            self.centers.copy_(follow(self.centers, source.detach(), batch.source_labels, config.momentum))
            vectors = self.network.embed(batch.unlabeled)
            features = self.network.bottleneck(torch.cat([vectors, strong_view(vectors, config.strong_dropout)]))
            (weak, strong), (plain, said) = features.chunk(2), classifier(features).chunk(2)
            inter = alignment_loss(strong, self.centers, self.match(weak.detach()))
            intra = contrast_loss(F.softmax(plain, dim=1), F.softmax(said, dim=1))
            pseudo = pseudo_label_loss(plain.detach(), said, config.threshold)
            weight = config.transport_weight if progress >= config.warmup else 0.0
            loss = labeled + weight * inter + config.contrast_weight * intra + config.pseudo_weight * pseudo
            return {"loss": loss, "labeled": labeled, "inter": inter, "intra": intra, "pseudo": pseudo}

        return minimize(compute)

    def match(self, features: Tensor) -> Tensor:
        """The class that the plan moves each sample to, among those that the source has shown: (N, d) to (N,) int64."""
        seen = self.centers.any(dim=1).nonzero().squeeze(1)
        costs = 1 - cosines(features, self.centers[seen])
        return seen[transport_plan(costs.T, self.config.entropy, self.config.relaxation).argmax(dim=0)]


def follow(centers: Tensor, features: Tensor, labels: Tensor, momentum: float) -> Tensor:
    """Prototypes moved towards the mean of their class in a batch, (K, d); those of other classes stay as they are.

    Args:
        centers: Prototypes, (K, d); zero for a class that was in no batch yet.
        features: (N, d); they count with length 1.
        labels: (N,) int64.
        momentum: What is left of a prototype.
    """
    means, counts = means_and_counts(unit(features).to(centers.dtype), labels, len(centers))
    return torch.where(counts.unsqueeze(1) > 0, torch.lerp(means, centers, momentum), centers)


def transport_plan(costs: Tensor, entropy: float, relaxation: float) -> Tensor:
    """T = argmin <T, M> + e KL(T | 1/KN) + r KL(T 1 | 1/K) + r KL(T^T 1 | 1/N), by POT's unbalanced Sinkhorn algorithm.

    Args:
        costs: M, of moving each sample to each class, (K, N).
        entropy: e.
        relaxation: r.

    Returns:
        (K, N), double precision; no gradient passes.
    """
    from ot.unbalanced import sinkhorn_unbalanced

    exact = costs.detach().cpu().double()
    shares = [exact.new_full((n,), 1 / n) for n in exact.shape]
    plan: Tensor = sinkhorn_unbalanced(*shares, exact, entropy, relaxation, reg_type="kl")
    return plan.to(costs.device)


def alignment_loss(features: Tensor, centers: Tensor, classes: Tensor) -> Tensor:
    """L_inter = mean_i [1 - cos(F(x'_i), c_m(i))].

    Args:
        features: Of the strong views, (N, d).
        centers: Prototypes, (K, d).
        classes: m, (N,) int64.
    """
    return 1 - cosines(features, centers).gather(1, classes.unsqueeze(1)).mean()


def contrast_loss(first: Tensor, second: Tensor) -> Tensor:
    """L_intra = 1 - 1/2K sum_k [A_kk / sum_j A_kj + A_kk / sum_j A_jk],  A = P^T P'.

    A class is a column of the predictions for a batch: its two views are alike, and unlike the other classes. As the
    rows of P and P' are probabilities, sum_j A_kj = sum_i p_ik and sum_j A_jk = sum_i p'_ik.

    Args:
        first: P, (N, K).
        second: P', (N, K).
    """
    same = (first * second).sum(dim=0)
    shares = [same / part.sum(dim=0).clamp_min(_SMALLEST_SHARE) for part in (first, second)]
    return 1 - (shares[0] + shares[1]).mean() / 2
