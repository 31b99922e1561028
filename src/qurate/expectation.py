"""How long a run will take, from a few images and steps on this machine."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from qurate.config import DQNConfig, RunConfig
from qurate.data.batches import TrainingData, stream_in_order
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled, take
from qurate.embedding.backbone import Frozen
from qurate.embedding.embed import embed_files, image_paths
from qurate.runtime.randomness import generator
from qurate.training import start

_IMAGES = 16
_WARM_UP = 8
_STEPS = 30
_STEPS_PER_ACTION = 3.0
"""What an action of the agent costs in training steps, with its trial step and its look at D_u; measured: 1.6 on the
digits, 3.2 on embeddings of Office-31."""


def expect(split: Split, config: RunConfig, frozen: Frozen, folds: int, cache: Path | None = None) -> float:
    """Seconds that embedding, training and comparison will take, roughly.

    Args:
        split: Image files.
        config: The run.
        frozen: The backbone that embeds where only the head is trained.
        folds: Pairs of trainings for the comparison, those that run side by side counted once.
        cache: Of embeddings.
    """
    embedding, sample = 0.0, take_sample(split)
    if config.network.backbone == "none":
        seconds, sample = embed_sample(sample, frozen, cache)
        embedding = seconds * len(image_paths(split))
    adapting = config.training.steps + steps_of_rounds(config, len(split.source))
    plain = folds + (folds > 0)  # in the folds, and once on all labelled images
    steps = (1 + folds) * adapting + plain * config.training.steps
    return embedding + steps * seconds_per_step(sample, config)


def steps_of_rounds(config: RunConfig, n_source: int) -> float:
    """The rounds of a run in training steps, with what the agent costs; at most, for a run may stop early."""
    selection = config.selection
    if selection.selector.name == "none":
        return 0.0
    actions = 0.0
    if isinstance(selection.selector, DQNConfig):
        episode = selection.selector.episode
        epoch = math.ceil(n_source / config.training.batch_source)
        most = episode.actions if episode.repeat_episodes else min(episode.actions, episode.candidates)
        actions = most * max(_STEPS_PER_ACTION, episode.trial_steps or epoch)
    return selection.rounds * (selection.round_steps + actions)


def say_time(seconds: float) -> str:
    """'about 40 seconds', 'about 7 minutes', 'about 3 hours'."""
    if seconds < 90:
        return f"about {max(10, 10 * round(seconds / 10))} seconds"
    if seconds < 5400:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"


def take_sample(split: Split) -> Split:
    """A few images of all parts, evenly, under labels that mean nothing."""
    parts: tuple[Inputs, ...] = (split.source.inputs, split.target_labeled.inputs, split.target_unlabeled.inputs)
    some = [take(part, torch.linspace(0, len(part) - 1, min(len(part), _IMAGES)).long()) for part in parts]
    labeled = [Labeled(inputs, torch.arange(len(inputs)) % split.n_classes) for inputs in some[:2]]
    return Split(split.classes, labeled[0], labeled[1], Unlabeled(some[2]))


def embed_sample(sample: Split, frozen: Frozen, cache: Path | None) -> tuple[float, Split]:
    """Seconds per image, none where all are in the cache, and rows of the embeddings' width to time training on."""
    paths = image_paths(sample)
    embed_files(paths[:_WARM_UP], frozen, cache=cache)  # the first images are slower
    found = embed_files(paths, frozen, cache=cache)
    seconds = found.seconds / max(1, len(paths) - _WARM_UP) if found.made else 0.0
    sizes = (len(sample.source), len(sample.target_labeled), len(sample.target_unlabeled))
    first, second, third = torch.randn(sum(sizes), frozen.width, generator=generator(0)).split(sizes)
    rows = Split(
        sample.classes,
        Labeled(first, sample.source.labels),
        Labeled(second, sample.target_labeled.labels),
        Unlabeled(third),
    )
    return seconds, rows


def seconds_per_step(sample: Split, config: RunConfig) -> float:
    """Seconds of a training step on a sample; of several processes each is taken to need its share of them."""
    trainer = start(sample, _alone(config))
    data = TrainingData.of(sample)
    quick = isinstance(sample.source.inputs, Tensor) or trainer.fabric.device.type != "cpu"
    steps = _STEPS if quick else 1
    if quick:
        trainer.run(data, steps=steps, seed=0)  # the first steps are slower
    began = time.perf_counter()
    trainer.run(data, steps=steps, seed=0)
    return (time.perf_counter() - began) / steps / config.execution.processes


def memory_of_training(split: Split, config: RunConfig) -> int:
    """Bytes that training a whole network takes in each process, roughly: weights, gradients, momenta, activations.

    Measured by what the way back keeps of two images; with micro-batches that many rows keep it at a time.

    Args:
        split: Image files.
        config: The run.
    """
    training, execution = config.training, config.execution
    method = start(take_sample(split), _alone(config)).method
    network, device = method.network, next(method.parameters()).device
    few = next(stream_in_order(split.source.inputs, batch_size=2, transform=network.transform)).to(device)
    kept: dict[int, int] = {}

    def count(values: Tensor) -> Tensor:
        kept[values.data_ptr()] = values.numel() * values.element_size()
        return values

    method.train()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda values: values):
        network(few)
    weights = {parameter.data_ptr(): parameter.numel() * 4 for parameter in method.parameters()}
    activations = sum(size for place, size in kept.items() if place not in weights) / len(few)
    rows = (training.batch_source + training.batch_target + training.batch_unlabeled) / execution.processes
    return int(3 * sum(weights.values()) + activations * min(rows, training.micro_batch or rows))


def _alone(config: RunConfig) -> RunConfig:
    """The run by one process."""
    return replace(config, execution=replace(config.execution, devices=1, num_nodes=1))
