"""Cross-fitting: models that were trained without some labelled target images, and their predictions of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from qurate.calibration import Calibration, combine, fit_combination, fit_temperature
from qurate.combined import CombinedModel
from qurate.config import RunConfig
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled, join, take
from qurate.networks.heads import Network
from qurate.networks.inference import infer, log_probabilities
from qurate.novelty import HeldOutScores, Novelty, ScoreFitter, fit_novelty
from qurate.presets import baseline_of, is_baseline
from qurate.runtime.compute import torch_threads
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback

FOLDS = 3
"""Folds over the labelled images where they are few. Our choice: with the usual three shots, two stay to train on."""


@dataclass(frozen=True, eq=False)
class Fold:
    """What one model, trained without some labelled target images, says of those.

    Args:
        images: Positions in D_t, (n,) int64.
        labels: Their classes, (n,) int64.
        log_probs: Log-probabilities, (n, K).
        cosines: Where there is `unlabeled`: the largest cosine of each of D_u and then of each image, (N_u + n,).
        unlabeled: Of S+T on embeddings, log-probabilities of D_u, (N_u, K), which help to label it where the adapted
            model is trained without these images; else empty, (0, K).
    """

    images: Tensor
    labels: Tensor
    log_probs: Tensor
    cosines: Tensor
    unlabeled: Tensor

    @classmethod
    def join(cls, parts: Sequence[Fold]) -> Fold:
        """The held-out rows of all of them, in their order; nothing of D_u."""
        rows = [vars(replace(part, cosines=part.cosines[:0], unlabeled=part.unlabeled[:0])).values() for part in parts]
        return cls(*(torch.cat(columns) for columns in zip(*rows, strict=True)))

    def unlabeled_log_probs(self, kept: Tensor) -> Tensor | None:
        """Log-probabilities of these samples of D_u followed by the images; None where it holds none of D_u."""
        return torch.cat([self.unlabeled[kept], self.log_probs]) if len(self.unlabeled) else None

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return dict(vars(self))

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Fold:
        """What `tensors` gave; other names may stand beside."""
        return cls(*(tensors[field.name] for field in fields(cls)))

    def fits(self, split: Split, images: Tensor) -> bool:
        """Whether it can be of these images of a split, as far as shapes and values tell."""
        rows = len(split.target_unlabeled) if len(self.unlabeled) else 0
        shapes = {
            "log_probs": (len(images), split.n_classes),
            "cosines": (rows + len(images) if rows else 0,),
            "unlabeled": (rows, split.n_classes),
        }
        return (
            torch.equal(self.images, images)
            and torch.equal(self.labels, split.target_labeled.labels[images])
            and all(
                (each := getattr(self, name)).shape == shape
                and each.is_floating_point()
                and not bool(each.isnan().any())
                for name, shape in shapes.items()
            )
        )


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions of both models for labelled target images that neither saw; one row per image and repetition.

    Args:
        images: Positions in D_t, (n,) int64.
        labels: Their classes, (n,) int64.
        adapted: Log-probabilities of the adapted model, (n, K).
        baseline: Log-probabilities of S+T, (n, K).
    """

    images: Tensor
    labels: Tensor
    adapted: Tensor
    baseline: Tensor

    @classmethod
    def join(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """The rows of all of them, in their order."""
        return cls(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))

    @classmethod
    def of(cls, adapted: Sequence[Fold], baseline: Sequence[Fold]) -> HeldOut:
        """From the folds of both models, which held out the same images."""
        first, second = Fold.join(adapted), Fold.join(baseline)
        return cls(first.images, first.labels, first.log_probs, second.log_probs)

    def combined(self, calibration: Calibration) -> HeldOut:
        """With the combined, calibrated model in the place of the adapted one."""
        return replace(self, adapted=combine(self.adapted, self.baseline, calibration))


def fit_fold(
    split: Split,
    config: RunConfig,
    images: Tensor,
    callbacks: Sequence[Callback] = (),
    *,
    baseline: Tensor | None = None,
) -> Fold:
    """Train a model without some labelled target images; what it says of those.

    Args:
        split: D_s, D_t, D_u.
        config: The run.
        images: Positions in D_t that are held out, (n,) int64.
        callbacks: Of that training.
        baseline: Log-probabilities of D_u followed by the images, by S+T trained without these, (N_u + n, K).
    """
    part, hidden = hold_out(split, images)
    in_memory = isinstance(hidden.inputs, Tensor)
    with torch_threads(config.execution.threads or int(in_memory)):  # the last bit can depend on their number
        network = fit(part, config, callbacks=callbacks, baseline=baseline).method.network
        log_probs = log_probabilities(network, hidden.inputs)
        unlabeled, cosines = log_probs[:0], torch.zeros(0)
        if in_memory and is_baseline(config):
            unlabeled = log_probabilities(network, split.target_unlabeled.inputs)
            cosines = largest_cosines(network, part.target_unlabeled.inputs)
    return Fold(images, split.target_labeled.labels[images].cpu(), log_probs, cosines, unlabeled)


def largest_cosines(network: Network, inputs: Inputs) -> Tensor:
    """The cosine of each input to the nearest class weight, (N,)."""
    return infer(network, inputs, lambda batch: network.classifier.cosines(network.features(batch)).amax(dim=1))


