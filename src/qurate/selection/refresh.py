"""Full fine-tuning with selection: a round's trial networks train on embeddings of the round's backbone."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from qurate.config import EpisodeConfig, TrainingConfig
from qurate.data.batches import TrainingData, in_shares, stream_in_order
from qurate.data.samples import Inputs, Labeled, take
from qurate.methods import Method
from qurate.runtime.machine import torch_threads
from qurate.runtime.precision import at_least_float32
from qurate.training import Trainer


def trains_backbone(method: Method) -> bool:
    """Whether the backbone is trained too, or the inputs are its embeddings already."""
    return any(True for _ in method.network.backbone.parameters())


def on_embeddings(
    trainer: Trainer, data: TrainingData, config: EpisodeConfig, rng: torch.Generator
) -> tuple[Trainer, TrainingData]:
    """F and C of a round without their backbone, and the data as that backbone embeds it now (decision 27).

    Where the inputs are embeddings already, both as they are.

    Of D_s no more is embedded than the actions of a round can draw; whole epochs take all of it.

    Args:
        trainer: F and C of the round; not changed.
        data: D_s, D_t, D_u as the backbone takes them.
        config: How many actions, of how many steps.
        rng: Chooses the part of D_s.

    Returns:
        A trainer that has not stepped yet, at the same place of the schedule, and the embedded data.
    """
    method, source = trainer.method, data.source
    if not trains_backbone(method):
        return trainer, data
    most = config.actions * config.trial_steps * trainer.config.batch_source
    if 0 < most < len(source):
        chosen = torch.randperm(len(source), generator=rng)[:most]
        source = Labeled(take(source.inputs, chosen), source.labels[chosen])
    embedded = TrainingData(
        Labeled(embed(method, source.inputs, trainer.config), source.labels),
        Labeled(embed(method, data.target.inputs, trainer.config), data.target.labels),
        embed(method, data.unlabeled, trainer.config),
    )
    head = Trainer(head_of(method), trainer.config, trainer.fabric, step=trainer.step, total_steps=trainer.total_steps)
    return head, embedded


def head_of(method: Method) -> Method:
    """A copy of the method that takes embeddings: the same bottleneck, classifier and losses, no backbone."""
    head = copy.deepcopy(method, {id(method.network.backbone): nn.Identity()})
    head.network.transform = None
    return head


@torch.no_grad()
def embed(method: Method, inputs: Inputs, config: TrainingConfig) -> Tensor:
    """What the backbone makes of all inputs, prepared for testing, in evaluation mode: (N, width) on the CPU."""
    return in_shares(partial(_embed, method, config), inputs)


def _embed(method: Method, config: TrainingConfig, inputs: Inputs) -> Tensor:
    network, device = method.network, next(method.parameters()).device
    was_training = method.training
    method.eval()
    in_memory = isinstance(inputs, Tensor)
    batches = stream_in_order(
        inputs, batch_size=512 if in_memory else 32, transform=network.transform, workers=config.workers
    )
    with torch_threads(config.threads or int(in_memory)):
        rows = [at_least_float32(network.backbone(batch.to(device))).cpu() for batch in batches]
    method.train(was_training)
    return torch.cat(rows)
