"""Digests of tensors, and the state of an optimiser in files and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qurate.runtime.tensors import load_optimizer, not_finite, optimizer_tensors, tensor_digest


def test_the_digest_is_of_all_that_tensors_are() -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(1), "c": torch.empty(0), "d": torch.tensor([True])}
    digest = tensor_digest(tensors)
    assert tensor_digest(dict(reversed(tensors.items()))) == digest
    others = (
        {**tensors, "a": tensors["a"].view(3, 2)},
        {**tensors, "a": tensors["a"] + 1e-6},
        {**tensors, "b": torch.tensor(1, dtype=torch.int32)},
        {name: values for name, values in tensors.items() if name != "c"},
        {"z" if name == "a" else name: values for name, values in tensors.items()},
    )
    assert len({digest, *map(tensor_digest, others)}) == 6


def test_what_is_not_finite_is_named() -> None:
    tensors = {"a": torch.tensor([1.0, torch.nan]), "b": torch.tensor(3), "c": torch.tensor(-torch.inf)}
    assert not_finite(tensors) == ["a", "c"]


def stepped(layout: torch.memory_format, state: dict[str, Tensor] | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The weights of a convolution after a fused step, and what its optimiser then remembers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Conv2d(3, 4, 3).double().to(memory_format=layout)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
    if state is not None:
        load_optimizer(optimizer, state)
    layer(torch.arange(2 * 3 * 5 * 5.0).double().view(2, 3, 5, 5)).square().mean().backward()
    optimizer.step()
    return layer.weight.detach(), {name: values.contiguous() for name, values in optimizer_tensors(optimizer).items()}


def test_a_memory_read_back_from_a_file_goes_with_weights_in_any_order() -> None:
    """A fused step goes through weights and momentum from the first number in memory to the last."""
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        _, remembered = stepped(layout, None)
        found.append(stepped(layout, remembered)[0])
    assert torch.allclose(found[0], found[1])