def leave_out(split: Split, flagged: Tensor) -> tuple[Split, Tensor]:
    """The split without the flagged images of D_u, (N_u,) bool, and the positions of those that stay."""
    kept = (~flagged).nonzero().squeeze(1)
    if len(kept) == len(flagged):
        return split, kept
    part = split.target_unlabeled
    sealed = None if part.sealed is None else part.sealed.take(kept)
    return replace(split, target_unlabeled=Unlabeled(take(part.inputs, kept), sealed)), kept


def score_novelty(
    split: Split, baseline: Network, folds: Sequence[Fold | HeldOutScores], none: Tensor | None = None
) -> tuple[Novelty, Tensor]:
    """How well images fit the classes by S+T, and which of D_u fit none; see `fit_novelty`.

    Args:
        split: D_s, D_t, D_u as embeddings.
        baseline: S+T.
        folds: Folds of S+T, or what they gave in the run before.
        none: Embeddings of images that people said are of no class.
    """
    unlabeled = split.target_unlabeled.inputs
    assert isinstance(unlabeled, Tensor), "embeddings"
    fitter = ScoreFitter(split.source, split.target_labeled, unlabeled, none)
    scored = [fitter.score_fold(fold.images, fold.cosines) if isinstance(fold, Fold) else fold for fold in folds]
    return fit_novelty(fitter, largest_cosines(baseline, unlabeled), scored)


@dataclass(frozen=True, eq=False)
class Product:
    """What `adapt` makes of a trained network: S+T beside it, temperatures, and which images fit no class.

    Args:
        calibration: How the adapted network and S+T are combined.
        baseline: S+T; None where the network stands alone.
        novelty: How well images fit the classes; None where that is not measured.
        flagged: Which images of D_u fit none and are not trained on, (N_u,) bool.
    """

    calibration: Calibration
    baseline: Network | None
    novelty: Novelty | None
    flagged: Tensor

    def of(self, network: Network) -> CombinedModel:
        """The model, with this network."""
        return CombinedModel(network, self.baseline, self.calibration, self.novelty)

    def label_unlabeled(self, split: Split) -> Tensor | None:
        """Log-probabilities of D_u by S+T, (N_u, K), which help to label it; None where there is no S+T."""
        return None if self.baseline is None else log_probabilities(self.baseline, split.target_unlabeled.inputs)


def fit_product(split: Split, config: RunConfig) -> Product | None:
    """Train S+T and the folds of both models, as `adapt` does; None if no labelled image can be held out.

    Args:
        split: D_s, D_t, D_u.
        config: Of the adapted network, which is trained afterwards, on what is not flagged.
    """
    folds = draw_folds(split.target_labeled.labels, FOLDS, seed=config.seed)
    if not folds:
        return None
    if config.network.backbone != "none":  # two networks with a backbone each are no product of `adapt`
        alone = _calibrate_alone([fit_fold(split, config, images) for images in folds])
        return Product(alone, None, None, torch.zeros(len(split.target_unlabeled), dtype=torch.bool))
    plain = baseline_of(config)
    baseline = fit(split, plain).method.network
    of_baseline = [fit_fold(split, plain, images) for images in folds]
    novelty, flagged = score_novelty(split, baseline, of_baseline)
    if is_baseline(config):
        return Product(_calibrate_alone(of_baseline), None, novelty, flagged)
    part, kept = leave_out(split, flagged)
    of_adapted = [fit_fold(part, config, fold.images, baseline=fold.unlabeled_log_probs(kept)) for fold in of_baseline]
    both = HeldOut.of(of_adapted, of_baseline)
    return Product(fit_combination(both.adapted, both.baseline, both.labels), baseline, novelty, flagged)


def _calibrate_alone(folds: Sequence[Fold]) -> Calibration:
    held_out = Fold.join(folds)
    temperature = fit_temperature(held_out.log_probs, held_out.labels)
    return Calibration(temperature, "held-out images", len(held_out.labels))


def hold_out(split: Split, images: Tensor) -> tuple[Split, Labeled]:
    """The split with some labelled target images moved to the end of D_u, without their labels, and those images.

    A model is surer of images that it adapted to than of others, so what it says of held-out images stands for what it
    says of D_u only if it adapted to them too.
    """
    labeled, unlabeled = split.target_labeled, split.target_unlabeled
    stays = torch.ones(len(labeled), dtype=torch.bool)
    stays[images] = False
    kept = stays.nonzero().squeeze(1)
    hidden = Labeled(take(labeled.inputs, images), labeled.labels[images])
    part = replace(
        split,
        target_labeled=Labeled(take(labeled.inputs, kept), labeled.labels[kept]),
        target_unlabeled=Unlabeled(join(unlabeled.inputs, hidden.inputs)),
    )
    return part, hidden


def draw_folds(labels: Tensor, folds: int, *, seed: int) -> tuple[Tensor, ...]:
    """Folds in which each image of a class with two or more is held out once; every class keeps one to train on.

    Args:
        labels: Of D_t, (N,) int64.
        folds: How many; there may be fewer, for none is empty.
        seed: Decides which images.
    """
    place, size = shuffle_classes(labels, seed=seed)
    found = [((place % folds == number) & (size >= 2)).nonzero().squeeze(1) for number in range(folds)]
    return tuple(fold for fold in found if len(fold))


def shuffle_classes(labels: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Of each image its place in a shuffle of its class, and the size of the class."""
    place, size = torch.zeros_like(labels), torch.zeros_like(labels)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator(seed, 7, int(label)))
        place[members[order]] = torch.arange(len(members))
        size[members] = len(members)
    return place, size
