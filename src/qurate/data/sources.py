"""Several source domains: how much each counts in training, given or learned from the few labelled target samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from qurate.data.listing import describe_sources
from qurate.data.own_images import Parts
from qurate.data.samples import DataError, Labeled, Split

SourceWeights: TypeAlias = Literal["learned", "images"] | tuple[float, ...]
"""How much each source counts: learned from the labelled target, by its images as if all were one folder, or given."""

SCALE = 30.0
"""Of the cosines to class means. Our choice: that of the cosine classifier."""
LEAST = 0.01
"""Smallest weight that is learned: no source is left out unless a person says so. Our choice."""
EM_STEPS = 50
"""Steps in which the weights are learned. Our choice: more change none by a hundredth."""
_SLICE = 2**14  # rows that are made float64 at a time: 0.2 GB of embeddings 1280 wide


def learn_weights(source: Labeled, domains: Tensor, target: Labeled, n_classes: int) -> Tensor:
    """The share of each source domain that explains the labelled target best.

    Each domain has a classifier by its own class means, p_m(k | x) = softmax of SCALE * cos(x, mean of class k in m),
    on embeddings of unit length centred on their domain. The weights maximise the likelihood of the labels of D_t under
    the mixture sum_m w_m p_m(y | x), by expectation maximisation from equal weights. Labels of D_t are not among those
    that the means are made of, so no domain can memorise them.

    Args:
        source: D_s, embeddings (N, d).
        domains: Domain of each, (N,) int64 from 0 on.
        target: D_t, embeddings.
        n_classes: K. A class that a domain lacks has probability 0 there.

    Returns:
        (M,) float64, adding up to 1.
    """
    assert isinstance(source.inputs, Tensor)
    assert isinstance(target.inputs, Tensor)
    rows = _centered(target.inputs, _mean_direction(target.inputs))
    likelihoods = []
    for number in range(int(domains.max()) + 1):
        chosen = domains == number
        inputs, labels = source.inputs[chosen], source.labels[chosen]
        means, middle = torch.zeros(n_classes, rows.shape[1], dtype=rows.dtype), _mean_direction(inputs)
        for part, classes in zip(inputs.split(_SLICE), labels.split(_SLICE), strict=True):
            means.index_add_(0, classes, _centered(part, middle))
        there = torch.bincount(labels, minlength=n_classes) > 0
        cosines = rows @ F.normalize(means, dim=1).T
        chances = (SCALE * cosines).masked_fill(~there, -torch.inf).softmax(dim=1)
        likelihoods.append(chances.gather(1, target.labels[:, None]).squeeze(1))
    table = torch.stack(likelihoods, dim=1)
    table = table[table.sum(dim=1) > 0]
    weights = torch.full((table.shape[1],), 1 / table.shape[1], dtype=torch.float64)
    for _ in range(EM_STEPS if len(table) else 0):
        shares = weights * table
        weights = (shares / shares.sum(dim=1, keepdim=True)).mean(dim=0)
    weights = weights.clamp_min(LEAST)
    return weights / weights.sum()


def _mean_direction(inputs: Tensor) -> Tensor:
    sums = [F.normalize(part.double(), dim=1).sum(dim=0) for part in inputs.split(_SLICE)]
    return torch.stack(sums).sum(dim=0) / len(inputs)


def _centered(inputs: Tensor, middle: Tensor) -> Tensor:
    return F.normalize(F.normalize(inputs.double(), dim=1) - middle, dim=1)


def weigh_domains(source: Labeled, domains: Tensor, weights: Tensor) -> Labeled:
    """D_s of which each batch holds a share of each domain by its weight, within a domain all alike.

    Weights in proportion to the images of the domains leave D_s as it is: all domains joined.
    """
    sizes = torch.bincount(domains, minlength=len(weights)).double()
    each = weights.double() / sizes
    if torch.allclose(each, each[:1]):
        return replace(source, weights=None)
    return replace(source, weights=each[domains])


def choose_weights(
    asked: SourceWeights, source: Labeled, domains: Tensor, target: Labeled, n_classes: int
) -> tuple[Tensor, str]:
    """The share of each source domain, (M,) float64 adding up to 1, and where it comes from, in a word."""
    if isinstance(asked, tuple):
        weights = torch.tensor(asked, dtype=torch.float64)
        return weights / weights.sum(), "given"
    if asked == "learned" and isinstance(source.inputs, Tensor):
        return learn_weights(source, domains, target, n_classes), "learned"
    return torch.bincount(domains).double() / len(domains), "by images"


def weigh_sources(
    parts: Parts, split: Split, asked: SourceWeights
) -> tuple[Parts, Split, list[dict[str, Any]], list[str]]:
    """Parts and split with the weights of several sources, what config.json says of each, and notes; one source stays.

    Args:
        parts: Of image files.
        split: What is trained on: embeddings of the same images, or the images themselves, for which no weight is
            learned.
        asked: The option.

    Raises:
        DataError: If a source has no image left.
    """
    if not parts.sources:
        return parts, split, [], []
    domains, by_name = parts.source_domains, parts.source_labels
    if empty := [name for name, labels in by_name.items() if not labels]:
        raise DataError(f"source: '{empty[0]}' has no image of the classes of the run. Leave it out, or add images.")
    weights, how = choose_weights(asked, split.source, domains, split.target_labeled, split.n_classes)
    shares = weights.tolist()
    notes = [
        f"{said} Its weight is {share:.0%} ({how}); it has {len(labels) / len(domains):.0%} of the images."
        for said, labels, share in zip(describe_sources(by_name, split.classes), by_name.values(), shares, strict=True)
    ]
    about = [
        {"name": name, "weight": share, "images": {each: Counter(labels)[each] for each in split.classes}}
        for (name, labels), share in zip(by_name.items(), shares, strict=True)
    ]
    weighed = replace(split, source=weigh_domains(split.source, domains, weights))
    files = replace(parts.split, source=replace(parts.split.source, weights=weighed.source.weights))
    return replace(parts, split=files), weighed, about, notes
