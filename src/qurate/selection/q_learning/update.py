"""Deep Q-learning with action masks (Eq. 9-11): exploration and the update.

Knows nothing of images or classifiers: an observation is a tensor, an action a number, a mask says which
actions are legal.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from qurate.config import QLearningConfig
from qurate.errors import QurateError
from qurate.selection.q_learning.networks import PooledNetwork, QNetwork
from qurate.selection.q_learning.pool import Transitions, TransitionSlots


class DivergedError(QurateError, FloatingPointError):
    """The Q-network cannot go on learning; the message says what to try."""


def choose_action(values: Callable[[], Tensor], mask: Tensor, exploration: float, rng: torch.Generator) -> int:
    """The best legal action, or with probability `exploration` any legal one.

    a = argmax_{a legal} Q(s, a)

    Paper: Eq. (11), with the epsilon-greedy strategy; masked (decision 4).

    Args:
        values: Gives Q(s, .), (n_actions,); not asked where the action is a random one.
        mask: Legal actions, (n_actions,) bool.
        exploration: Probability of a uniformly drawn legal action. Nothing is drawn when it is 0.
        rng: Generator of the draws, on the CPU.

    Example:
        >>> choose_action(lambda: torch.tensor([3.0, 2.0]), torch.tensor([False, True]), 0.0, torch.Generator())
        1
    """
    legal = mask.nonzero().squeeze(1)
    if len(legal) == 0:
        raise ValueError(
            f"choose_action: mask must leave at least one of {len(mask)} actions legal, got none; "
            "end the episode when no action is left."
        )
    if exploration > 0 and torch.rand((), generator=rng).item() < exploration:
        return int(legal[torch.randint(len(legal), (), generator=rng)])
    return int(legal[values()[legal].argmax()])


def exploration_at(progress: float, config: QLearningConfig) -> float:
    """Probability of a random action at a progress from 0 to 1: linear from start to end."""
    return config.exploration_start + progress * (config.exploration_end - config.exploration_start)


def bellman_targets(rewards: Tensor, next_q: Tensor, next_mask: Tensor, terminated: Tensor, discount: float) -> Tensor:
    """What Q(s, a) should be, without gradient.

    V = r + gamma max_{a' legal} Q(s', a'), and V = r where s' is terminal or no action is legal in it.
    A truncated step is not terminal: its future counts.

    Paper: Eq. (9), with a terminal case (decision 2) and masks (decision 4).

    Args:
        rewards: r, (B,).
        next_q: Q(s', .), (B, n_actions).
        next_mask: Legal actions in s', (B, n_actions) bool.
        terminated: (B,) bool.
        discount: gamma.

    Returns:
        V, (B,).

    Example:
        >>> no, yes = torch.tensor([False]), torch.tensor([[True, True]])
        >>> bellman_targets(torch.tensor([1.0]), torch.tensor([[2.0, 4.0]]), yes, no, discount=0.5)
        tensor([3.])
    """
    best = next_q.detach().masked_fill(~next_mask, -torch.inf).amax(dim=1)
    goes_on = ~terminated & next_mask.any(dim=1)
    return rewards + discount * torch.where(goes_on, best, 0.0)


def q_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared distance of Q(s, a) from V; its gradient is the direction of Eq. (10).

    1/B sum_i 1/2 (Q(s_i, a_i) - V_i)^2, of gradient 1/B sum_i dQ(s_i, a_i)/dOmega (Q(s_i, a_i) - V_i)

    Paper: Eq. (10), whose sum is a mean here, so that the step does not grow with the batch.

    Args:
        values: Q(s, a), (B,).
        targets: V, (B,), without gradient.

    Returns:
        A scalar.
    """
    return 0.5 * (values - targets.detach()).square().mean()


def update_q_network(
    network: QNetwork,
    optimizer: torch.optim.Optimizer,
    batch: Transitions,
    discount: float,
    target_network: QNetwork | None = None,
    largest_gradient: float = math.inf,
) -> float:
    """One step of the Q-network towards the Bellman targets of a batch.

    Paper: Eq. (9) and (10); Algorithm 1, line 15.

    Args:
        network: Q; its parameters are what `optimizer` steps.
        optimizer: SGD for the printed step.
        batch: Sampled transitions.
        discount: gamma.
        target_network: Makes Q(s', .) instead of `network` (decision 3).
        largest_gradient: A longer gradient is cut to this length (decision 28).

    Returns:
        The loss before the step.
    """
    next_q = batch.next_observations.new_zeros(batch.next_masks.shape)
    goes_on = ~batch.terminated
    with torch.no_grad():  # a terminal state's values are not used, so they are not computed
        next_q[goes_on] = (target_network or network)(batch.next_observations[goes_on])
    targets = bellman_targets(batch.rewards, next_q, batch.next_masks, batch.terminated, discount)
    loss = q_loss(network.of_actions(batch.observations, batch.actions), targets)
    value = _finite(loss.item())
    optimizer.zero_grad()
    loss.backward()
    if largest_gradient < math.inf:
        torch.nn.utils.clip_grad_norm_(network.parameters(), largest_gradient)
    optimizer.step()
    return value


def update_pooled(q: PooledNetwork, batch: TransitionSlots, config: QLearningConfig) -> float:
    """The same step, of plain gradient descent, for a network whose first layer is kept as products with the pool.

    Paper: Eq. (9) and (10); Algorithm 1, line 15.

    Args:
        q: Q.
        batch: Sampled transitions, by their slots in the pool.
        config: Discount, step size, largest gradient.

    Returns:
        The loss before the step.
    """
    network = q.network
    with torch.no_grad():
        next_q = network.of_products(q.products(batch.next_slots))
    targets = bellman_targets(batch.rewards, next_q, batch.next_masks, batch.terminated, config.discount)
    products = q.products(batch.slots).requires_grad_()
    values = network.of_products(products).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    loss = q_loss(values, targets)
    value = _finite(loss.item())
    others = [parameter for parameter in network.parameters() if parameter is not network.first.weight]
    gradient, *gradients = torch.autograd.grad(loss, [products, *others])
    squared = q.squared_length(batch.slots, gradient) + sum(part.square().sum() for part in gradients)
    rate = config.learning_rate * min(1.0, config.largest_gradient / (math.sqrt(squared) + 1e-6))
    with torch.no_grad():
        for parameter, part in zip(others, gradients, strict=True):
            parameter.sub_(part, alpha=rate)
    q.step(batch.slots, -rate * gradient)
    return value


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise DivergedError(
            f"The loss of the Q-network is {loss}. Lower QLearningConfig.learning_rate, or check the "
            "observations and rewards for NaN or huge values."
        )
    return loss
