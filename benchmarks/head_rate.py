"""Milliseconds of a training step on embeddings, against the matrix products that it cannot do without.

    python benchmarks/head_rate.py

A step passes 48 labelled rows, and methods that learn from D_u 48 unlabelled ones, through 1280 x 512 weights, and
needs the gradient of these weights; inputs need none. Their products are measured alone, with all in the processor's
cache. One thread; embeddings are random.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.data.batches import TrainingData
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.training import start

ROWS, WIDTH, FEATURES, CLASSES = 48, 1280, 512, 31
WARM_UP = 10


def milliseconds(compute: Callable[[], object], times: int) -> float:
    """The median over some calls."""
    taken = []
    for _ in range(WARM_UP + times):
        began = time.perf_counter()
        compute()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken[WARM_UP:])


def pass_apart(weight: Tensor, optimizer: torch.optim.Optimizer | None, *parts: Tensor) -> None:
    """Forward and backward pass of parts by autograd, and the optimiser's step."""
    weight.grad = None
    outputs = [F.linear(part, weight) for part in parts]
    torch.autograd.backward(outputs, [output.detach() for output in outputs])
    if optimizer is not None:
        optimizer.step()


def draw_split() -> Split:
    """Random embeddings of the size of Office-31, W to A."""
    rng = torch.Generator().manual_seed(0)
    source, target, unlabeled = (torch.randn(n, WIDTH, generator=rng).abs() for n in (795, 93, 2724))
    first, second = (Labeled(part, torch.arange(len(part)) % CLASSES) for part in (source, target))
    return Split(tuple(map(str, range(CLASSES))), first, second, Unlabeled(unlabeled))


def seconds_per_step(split: Split, method: str, steps: int) -> float:
    """The fastest of four trainings of so many steps, after a short one."""
    trainer, data = start(split, make_config(method, "none")), TrainingData.of(split)
    trainer.run(data, steps=WARM_UP, seed=0)
    taken = []
    for seed in range(4):
        began = time.perf_counter()
        trainer.run(data, steps=steps, seed=seed)
        taken.append((time.perf_counter() - began) / steps)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=75, help="of each of four runs, of which the fastest counts")
    parser.add_argument("--methods", nargs="+", default=["source_target", "tml", "mme"])
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    split, bound = draw_split(), {}
    for rows in (ROWS, 2 * ROWS):
        inputs, weight, gradient = (torch.randn(n, m) for n, m in ((rows, WIDTH), (FEATURES, WIDTH), (rows, FEATURES)))
        forward = milliseconds(partial(F.linear, inputs, weight), options.steps)
        backward = milliseconds(partial(torch.mm, gradient.T, inputs), options.steps)
        bound[rows] = forward + backward
        print(f"{rows} rows: forward {forward:.2f} ms, gradient of the weights {backward:.2f} ms")
    parameter, batch = torch.zeros(FEATURES, WIDTH, requires_grad=True), torch.randn(2 * ROWS, WIDTH)
    sgd = torch.optim.SGD([parameter], lr=1e-3, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    ways: tuple[tuple[str, torch.optim.Optimizer | None, tuple[Tensor, ...]], ...] = (
        ("48 rows by autograd", None, (batch[:ROWS],)),
        ("48 rows and the optimiser's step", sgd, (batch[:ROWS],)),
        ("two passes of 48 rows", None, (batch[:ROWS], batch[ROWS:])),
        ("one pass of 96 rows", None, (batch,)),
    )
    for way, optimizer, parts in ways:
        print(f"{way}: {milliseconds(partial(pass_apart, parameter, optimizer, *parts), options.steps):.2f} ms")
    for name in options.methods:
        step = 1000 * seconds_per_step(split, name, options.steps)
        products = bound[ROWS] if name == "source_target" else bound[2 * ROWS]
        print(f"{name}: {step:.2f} ms a step, {step / products:.1f} times its matrix products")


if __name__ == "__main__":
    main()
