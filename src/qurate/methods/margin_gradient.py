"""The gradient of the target margin loss written out, for heads on embeddings.

A trial epoch (line 11 of Algorithm 1) is thousands of small steps, and building and walking torch's graph costs more
than the arithmetic of a step. Here a step is five matrix products and a few passes over small buffers that stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.sgd import sgd

from qurate.config import TrainingConfig
from qurate.data.batches import TrainingData, draw_labeled, target_inputs, target_labels
from qurate.losses import SMALLEST_SINE_SQUARED
from qurate.methods import Method
from qurate.methods.tml import TargetMargin, TargetMarginConfig
from qurate.networks.heads import CosineClassifier, Network

_SMALLEST_NORM = 1e-12  # of torch.nn.functional.normalize
_OF_THE_LOSS = ("update_labeled", "encode_labeled", "labeled_loss")  # what a subclass may not have changed


def can_write_out(method: Method) -> bool:
    """Whether the labelled loss is TML's own and the network a cosine classifier on embeddings or on a linear layer."""
    network, linear = method.network, method.network.bottleneck
    known: list[Tensor] = [network.classifier.weight, *linear.parameters()]
    return (
        isinstance(method, TargetMargin)
        and all(getattr(type(method), name) is getattr(TargetMargin, name) for name in _OF_THE_LOSS)
        and type(network) is Network
        and type(network.backbone) is nn.Identity
        and (type(linear) is nn.Identity or (type(linear) is nn.Linear and linear.bias is not None))
        and type(network.classifier) is CosineClassifier
        and set(method.parameters()) == set(known)
        and all(p.device.type == "cpu" and p.dtype == torch.float32 and p.requires_grad for p in known)
    )


def descend(optimizer: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[Tensor]) -> None:
    """A step of `torch.optim.SGD` along these gradients, by its rates and with its momenta.

    The same as `optimizer.step()` with the gradients in place, at a quarter of what that costs around the arithmetic.

    Args:
        optimizer: It has the parameters in its first group.
        parameters: What to step.
        gradients: One for each.
    """
    group = optimizer.param_groups[0]
    momenta: list[Tensor | None] = [None] * len(parameters)
    if group["momentum"]:  # before its first step a buffer of zeros is as good as none
        momenta = [optimizer.state[p].get("momentum_buffer") for p in parameters]
        for at, parameter in enumerate(parameters):
            if momenta[at] is None:
                momenta[at] = optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    sgd(
        [parameter.detach() for parameter in parameters],
        gradients,
        momenta,
        fused=True,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
    )


