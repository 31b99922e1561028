"""The one training loop: any method, on embeddings or on image files, by torch's graph or by a gradient written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from qurate.config import RunConfig, TrainingConfig
from qurate.data.batches import TrainingData, stream_batches
from qurate.data.samples import Split
from qurate.errors import ConfigError, QurateError
from qurate.methods import Method, build_method
from qurate.methods.margin_gradient import MarginGradient, can_write_out, descend
from qurate.networks.heads import build_network, check_inputs
from qurate.runtime.machine import torch_threads
from qurate.runtime.precision import without_autocast
from qurate.runtime.randomness import seeded
from qurate.runtime.states import below, load_optimizer, optimizer_tensors

OnStep = Callable[[int, dict[str, float]], None]
"""Called after each step with its number and the terms of the loss."""


class TrainingError(QurateError, RuntimeError):
    """Training cannot continue; the message says at which step, why, and what to try."""


def make_fabric(config: TrainingConfig) -> Fabric:
    """Device and precision of a run."""
    try:
        return Fabric(accelerator=config.device, devices=1, precision=config.precision)
    except Exception as error:  # Fabric raises its own kinds for a device that is not there
        precision = "" if config.precision == "32-true" else f" with precision {config.precision}"
        raise TrainingError(
            f"`device={config.device!r}`{precision} cannot be used on this machine. Use `device='cpu'`"
            + (" and precision 32-true." if precision else ".")
        ) from error


class Trainer:
    """A method in training: its optimiser and how far along the schedule it is.

    Args:
        method: Holds the network; changed by training.
        config: Optimiser, schedule, batch sizes.
        fabric: Device and precision.
        step: Where in the learning-rate schedule to start.
        total_steps: Steps of the whole run, rounds included; those of the config unless given.
    """

    def __init__(
        self, method: Method, config: TrainingConfig, fabric: Fabric, *, step: int = 0, total_steps: int | None = None
    ) -> None:
        self.method = method.to(fabric.device)
        self.config = config
        self.fabric = fabric
        self.step = step
        self.total_steps = config.steps if total_steps is None else total_steps
        self.optimizer: Any = fabric.setup_optimizers(build_optimizer(method, config))

    def run(
        self,
        data: TrainingData,
        *,
        steps: int,
        seed: int,
        labeled_only: bool = False,
        on_step: OnStep | None = None,
    ) -> dict[str, float]:
        """Train for some steps more.

        Args:
            data: What the method may see.
            steps: How many steps.
            seed: Decides batches, crops and dropout.
            labeled_only: Learn from labelled samples alone: `update_labeled`, line 11 of Algorithm 1.
            on_step: Called after every step.

        Returns:
            The terms of the loss, averaged over the last tenth of the steps.

        Raises:
            TrainingError: If the loss is not finite or explodes.
        """
        self.method.train()
        in_memory = isinstance(data.source.inputs, Tensor)
        counts = not (labeled_only and self.config.schedule == "progress")  # a trial is no progress of the run
        recent: list[dict[str, float]] = []
        with seeded(seed), torch_threads(self.config.threads or int(in_memory)):
            for done, terms in enumerate(self._steps(data.to(self.fabric.device), steps, seed, labeled_only)):
                self.step += counts
                if done >= steps - max(1, steps // 10):
                    recent.append(terms)
                if on_step is not None:
                    on_step(done + 1, terms)
        return {name: sum(terms[name] for terms in recent) / len(recent) for name in recent[0]}

    def _steps(self, data: TrainingData, steps: int, seed: int, labeled_only: bool) -> Iterator[dict[str, float]]:
        """Take the steps; the terms of the loss after each."""
        method, config, device = self.method, self.config, self.fabric.device
        if labeled_only and config.precision == "32-true" and can_write_out(method):
            gradient = MarginGradient(method, config)
            for loss in gradient.of_batches(data, steps, seed):
                self._check(loss)
                self._set_rates()
                descend(self.optimizer, gradient.parameters, gradient.gradients)
                yield {"loss": loss}
            return
        update = method.update_labeled if labeled_only else method.update
        transform = method.network.transform
        batches = stream_batches(data, config, steps=steps, seed=seed, transform=transform, labeled_only=labeled_only)
        for done, batch in enumerate(batches):
            self._set_rates()
            with self.fabric.autocast():
                terms = update(batch.to(device), done / steps, self.minimize)
            yield terms

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, momentum and step as a flat dictionary of copies: all that further steps depend on."""
        state = {f"method.{name}": values for name, values in self.method.state_dict().items()}
        state |= optimizer_tensors(self.optimizer)
        state["step"] = torch.tensor(self.step)
        return {name: values.detach().clone() for name, values in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict` of a trainer of the same config.

        Raises:
            TrainingError: If it is of another.
        """
        try:
            self.method.load_state_dict(below("method.", state))
            load_optimizer(self.optimizer, state)
            self.step = int(state["step"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise TrainingError(f"The state is of another network, method or optimiser ({error}).") from error

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights of a finished run of the same method.

        Args:
            weights: State of its method.

        Raises:
            TrainingError: If they are of another network or method.
        """
        try:
            self.method.load_state_dict(weights)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise TrainingError(f"The weights are of another network or method ({error}).") from error

    def start_over(self, other: Trainer) -> None:
        """Take the weights and the step of another trainer of the same method; the optimiser forgets its steps."""
        self.method.load_state_dict(other.method.state_dict())
        self.optimizer.state.clear()
        self.step = other.step

    def _set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = scheduled_rate(group["base"], self.config, self.step, self.total_steps)

    def minimize(self, loss: Tensor, only: Iterable[nn.Parameter] | None = None) -> None:
        """One optimiser step on a loss, of all parameters or of some.

        Raises:
            TrainingError: If the loss is not finite or explodes.
        """
        self._check(loss.item())
        self.optimizer.zero_grad()
        with without_autocast(self.fabric.device):
            self.fabric.backward(loss)
        if only is not None:
            chosen = set(only)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter not in chosen:
                        parameter.grad = None  # a parameter without gradient is not stepped
        self.optimizer.step()
        torch.clear_autocast_cache()  # of the weights before this step, which a method's next loss would be made with

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss) or abs(loss) > self.config.largest_loss:
            raise TrainingError(
                f"The loss is {loss:g} at step {self.step} (allowed: finite and below "
                f"{self.config.largest_loss:g}). Lower learning_rate, check the inputs for NaN or huge values, "
                "or use precision='32-true'."
            )


def start(split: Split, config: RunConfig) -> Trainer:
    """The network and method of a config, built for a split and ready to train.

    Raises:
        DataError: If the network cannot read the split.
        ConfigError: If the network does not fit in memory.
    """
    inputs = split.source.inputs
    width = inputs.shape[1] if isinstance(inputs, Tensor) and inputs.ndim > 1 else 1
    try:
        network = build_network(config.network, n_classes=split.n_classes, input_width=width, seed=config.seed)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, QurateError):
            raise
        raise ConfigError(f"NetworkConfig: the network cannot be built ({error}). Use fewer features.") from error
    for name in ("source", "target_labeled", "target_unlabeled"):
        check_inputs(network, getattr(split, name).inputs, f"Split.{name}.inputs")
    method = build_method(config.method, network, seed=config.seed)
    return Trainer(method, config.training, make_fabric(config.training), total_steps=config.total_steps)


def build_optimizer(method: Method, config: TrainingConfig) -> torch.optim.SGD:
    """SGD with Nesterov momentum; a pretrained backbone learns at its own smaller rate."""
    backbone = set(method.network.backbone.parameters()) if method.network.pretrained else set()
    groups = [
        ([p for p in method.parameters() if p not in backbone], config.learning_rate),
        ([p for p in method.parameters() if p in backbone], config.backbone_learning_rate),
    ]
    return torch.optim.SGD(
        [{"params": parameters, "lr": rate, "base": rate} for parameters, rate in groups if parameters],
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=next(method.parameters()).device.type in ("cpu", "cuda"),
    )


def scheduled_rate(base: float, config: TrainingConfig, step: int, total_steps: int) -> float:
    """The learning rate at a step; see `TrainingConfig.schedule`.

    'steps': base * (1 + decay_rate * step) ** -decay_power (MME reference code);
    'progress': base * (1 + progress_decay_rate * step / total_steps) ** -decay_power (Ganin et al., 2016).
    """
    decay = config.decay_rate * step
    if config.schedule == "progress":
        decay = config.progress_decay_rate * min(step / total_steps, 1.0)
    return float(base * (1 + decay) ** -config.decay_power)
