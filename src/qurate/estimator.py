"""The scikit-learn face: fit, predict and score on arrays of features."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from qurate.combined import CombinedModel
from qurate.config import Bottleneck, Device, NetworkConfig, RunConfig
from qurate.data.domains import DataWarning
from qurate.data.samples import DataError, Labeled, Split, Unlabeled
from qurate.data.sources import SourceWeights, choose_weights, weigh_domains
from qurate.errors import ConfigError
from qurate.presets import Preset, make_config
from qurate.runtime.paths import list_some
from qurate.runtime.validation import Rate, find_problem, show
from qurate.selection.algorithm import fit
from qurate.selection.crossfit import Product, fit_product, leave_out

Mask = NDArray[np.bool_]


class SSDAClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Semi-supervised domain adaptation of a classifier on features, such as the embeddings of a frozen backbone.

    Rows of X are taken as they are; scale them before if their columns differ in size. A row is of one of three parts,
    by its label and by the sign of its domain:

    - D_s, labelled source: `sample_domain` >= 0, and a source domain of its own for each number;
    - D_t, labelled target: `sample_domain` < 0;
    - D_u, unlabelled target: `sample_domain` < 0 and no label.

    The sign is skada's convention, and so is the default without `sample_domain`: unlabelled rows are the target, all
    others the source, of which a `DataWarning` tells. A row without label has y = -1 where labels are numbers, '' or
    None where they are strings.

    `fit` asks for `sample_domain` where scikit-learn routes metadata
    (`sklearn.set_config(enable_metadata_routing=True)`), so a Pipeline, GridSearchCV or cross_val_score passes it on.
    `score` leaves unlabelled rows out.

    Where a part is missing the others stand in for it, so that the estimator serves the neighbouring problems too:
    without D_u it learns S+T, plain supervised training on what is labelled; without D_t (unsupervised adaptation) or
    without D_s (semi-supervised learning) the labelled rows there are count as both.

    Args:
        method: How the network learns: one of `qurate.METHODS`, or a row of the paper's tables such as 'TML_SPL'.
        selector: Which pseudo-labels to trust: one of `qurate.SELECTORS`; None for the selector that `method`
            names, 'dqn' with preset 'paper', or else 'adaptive'.
        preset: 'qurate' or 'paper', the set-up of selector dqn.
        bottleneck: Layer before the cosine classifier: 'normalized', 'linear', 'none'.
        features: Width of the bottleneck.
        steps: Training steps before selection.
        rounds: Most rounds of selection; None for the preset's number, or 8.
        round_steps: Training steps per round; None for the preset's number, or 200.
        learning_rate: Of SGD.
        source_weights: How much each of several source domains counts: 'images' as if all were one, 'learned' from the
            labelled target, or a table of positive numbers by `sample_domain`.
        calibrate: Whether `predict_proba` gives chances, as `qurate.adapt` does. S+T and three folds of both models are
            trained too, about eight trainings in place of one; rows that fit no class are not adapted to.
        device: 'auto', 'cpu', 'cuda', 'mps'.
        random_state: Seed, generator, or None for a new seed at every fit.

    Attributes:
        classes_: The labels, sorted, (K,).
        n_features_in_: Width of X.
        network_: The trained network, on the CPU in double precision.
        model_: The network and what stands beside it: S+T, temperatures and, with `calibrate`, the score of belonging,
            whose `known` and `flags` tell how well rows fit any class and which fit none.
        source_weights_: The share of each source domain in a batch of source rows, by `sample_domain`; empty where
            source or labelled target is missing.
        transduction_: y with the trusted pseudo-labels filled in, (n,); rows that none was trusted for stay unlabelled.
        stopped_: Why selection ended.

    Example:
        >>> X, rows = np.tile(np.eye(2), (20, 1)), np.arange(40)
        >>> y = np.where(rows < 30, rows % 2, -1)  # the last ten have no label
        >>> model = SSDAClassifier(selector="none", steps=50, random_state=0)
        >>> model.fit(X, y, sample_domain=np.where(rows < 20, 1, -2)).predict([[1, 0], [0, 1]])
        array([0, 1])
    """

    __metadata_request__fit = {"sample_domain": True}  # noqa: RUF012  # scikit-learn's way to say what is asked for

    def __init__(
        self,
        method: str = "tml",
        selector: str | None = None,
        *,
        preset: Preset = "qurate",
        bottleneck: Bottleneck = "normalized",
        features: int = 512,
        steps: int = 1500,
        rounds: int | None = None,
        round_steps: int | None = None,
        learning_rate: float = 0.01,
        source_weights: Literal["learned", "images"] | Mapping[int, float] = "images",
        calibrate: bool = False,
        device: Device = "auto",
        random_state: int | np.integer[Any] | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.selector = selector
        self.preset = preset
        self.bottleneck = bottleneck
        self.features = features
        self.steps = steps
        self.rounds = rounds
        self.round_steps = round_steps
        self.learning_rate = learning_rate
        self.source_weights = source_weights
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_domain: ArrayLike | None = None) -> Self:  # noqa: N803
        """Adapt to the target rows.

        Args:
            X: Features of all rows, (n, p).
            y: Labels, (n,); -1, '' or None where unlabelled.
            sample_domain: Not negative for source, negative for target, (n,); rows of one number are one domain. None:
                unlabelled rows are the target.
        """
        self._check_source_weights()
        rows, labels = validate_data(self, X, y, dtype=np.float32)
        known = ~_is_unlabeled(labels)
        check_classification_targets(labels[known])
        _refuse_negative(labels[known])
        self.classes_, codes = np.unique(labels[known], return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"SSDAClassifier.fit: y must have labels of at least two classes, got {len(self.classes_)} class. "
                "-1 (or '' or None among strings) marks a row without label and is no class."
            )
        target = _is_target(sample_domain, known)
        inputs = torch.from_numpy(np.array(rows))  # a copy: the caller's may be read-only
        every = torch.full((len(rows),), -1)
        every[torch.from_numpy(known)] = torch.from_numpy(codes)
        split = _split_rows(inputs, every, known, target, tuple(map(str, self.classes_)))
        if sample_domain is None or not (known & target).any() or not (known & ~target).any():
            self.source_weights_: dict[Any, float] = {}
        else:
            split = self._weigh_sources(split, column_or_1d(sample_domain)[known & ~target])
        config, unlabeled, baseline = self._config(has_unlabeled=not known.all()), np.flatnonzero(~known), None
        product = self._fit_product(split, config, both=bool((known & target).any() and (known & ~target).any()))
        if product is not None:
            split, kept = leave_out(split, product.flagged)
            baseline = product.label_unlabeled(split)
            if len(unlabeled):
                unlabeled = unlabeled[kept.numpy()]
        adaptation = fit(split, config, baseline=baseline)
        self.network_ = adaptation.method.network.cpu().double().eval()
        self.model_ = CombinedModel(self.network_) if product is None else product.of(self.network_)
        if self.model_.baseline is not None:
            self.model_.baseline.cpu().double().eval()
        self.stopped_ = adaptation.stopped
        self.transduction_ = np.array(labels)
        trusted = unlabeled[adaptation.positives.indices.numpy()]
        self.transduction_[trusted] = self.classes_[adaptation.positives.labels.numpy()]
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Class probabilities in the order of `classes_`, (n, K).

        Without `calibrate` they are usually too high: use them to rank samples, not as chances.
        """
        check_is_fitted(self)
        # Double precision, so that the probabilities of a row do not depend on the rows beside it.
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        inputs = torch.from_numpy(np.array(rows))
        log_probs = self.model_.predict(inputs).log_probs.double()
        probabilities: NDArray[np.float64] = log_probs.softmax(dim=1).numpy()
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row, (n,)."""
        columns = self.predict_proba(X).argmax(axis=1)  # first, for it checks that the estimator is fitted
        predicted: NDArray[Any] = self.classes_[columns]
        return predicted

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """Accuracy on the labelled rows.

        Args:
            X: Features, (n, p).
            y: Labels, (n,); rows of -1, '' or None are left out.
            sample_weight: Weights of the rows, (n,).

        Raises:
            DataError: If no row has a label.
        """
        predicted, labels = self.predict(X), column_or_1d(y)
        check_consistent_length(predicted, labels)
        known = ~_is_unlabeled(labels)
        if not known.any():
            raise DataError(
                "SSDAClassifier.score: y must have labelled rows, got none. Where a search holds rows out, its splits "
                "must hold out labelled ones."
            )
        weights = None if sample_weight is None else column_or_1d(sample_weight)[known]
        return float(accuracy_score(labels[known], predicted[known], sample_weight=weights))

    def _check_source_weights(self) -> None:
        """Refuse what is none of the allowed, also where there is one source domain."""
        asked = self.source_weights
        if isinstance(asked, Mapping):
            is_allowed = not find_problem(tuple(asked.values()), tuple[Rate, ...])
        else:
            is_allowed = isinstance(asked, str) and asked in ("learned", "images")
        if not is_allowed:
            raise ConfigError(
                "SSDAClassifier: source_weights must be 'learned', 'images' or a table of positive numbers by "
                f"sample_domain, got {show(asked)}."
            )

    def _weigh_sources(self, split: Split, numbers: NDArray[Any]) -> Split:
        """The split with a weight for each source domain; sets `source_weights_`."""
        names, positions = np.unique(numbers, return_inverse=True)
        domains, asked = torch.from_numpy(positions), self.source_weights
        chosen: SourceWeights
        if isinstance(asked, Mapping):
            if not set(names.tolist()) <= set(asked):
                raise ConfigError(
                    "SSDAClassifier: source_weights must have a number for each source domain, "
                    f"{list_some(names.tolist())}, got {show(asked)}."
                )
            chosen = tuple(float(asked[name]) for name in names.tolist())
        else:
            chosen = asked
        if len(names) == 1:
            self.source_weights_ = {names[0].item(): 1.0}
            return split
        weights, _ = choose_weights(chosen, split.source, domains, split.target_labeled, split.n_classes)
        self.source_weights_ = dict(zip(names.tolist(), weights.tolist(), strict=True))
        return replace(split, source=weigh_domains(split.source, domains, weights))

    def _fit_product(self, split: Split, config: RunConfig, *, both: bool) -> Product | None:
        """What calibrates the model; None if that is not asked for, or impossible."""
        product = fit_product(split, config) if self.calibrate and both else None
        if self.calibrate and product is None:
            warnings.warn(
                "SSDAClassifier.fit: probabilities are not calibrated. That needs labelled source rows, and a class "
                "with two labelled target rows or more.",
                DataWarning,
                stacklevel=3,
            )
        return product

    def _config(self, *, has_unlabeled: bool) -> RunConfig:
        given = self.random_state
        seed = int(given) if isinstance(given, Integral) else int(check_random_state(given).randint(2**31))
        return make_config(
            self.method if has_unlabeled else "source_target",
            self.selector if has_unlabeled else "none",
            preset=self.preset if has_unlabeled else "qurate",
            network=NetworkConfig(bottleneck=self.bottleneck, features=self.features),
            steps=self.steps,
            rounds=self.rounds,
            round_steps=self.round_steps,
            learning_rate=self.learning_rate,
            seed=seed,
            device=self.device,
        )