class MarginGradient:
    """The gradients of L_tml with respect to a head, on a batch.

    With f = W x + b, or f = x without a linear layer, cos_ij = f_i c_j / (|f_i| |c_j|), p = softmax(s widen(cos)),
    a_i = 1 / N_s for source and 1 / N_t for target rows, where widen acts on the true class of a target row:

        g_ij = dL / dcos_ij = a_i s (p_ij - [j = y_i]) widen'(cos_ij)
        dL/dc_j = sum_i g_ij f_i / (|f_i| |c_j|) - c_j sum_i g_ij cos_ij / |c_j|^2
        dL/df_i = sum_j g_ij c_j / (|f_i| |c_j|) - f_i sum_j g_ij cos_ij / |f_i|^2
        dL/dW = sum_i dL/df_i x_i^T,  dL/db = sum_i dL/df_i

    Paper: the gradient of Eq. (1).

    Args:
        method: One that `can_write_out`.
        config: Its batch sizes.
    """

    def __init__(self, method: Method, config: TrainingConfig) -> None:
        network, rows = method.network, config.batch_source + config.batch_target
        classifier, linear = network.classifier, network.bottleneck
        self.config = config
        self.parameters: list[Tensor] = [classifier.weight]
        """What has a gradient."""
        self._classes, self._classes_gradient = classifier.weight.detach(), torch.empty_like(classifier.weight)
        self.gradients = [self._classes_gradient]
        """One for each of `parameters`."""
        self.inputs = torch.empty(rows, network.width)
        """Write a batch here, source before target, and then call."""
        self._features = self.inputs
        self._linear: _Linear | None = None
        if isinstance(linear, nn.Linear):
            self._features = torch.empty(rows, linear.out_features)
            self._linear = _Linear(
                linear.weight.detach(),
                linear.bias.detach(),
                torch.empty_like(linear.weight),
                torch.empty_like(linear.bias),
            )
            self.parameters += [linear.weight, linear.bias]
            self.gradients += [self._linear.weight_gradient, self._linear.bias_gradient]
        self._features_gradient = torch.empty_like(self._features)
        self._cosines, self._scaled, self._gradient = (torch.empty(rows, network.n_classes) for _ in range(3))
        # The true classes' numbers, one a row: numpy's calls cost a fraction of torch's on so few.
        self._every_cosine, self._every_gradient = self._cosines.view(-1).numpy(), self._gradient.view(-1).numpy()
        weights = [1 / config.batch_source] * config.batch_source + [1 / config.batch_target] * config.batch_target
        self._weights = np.array(weights, dtype=np.float32)
        self._scale = torch.tensor(classifier.scale)
        self._slopes = torch.tensor(weights).unsqueeze(1) * self._scale
        assert isinstance(method.config, TargetMarginConfig)
        self._margin = _Margin(config, method.config.margin, method.config.monotone)

    def of_batches(self, data: TrainingData, steps: int, seed: int) -> Iterator[float]:
        """Write the gradients of one batch after another, those of `Method.update_labeled`; the loss of each.

        Args:
            data: Embeddings.
            steps: How many batches.
            seed: Decides them.
        """
        source_rows, target_rows = draw_labeled(data, self.config, steps, seed)
        labels = torch.cat([data.source.labels[source_rows], target_labels(data)[target_rows]], dim=1)
        source, (target, target_rows) = data.source.inputs, target_inputs(data, target_rows)
        assert isinstance(source, Tensor), "a network without a backbone has embeddings for inputs"
        self._check(source, target, labels)
        source_part, target_part = self.inputs.split([self.config.batch_source, self.config.batch_target])
        for of_source, of_target, positions in zip(source_rows, target_rows, self.positions(labels), strict=True):
            torch.index_select(source, 0, of_source, out=source_part)
            torch.index_select(target, 0, of_target, out=target_part)
            yield self(positions)

    def _check(self, source: Tensor, target: Tensor, labels: Tensor) -> None:
        """What torch and numpy would let pass here."""
        width, classes = self.inputs.shape[1], self._cosines.shape[1]
        for name, inputs in (("source", source), ("target", target)):
            if inputs.shape[1:] != (width,):
                raise ValueError(
                    f"Training data: {name} embeddings must be {width} wide, got shape {tuple(inputs.shape)}. "
                    "Embed all parts with the same backbone."
                )
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ValueError(
                f"Training data: labels must be in [0, {classes}), got {int(labels.min())} to {int(labels.max())}."
            )

    def positions(self, labels: Tensor) -> NDArray[np.int64]:
        """Where the true classes of batches stand among a batch's cosines: (steps, rows) to (steps, rows)."""
        rows, classes = self._cosines.shape
        positions: NDArray[np.int64] = (labels + torch.arange(rows) * classes).numpy()
        return positions

    def __call__(self, true: NDArray[np.int64]) -> float:
        """Write the gradients of the batch in `inputs`; its loss.

        Args:
            true: A row of `positions`.
        """
        inverse_features = self._forward()
        inverse_classes = _inverse_norms(self._classes, keepdim=False)
        cosines, gradient = self._cosines, self._gradient
        torch.mm(self._features, self._classes.T, out=cosines)
        cosines.mul_(inverse_classes).mul_(inverse_features)
        cosines_of_true = self._every_cosine[true]
        self._every_cosine[true], slope = self._margin(cosines_of_true)
        torch.mul(cosines, self._scale, out=self._scaled)
        self._every_cosine[true] = cosines_of_true
        torch.log_softmax(self._scaled, dim=1, out=gradient)
        loss = -float(self._weights @ self._every_gradient[true])
        gradient.exp_()
        self._every_gradient[true] = (self._every_gradient[true] - 1) * slope
        gradient.mul_(self._slopes)
        self._backward(inverse_features, inverse_classes)
        return loss

    def _forward(self) -> Tensor:
        if self._linear is not None:
            torch.addmm(self._linear.bias, self.inputs, self._linear.weight.T, out=self._features)
        return _inverse_norms(self._features, keepdim=True)

    def _backward(self, inverse_features: Tensor, inverse_classes: Tensor) -> None:
        gradient = self._gradient
        along = torch.mul(gradient, self._cosines, out=self._scaled)
        gradient.mul_(inverse_classes).mul_(inverse_features)
        torch.mm(gradient.T, self._features, out=self._classes_gradient)
        of_classes = along.sum(dim=0).mul_(inverse_classes).mul_(inverse_classes)
        self._classes_gradient.addcmul_(self._classes, of_classes.unsqueeze(1), value=-1)
        if self._linear is not None:
            torch.mm(gradient, self._classes, out=self._features_gradient)
            of_features = along.sum(dim=1, keepdim=True).mul_(inverse_features).mul_(inverse_features)
            self._features_gradient.addcmul_(self._features, of_features, value=-1)
            torch.mm(self._features_gradient.T, self.inputs, out=self._linear.weight_gradient)
            torch.sum(self._features_gradient, dim=0, out=self._linear.bias_gradient)


class _Linear(NamedTuple):
    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor


class _Margin:
    """The margin on the true classes' cosines, and its slope; `losses.margin_cosines` of one number per row.

    A source row has the margin 0, which leaves its cosine as it is, with slope 1.
    """

    def __init__(self, config: TrainingConfig, margin: float, monotone: bool) -> None:
        margins = np.zeros(config.batch_source + config.batch_target)
        margins[config.batch_source :] = margin
        self.cosine, self.sine = np.cos(margins).astype(np.float32), np.sin(margins).astype(np.float32)
        self.turn = np.cos(np.pi - margins).astype(np.float32) if monotone else np.float32(-math.inf)
        self.drop = (margins * np.sin(margins)).astype(np.float32)

    def __call__(self, cosines: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        squared = 1 - cosines * cosines
        sine = np.sqrt(np.maximum(squared, np.float32(SMALLEST_SINE_SQUARED)))
        held = squared < np.float32(SMALLEST_SINE_SQUARED)  # where the sine is held constant
        turned = cosines < self.turn
        widened = np.where(turned, cosines - self.drop, cosines * self.cosine - sine * self.sine)
        slope = self.cosine + np.where(held, np.float32(0), self.sine * cosines / sine)
        return widened, np.where(turned, np.float32(1), slope)


def _inverse_norms(rows: Tensor, *, keepdim: bool) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=keepdim)
    return norms.clamp_min_(_SMALLEST_NORM).reciprocal_()
