"""SLA: the labels of the source are adapted to the target, with any method."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.config import SourceLabelConfig
from qurate.data.batches import TrainingData
from qurate.networks.heads import Network
from qurate.networks.inference import infer
from qurate.runtime.compute import at_least_float32


class TargetPrototypes(nn.Module):
    """Prototypes of the classes in the target, and the labels of the source mixed with what they say.

    y~ = (1 - alpha) y + alpha p,  p_j = softmax(-t |F(x) - c_j|),  c_j = mean of F(x_u) that is predicted as j

    A source sample is a sample of the target with a noisy label. The prototypes are made of all of D_u, after a warm-up
    and then at an interval; until then labels are as they are given.

    Paper: Yu and Lin, "Semi-Supervised Domain Adaptation with Source Label Adaptation", 2023.

    Args:
        network: F and C.
        config: alpha, t, warm-up and interval.
    """

    centers: Tensor

    def __init__(self, network: Network, config: SourceLabelConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("centers", torch.zeros(network.n_classes, network.n_features))

    def update(self, network: Network, data: TrainingData, step: int, steps: int, workers: int = 0) -> None:
        """Compute the prototypes where they are due.

        Args:
            network: F and C as they are now; in evaluation mode for it.
            data: D_t and D_u.
            step: Of the run, from 0.
            steps: Of line 1.
            workers: Processes that decode image files.
        """
        since = step - round(self.config.warmup * steps)
        if since < 0 or since % max(1, round(self.config.interval * steps)):
            return

        def look(batch: Tensor) -> Tensor:
            features = network.features(batch)
            return torch.cat([unit(features), at_least_float32(network.classifier(features))], dim=1)

        d, known = network.n_features, data.target.labels
        rows, labeled = (infer(network, part, look, workers=workers) for part in (data.unlabeled, data.target.inputs))
        predicted = rows[:, d:].argmax(dim=1)
        found = class_means(rows[:, :d], predicted, labeled[:, :d], known, len(self.centers))
        self.centers.copy_(found)

    def adapt(self, labels: Tensor, features: Tensor) -> Tensor:
        """The labels of source samples, (B,) int64, or mixed with what prototypes say of their features, (B, K)."""
        if not self.centers.any():
            return labels
        said = prototype_probabilities(unit(features.detach()), self.centers, self.config.temperature)
        return torch.lerp(F.one_hot(labels, len(self.centers)).to(said.dtype), said, self.config.weight)


def unit(features: Tensor) -> Tensor:
    """Features with length 1, as the cosine classifier sees them."""
    return F.normalize(at_least_float32(features), dim=1)


def class_means(features: Tensor, predicted: Tensor, labeled: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """c_j = mean of the unlabelled features that are predicted as j; of the labelled ones of j where there are none.

    Args:
        features: Of D_u, (N_u, d).
        predicted: Their predicted classes, (N_u,) int64.
        labeled: Features of D_t, (N_t, d).
        labels: Their classes, (N_t,) int64.
        n_classes: K.

    Returns:
        (K, d); zero for a class without either.
    """
    means, counts = means_and_counts(features, predicted, n_classes)
    of_labeled, _ = means_and_counts(labeled, labels.to(labeled.device), n_classes)
    return torch.where(counts.unsqueeze(1) > 0, means, of_labeled)


def means_and_counts(rows: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Mean row of each class, (K, d), zero for a class without rows; and how many it has, (K,)."""
    sums = rows.new_zeros(n_classes, rows.shape[1]).index_add_(0, labels, rows)
    counts = labels.bincount(minlength=n_classes)
    return sums / counts.clamp_min(1).unsqueeze(1), counts


def prototype_probabilities(features: Tensor, centers: Tensor, temperature: float) -> Tensor:
    """p_j = softmax over the classes of -t |F(x) - c_j|: (N, d), (K, d) to (N, K).

    A class without a prototype, whose c_j is zero, is at no distance that counts: its p_j is 0.
    """
    distances = torch.cdist(features, centers.to(features.dtype))
    return F.softmax(-temperature * distances.masked_fill(~centers.any(dim=1), torch.inf), dim=1)
