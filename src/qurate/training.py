"""The one training loop: any method, on embeddings or on image files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from qurate.config import ExecutionConfig, RunConfig, TrainingConfig
from qurate.data.batches import Batch, TrainingData, stream_batches, stream_in_order
from qurate.data.samples import Split
from qurate.distributed import ProcessGroup, make_fabric, share_statistics
from qurate.errors import ConfigError, QurateError, TrainingError
from qurate.methods import Compute, Method, build_method
from qurate.methods.fitted import FittedMethod
from qurate.networks.heads import build_network, check_inputs, checkpoint_activations, held_statistics
from qurate.runtime.compute import torch_threads, without_autocast
from qurate.runtime.machine import available_cores
from qurate.runtime.randomness import seeded, set_random_state, stream_seed
from qurate.runtime.tensors import below, load_optimizer, optimizer_tensors

OnStep = Callable[[int, dict[str, float]], None]
"""Called after each step with its number and the terms of the loss."""


class Trainer:
    """A method in training: its optimiser and how far along the schedule it is.

    In a process group all ranks take the same steps, each on its share of every batch: torch's DistributedDataParallel
    averages their gradients.

    Args:
        method: Holds the network; changed by training.
        config: Optimiser, schedule, batch sizes.
        fabric: Device and precision.
        execution: Threads, image workers, devices and activation checkpointing.
        group: The processes that train this network together; None for one.
        step: Where in the learning-rate schedule to start.
        total_steps: Steps of the whole run, rounds included.
    """

    def __init__(
        self,
        method: Method,
        config: TrainingConfig,
        fabric: Fabric,
        execution: ExecutionConfig,
        group: ProcessGroup | None = None,
        *,
        step: int = 0,
        total_steps: int,
    ) -> None:
        self.group = group
        share_statistics(method, group)
        self.method = method.to(fabric.device)
        network = method.network
        network.frozen_norms, network.frozen_bottleneck = config.frozen_norms, config.frozen_bottleneck
        network.micro_batch = config.micro_batch
        if method.network.transform is not None:  # photographs: convolutions are faster on channels last
            method.network.backbone.to(memory_format=torch.channels_last)
        self.config, self.execution = config, execution
        self.fabric = fabric
        self.step = step
        self.waited = self.seconds = 0.0
        """Seconds that the network waited for data, and of all its steps."""
        self.total_steps = total_steps
        self.optimizer: Any = fabric.setup_optimizers(build_optimizer(method, config))
        self._forward: Any = method if group is None else fabric.setup_module(method)

    def run(
        self,
        data: TrainingData,
        *,
        steps: int,
        seed: int,
        labeled_only: bool = False,
        on_step: OnStep | None = None,
        first: int = 0,
        random: Tensor | None = None,
    ) -> dict[str, float]:
        """Train for some more steps; a method that takes none is fitted instead, whatever it was before.

        Args:
            data: What the method may see.
            steps: How many steps.
            seed: Decides batches, crops and dropout.
            labeled_only: Learn from labelled samples alone: `update_labeled`, line 11 of Algorithm 1.
            on_step: Called after every step.
            first: How many of the steps were taken before.
            random: States of torch's own generators after those.

        Returns:
            The terms of the loss, averaged over the last tenth of the steps; nothing if all were taken before.

        Raises:
            TrainingError: If the loss is not finite or explodes.
        """
        if isinstance(self.method, FittedMethod):
            self.method.solve(data)
            return {}
        method, config, device = self.method.train(), self.config, self.fabric.device
        rank, processes = (0, 1) if self.group is None else (self.group.rank, self.group.size)
        update = method.update_labeled if labeled_only else method.update
        counts = not (labeled_only and config.schedule == "progress")  # a trial is no progress of the run
        recent: list[dict[str, float]] = []
        with (
            seeded(seed),
            torch_threads(self._threads(in_memory=isinstance(data.source.inputs, Tensor))),
            self._out_of_memory_advice(),
        ):
            if random is not None:
                set_random_state(random, device)
            data = data.to(device)
            batches = stream_batches(
                data,
                config,
                steps=steps,
                seed=seed,
                transform=method.network.transform,
                labeled_only=labeled_only,
                share=(rank, processes),
                first=first,
                workers=self.execution.workers,
            )
            for done, batch in enumerate(self._timed(batches), start=first):
                for group in self.optimizer.param_groups:
                    group["lr"] = scheduled_rate(group["initial_lr"], config, self.step, self.total_steps)
                if rank:  # each draws for its own rows; by step, so that a checkpoint need not hold it
                    torch.manual_seed(stream_seed(seed, rank, done))
                if method.prototypes is not None and not labeled_only:
                    method.prototypes.update(method.network, data, self.step, config.steps, self.execution.workers)
                with self.fabric.autocast():
                    terms = update(batch.to(device), done / steps, self.minimize)
                self.step += counts
                if done >= steps - max(1, steps // 10):
                    recent.append(terms)
                if on_step is not None:
                    on_step(done + 1, terms)
            if self.group is not None:
                self.group.equalize_buffers(method)
        return {name: sum(terms[name] for terms in recent) / len(recent) for name in (recent or [{}])[0]}

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches; measures how long the network waits for them and how long its steps take."""
        began = asked = time.perf_counter()
        for batch in batches:
            self.waited += time.perf_counter() - asked
            yield batch
            asked = time.perf_counter()
            self.seconds += asked - began
            began = asked

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, momentum, step and the scale of 16-mixed gradients, as copies: all that further steps depend on."""
        state = {f"method.{name}": values for name, values in self.method.state_dict().items()}
        state |= optimizer_tensors(self.optimizer)
        state |= {f"scaler.{name}": torch.tensor(value) for name, value in self.fabric._precision.state_dict().items()}
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
            self.fabric._precision.load_state_dict(
                {name: value.item() for name, value in below("scaler.", state).items()}
            )
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

    def minimize(self, compute: Compute, only: Iterable[nn.Parameter] | None = None) -> dict[str, float]:
        """One optimiser step on a loss, of all parameters or of some.

        Returns:
            The terms of the loss; of several processes, their means.

        Raises:
            TrainingError: If the loss is not finite or explodes.
        """
        self.optimizer.zero_grad()
        terms: dict[str, Tensor] = self._forward(compute)
        recomputes = self.config.micro_batch or self.execution.activation_checkpointing
        with without_autocast(self.fabric.device), held_statistics(self.method) if recomputes else nullcontext():
            self.fabric.backward(terms["loss"])
        numbers = self._mean(terms)
        if not math.isfinite(numbers["loss"]) or abs(numbers["loss"]) > self.config.largest_loss:
            raise TrainingError(
                f"The loss is {numbers['loss']:g} at step {self.step} (allowed: finite and below "
                f"{self.config.largest_loss:g}). Lower learning_rate, check the inputs for NaN or huge values, "
                "or use precision='32-true'."
            )
        if only is not None:
            chosen = set(only)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter not in chosen:
                        parameter.grad = None  # a parameter without gradient is not stepped
        self.optimizer.step()
        torch.clear_autocast_cache()  # of the weights before this step, which a method's next loss would be made with
        return numbers

    def _mean(self, terms: Mapping[str, Tensor]) -> dict[str, float]:
        """Terms of a loss as numbers; over all processes, so that all stop where one is not finite."""
        if self.group is None:
            return {name: value.item() for name, value in terms.items()}
        means = self.group.mean(torch.stack([value.detach() for value in terms.values()]))
        return dict(zip(terms, means.tolist(), strict=True))

    @contextmanager
    def _out_of_memory_advice(self) -> Iterator[None]:
        """Raise `TrainingError` with what to turn on where memory runs out."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            message = str(error).splitlines()[0] if str(error) else "MemoryError"
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in message:
                raise
            config = self.config
            rows = config.batch_source + config.batch_target + config.batch_unlabeled
            micro = max(1, (config.micro_batch or rows) // 4)
            can_checkpoint = hasattr(self.method.network.backbone, "set_grad_checkpointing")
            ways = []
            if can_checkpoint and not self.execution.activation_checkpointing:
                ways.append("`activation_checkpointing=True`")
            ways.append(f"`micro_batch={micro}` (now {config.micro_batch or f'all {rows} rows of a batch'})")
            if config.precision == "32-true":
                ways.append("`precision='bf16-mixed'`")
            raise TrainingError(
                f"Out of memory at step {self.step} ({message}). Turn on one of these: {', '.join(ways)}; or use more "
                "`devices`."
            ) from error

    def _threads(self, in_memory: bool) -> int:
        """CPU threads of a step: one for tensors in memory, else all cores, shared with the other processes here."""
        cores = available_cores() // self.execution.devices
        shared = 0 if self.group is None else max(1, min(torch.get_num_threads(), cores))
        return self.execution.threads or int(in_memory) or shared


def start(split: Split, config: RunConfig, group: ProcessGroup | None = None) -> Trainer:
    """The network and method of a config, built for a split and ready to train; in double precision if its inputs are.

    Args:
        split: What is trained on.
        config: The run.
        group: The processes that train it together; None for one, whatever the config says.

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
    if config.execution.activation_checkpointing and not isinstance(network.backbone, nn.Identity):
        checkpoint_activations(network)
    if isinstance(inputs, Tensor) and inputs.dtype == torch.float64:
        method.double()
    fabric = make_fabric(config.execution, config.training.precision, group)
    return Trainer(method, config.training, fabric, config.execution, group, total_steps=config.total_steps)


def memory_of_training(split: Split, config: RunConfig) -> int:
    """Bytes that training a whole network takes in each process, roughly: weights, gradients, momenta, activations.

    Measured by what autograd saves for the backward pass of two images, times the rows that pass at once.

    Args:
        split: Image files.
        config: The run.
    """
    training, execution = config.training, config.execution
    method = start(split, config).method
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


def build_optimizer(method: Method, config: TrainingConfig) -> torch.optim.SGD:
    """SGD with Nesterov momentum; a pretrained backbone learns at its own smaller rate."""
    backbone = set(method.network.backbone.parameters()) if method.network.pretrained else set()
    groups = [
        ([p for p in method.parameters() if p not in backbone], config.learning_rate),
        ([p for p in method.parameters() if p in backbone], config.backbone_learning_rate),
    ]
    return torch.optim.SGD(
        [{"params": parameters, "lr": rate, "initial_lr": rate} for parameters, rate in groups if parameters],
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=next(method.parameters()).device.type in ("cpu", "cuda"),
    )


def scheduled_rate(base: float, config: TrainingConfig, step: int, total_steps: int) -> float:
    """The learning rate at a step; see `TrainingConfig.schedule`.

    'steps': base * (1 + decay_rate * step) ** -decay_power (MME reference code);
    'progress': base * (1 + progress_decay_rate * step / total_steps) ** -decay_power (Ganin et al., 2016).
    Within `warmup_steps` times (step + 1) / (warmup_steps + 1).
    """
    decay = config.decay_rate * step
    if config.schedule == "progress":
        decay = config.progress_decay_rate * min(step / total_steps, 1.0)
    return float(base * (1 + decay) ** -config.decay_power) * min(1.0, (step + 1) / (config.warmup_steps + 1))
