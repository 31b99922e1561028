"""Cross-fitting: models that were trained without some labelled target images, and their predictions of those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from qurate.config import MethodConfig, RunConfig, SelectionConfig
from qurate.data.samples import Labeled, Split, take
from qurate.networks.inference import log_probabilities
from qurate.runtime.machine import torch_threads
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback

MakeCallback = Callable[[str, int], Callback]
"""Called before a training with its name and number of steps; makes the callback of that training."""


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

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return dict(vars(self))

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> HeldOut:
        """What `tensors` gave; other names may stand beside."""
        return cls(*(tensors[field.name] for field in fields(cls)))

    def fits(self, split: Split, images: Tensor) -> bool:
        """Whether it can be of these images of a split, as far as shapes and values tell."""
        shape = (len(images), split.n_classes)
        return (
            torch.equal(self.images, images)
            and torch.equal(self.labels, split.target_labeled.labels[images])
            and all(
                each.shape == shape and each.is_floating_point() and not bool(each.isnan().any())
                for each in (self.adapted, self.baseline)
            )
        )


def fit_fold(
    split: Split, config: RunConfig, images: Tensor, *, name: str = "fold", make_callback: MakeCallback | None = None
) -> HeldOut:
    """Train both models without some labelled target images; their predictions of those.

    Args:
        split: D_s, D_t, D_u.
        config: The run; S+T has the same network, training and seed.
        images: Positions in D_t that are held out, (n,) int64.
        name: Of the fold, for `make_callback`.
        make_callback: See `MakeCallback`.
    """
    log_probs = []
    for title, run in (("adapted", config), ("S+T", baseline_of(config))):
        callbacks = [make_callback(f"{name}, {title}", run.total_steps)] if make_callback else []
        log_probs.append(fit_without(split, run, images, callbacks))
    return HeldOut(images, split.target_labeled.labels[images].cpu(), *log_probs)


def fit_without(split: Split, config: RunConfig, images: Tensor, callbacks: Sequence[Callback] = ()) -> Tensor:
    """Train one model without some labelled target images; its log-probabilities of those, (n, K)."""
    part, hidden = hold_out(split, images)
    in_memory = isinstance(hidden.inputs, Tensor)
    with torch_threads(config.execution.threads or int(in_memory)):  # the last bit can depend on their number
        return log_probabilities(fit(part, config, callbacks=callbacks).method.network, hidden.inputs)


def hold_out(split: Split, images: Tensor) -> tuple[Split, Labeled]:
    """The split without some labelled target images, and those."""
    labeled = split.target_labeled
    stays = torch.ones(len(labeled), dtype=torch.bool)
    stays[images] = False
    kept = stays.nonzero().squeeze(1)
    part = replace(split, target_labeled=Labeled(take(labeled.inputs, kept), labeled.labels[kept]))
    return part, Labeled(take(labeled.inputs, images), labeled.labels[images])


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


def baseline_of(config: RunConfig) -> RunConfig:
    """S+T with the network, training and seed of a run."""
    return replace(config, method=MethodConfig.of("source_target"), selection=SelectionConfig())


def is_baseline(config: RunConfig) -> bool:
    """Whether a run is S+T itself."""
    return config.method.name == "source_target" and config.selection.selector.name == "none"