def _is_unlabeled(labels: NDArray[Any]) -> Mask:
    """Which rows have no label: -1 among numbers, '' or None among strings."""
    if labels.dtype.kind not in "iufOUT":
        return np.zeros(len(labels), dtype=bool)
    return np.array([label is None or label in ("", -1) for label in labels.tolist()])


def _refuse_negative(labels: NDArray[Any]) -> None:
    """A label that only looks like none: a negative number other than -1, or the text of one."""

    def is_negative(label: object) -> bool:
        if isinstance(label, str):
            return re.fullmatch(r"\s*-\s*\d+(\.0*)?\s*", label) is not None
        return isinstance(label, Real) and label < 0

    if strange := [label for label in labels.tolist() if is_negative(label)]:
        raise DataError(
            f"SSDAClassifier.fit: a label of y must not be negative, nor the text of a negative number, got "
            f"{strange[0]!r} in {len(strange)} rows. A row without label has the number -1, or '' or "
            "None among strings."
        )


def _is_target(sample_domain: ArrayLike | None, known: Mask) -> Mask:
    if sample_domain is None:
        if not known.all():
            warnings.warn(
                f"SSDAClassifier.fit: sample_domain is not given, so all {int(known.sum())} labelled rows count as "
                "source. Pass it, negative for the target, if some of them are of the target; a Pipeline or a search "
                "passes it on after sklearn.set_config(enable_metadata_routing=True).",
                DataWarning,
                stacklevel=3,
            )
        return ~known
    domains = column_or_1d(sample_domain)
    check_consistent_length(domains, known)
    if domains.dtype.kind not in "biuf" or not np.isfinite(domains).all():
        raise DataError(
            "SSDAClassifier.fit: sample_domain must be finite numbers, negative for target and others for source, "
            f"got dtype {domains.dtype}" + (" with NaN or infinity." if domains.dtype.kind == "f" else ".")
        )
    target = np.asarray(domains < 0)
    if strange := int((~known & ~target).sum()):
        raise DataError(
            f"SSDAClassifier.fit: unlabelled rows must be of the target (sample_domain < 0), but {strange} are of the "
            "source. Leave them out, or give them labels."
        )
    return target


def _split_rows(inputs: Tensor, labels: Tensor, known: Mask, target: Mask, classes: tuple[str, ...]) -> Split:
    """D_s, D_t and D_u, with labelled rows standing in for a part that is missing."""

    def labeled(mask: Mask) -> Labeled:
        chosen = torch.from_numpy(mask if mask.any() else known)
        return Labeled(inputs[chosen], labels[chosen])

    unlabeled = torch.from_numpy(~known if not known.all() else known)
    return Split(classes, labeled(known & ~target), labeled(known & target), Unlabeled(inputs[unlabeled]))
