"""A method with a batch, what it minimises, and toy problems on which S+T fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qurate.config import ExecutionConfig, MethodConfig, NetworkConfig, RunConfig, TrainingConfig
from qurate.data.batches import Batch
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.evaluation import evaluate
from qurate.methods import Compute, Method, build_method
from qurate.networks.heads import build_network
from qurate.selection.algorithm import fit

K, WIDTH = 4, 20


def make(name: str, **numbers: Any) -> Method:
    network = build_network(NetworkConfig(bottleneck="linear", features=16), n_classes=K, input_width=WIDTH, seed=0)
    return build_method(MethodConfig.of(name, **numbers), network, seed=0)


def make_batch(seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch(
        source=torch.randn(6, WIDTH, generator=rng),
        source_labels=torch.randint(K, (6,), generator=rng),
        target=torch.randn(5, WIDTH, generator=rng),
        target_labels=torch.randint(K, (5,), generator=rng),
        unlabeled=torch.randn(8, WIDTH, generator=rng),
    )


class Recorder:
    """`minimize` that takes no step and keeps the gradients instead."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.losses: list[float] = []
        self.gradients: list[dict[str, Tensor]] = []

    def __call__(self, compute: Compute, only: Iterable[nn.Parameter] | None = None) -> dict[str, float]:
        terms = self.method(compute)
        loss = terms["loss"]
        named = dict(self.method.named_parameters())
        chosen = set(only) if only is not None else set(named.values())
        gradients = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        self.losses.append(loss.item())
        self.gradients.append(
            {
                name: torch.zeros_like(parameter) if gradient is None else gradient
                for (name, parameter), gradient in zip(named.items(), gradients, strict=True)
                if parameter in chosen
            }
        )
        return {name: value.item() for name, value in terms.items()}


def moved(
    pull: float,
    spread: float,
    *,
    to_first: bool = False,
    order: Sequence[int] = (),
    classes: int = 5,
    width: int = 24,
) -> Split:
    """Target classes lie on the way from a source class to the next one, or to the first; one label for each.

    Source and unlabelled target repeat the classes in an order, each once unless given.
    """
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(classes, width, generator=rng)
    there, n = torch.lerp(means, means[:1] if to_first else means.roll(-1, 0), pull), 300

    each = torch.arange(classes)
    repeated = torch.tensor(order or range(classes)).repeat(n)[:n]

    def draw(centers: Tensor, labels: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        return centers[labels] + noise * torch.randn(len(labels), width, generator=rng), labels

    return _split(draw(means, repeated, 0.6), draw(there, each, spread), draw(there, repeated, spread), classes)


def mislabelled(*, classes: int = 4, width: int = 16, n: int = 300) -> Split:
    """Half of source class 0 lies where the target has class 1, and source class 1 lies elsewhere."""
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(classes, width, generator=rng) * 1.2
    labels = torch.arange(n) % classes
    place = torch.where(torch.arange(n) % (2 * classes) == 0, 1, labels)
    where = means[place]
    where[labels == 1] = (means[3] + means[1]) / 2
    source = where + 0.5 * torch.randn(n, width, generator=rng)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        drawn = torch.arange(count) % classes
        return means[drawn] + 0.8 * torch.randn(count, width, generator=rng), drawn

    return _split((source, labels), draw(classes), draw(n), classes)


def _split(
    source: tuple[Tensor, Tensor], labeled: tuple[Tensor, Tensor], unlabeled: tuple[Tensor, Tensor], classes: int
) -> Split:
    hidden = Unlabeled(unlabeled[0], SealedLabels(unlabeled[1]))
    return Split(tuple("abcdefgh"[:classes]), Labeled(*source), Labeled(*labeled), hidden)


SMALL = NetworkConfig(bottleneck="linear", features=32)
NORMALIZED = NetworkConfig(bottleneck="normalized", features=32)


def accuracy(split: Split, method: MethodConfig, network: NetworkConfig = SMALL) -> float:
    """Of a network that is trained for 200 steps."""
    run = RunConfig(network, method, TrainingConfig(steps=200), execution=ExecutionConfig(device="cpu"))
    return evaluate(fit(split, run).method, split.target_unlabeled).accuracy
