"""A digest of tensors is that of their names, shapes and numbers."""

from __future__ import annotations

import torch

from qurate.runtime.tensors import not_finite, tensor_digest


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
