"""Methods that take no gradient steps: a classifier is fitted to frozen embeddings once, as scikit-learn fits one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qurate.config import MethodConfig
from qurate.data.batches import TrainingData, target_labels
from qurate.data.samples import Inputs, take
from qurate.errors import ConfigError, TrainingError
from qurate.methods.base import Method
from qurate.networks.heads import CosineClassifier, Network

Array = NDArray[np.float32]


class Classifier(Protocol):
    """What is fitted: anything that gives probabilities as scikit-learn's classifiers do."""

    def predict_proba(self, rows: Array, /) -> NDArray[Any]:
        """Class probabilities, (N, d) to (N, K)."""
        ...


class Rows(NamedTuple):
    """What a method is fitted to; all rows are of unit length.

    Args:
        source: D_s, (N_s, d).
        source_labels: (N_s,) int64.
        target: D_t followed by D_p, (N_t + N_p, d).
        target_labels: (N_t + N_p,) int64.
        unlabeled: D_u, those of D_p among them, (N_u, d).
        n_classes: K.
    """

    source: Array
    source_labels: NDArray[np.int64]
    target: Array
    target_labels: NDArray[np.int64]
    unlabeled: Array
    n_classes: int

    @property
    def labeled(self) -> Array:
        """Source and labelled target, (N_s + N_t + N_p, d)."""
        return np.concatenate([self.source, self.target])

    @property
    def labels(self) -> NDArray[np.int64]:
        """Their labels."""
        return np.concatenate([self.source_labels, self.target_labels])

    def centered(self) -> tuple[Rows, Array]:
        """Each domain minus its own mean, and the mean of the target, (d,), all of whose rows count."""
        mean = np.concatenate([self.target, self.unlabeled]).mean(axis=0)
        source = self.source - self.source.mean(axis=0)
        return self._replace(source=source, target=self.target - mean, unlabeled=self.unlabeled - mean), mean


class FittedClassifier(CosineClassifier):
    """C in form: its logits are the logarithms of the probabilities that a fitted classifier gives.

    Args:
        classes: K.
        scale: s, for what selectors make of cosines.
    """

    def __init__(self, classes: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.empty(classes, 0), requires_grad=False)  # none, of K classes, on a device
        self.scale = scale
        self.fitted: Classifier | None = None

    def forward(self, features: Tensor) -> Tensor:
        """Logits, (N, d) to (N, K)."""
        if self.fitted is None:
            raise TrainingError("The method was not fitted yet. Fit it with qurate.fit.")
        probabilities = torch.from_numpy(self.fitted.predict_proba(unit_rows(features)))
        return probabilities.to(features).clamp_min(torch.finfo(features.dtype).tiny).log()


class FittedNetwork(Network):
    """F and C in form: F flattens the inputs, which are embeddings, or the pixels of digits."""

    def __init__(self, n_classes: int, scale: float) -> None:
        super().__init__(nn.Flatten(), nn.Identity(), FittedClassifier(n_classes, scale), pretrained=False)
        self.fitted_width = 0

    @property
    def n_features(self) -> int:
        """Numbers of a row that it was fitted to; 0 before."""
        return self.fitted_width

    def set_classifier(self, classifier: Classifier, width: int) -> None:
        """Answer by this one from now on."""
        assert isinstance(self.classifier, FittedClassifier)
        self.classifier.fitted, self.fitted_width = classifier, width


class FittedMethod(Method):
    """A method without gradient steps: one classifier, fitted in line 1 and again in line 20.

    Its network is one in form (`FittedNetwork`), so that all that asks a network for probabilities asks it. It has no
    weights, so it is fitted again where another would be loaded, and is not saved.

    Args:
        network: Says how many classes there are.
        config: The method's numbers.

    Raises:
        ConfigError: If the inputs are image files.
    """

    def __init__(self, network: Network, config: MethodConfig) -> None:
        if network.transform is not None:
            raise ConfigError(
                f"method '{config.name}' is fitted to embeddings and trains no backbone. Embed the images with "
                "embed_split, or leave out train='full'."
            )
        super().__init__(FittedNetwork(network.n_classes, network.classifier.scale), config)

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows. The one verb of a new method of this kind."""
        raise NotImplementedError(f"{type(self).__name__} must define fit.")

    def solve(self, data: TrainingData) -> None:
        """Fit the classifier to D_s, D_t, D_u and D_p. Paper: in place of the training of lines 1 and 20.

        Raises:
            ConfigError: If the rows of D_s have weights.
        """
        if data.source.weights is not None:
            raise ConfigError(
                f"method '{self.config.name}' draws no batches, so sources cannot have weights. Use "
                "source_weights='images', or a method that trains a network."
            )
        positives = take(data.unlabeled, data.positives[0])
        target = np.concatenate([unit_rows(data.target.inputs), unit_rows(positives)])
        rows = Rows(
            source=unit_rows(data.source.inputs),
            source_labels=data.source.labels.cpu().numpy(),
            target=target,
            target_labels=target_labels(data).cpu().numpy(),
            unlabeled=unit_rows(data.unlabeled),
            n_classes=self.network.n_classes,
        )
        assert isinstance(self.network, FittedNetwork)
        self.network.set_classifier(self.fit(rows), target.shape[1])


def unit_rows(inputs: Inputs) -> Array:
    """Inputs flattened to rows of unit length, (N, ...) to (N, d) float32."""
    assert isinstance(inputs, Tensor), "a FittedMethod has refused image files"
    rows: Array = inputs.detach().flatten(1).float().cpu().contiguous().numpy()
    # by numpy, whose sum over a row that lies in one piece does not depend on how many there are: a row of D_u is found
    # again by its numbers
    found: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return found


class Transduced:
    """A classifier that gives the rows of D_u what it found for them, and asks another about all other rows.

    Args:
        rows: D_u, (N_u, d).
        probabilities: Found for each of them, (N_u, K).
        others: For rows that are not among them.
    """

    def __init__(self, rows: Array, probabilities: NDArray[Any], others: Classifier) -> None:
        self._places = {digest: place for place, digest in enumerate(_digests(rows))}
        self._probabilities, self._others = probabilities, others

    def predict_proba(self, rows: Array, /) -> NDArray[Any]:
        """Class probabilities, (N, d) to (N, K)."""
        places = np.array([self._places.get(digest, -1) for digest in _digests(rows)])
        found: NDArray[Any] = self._probabilities[places]
        if (new := places < 0).any():
            found[new] = self._others.predict_proba(rows[new])
        return found


def _digests(rows: Array) -> Iterator[bytes]:
    return (hashlib.blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(rows))
