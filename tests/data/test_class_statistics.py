"""A source without its images: its statistics against a plain loop, and what is drawn from them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from qurate.data import class_statistics as module
from qurate.data.class_statistics import ClassStatistics, class_statistics
from qurate.data.images import ImageFiles
from qurate.data.samples import Labeled
from qurate.runtime.randomness import generator


def make_source(*, weights: bool = False) -> Labeled:
    rng = generator(3)
    labels = torch.tensor([0, 2, 2, 0, 2, 0, 0, 4])  # none of 1 and 3
    inputs = torch.randn(8, 5, generator=rng) + labels[:, None]
    return Labeled(inputs, labels, torch.rand(8, generator=rng) + 0.1 if weights else None)


@pytest.mark.parametrize("weights", [False, True])
def test_the_statistics_are_those_of_a_plain_loop(weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE", 3)
    source = make_source(weights=weights)
    found = class_statistics(source, 5)
    assert found is not None
    assert isinstance(source.inputs, torch.Tensor)
    rows, labels = source.inputs.double().tolist(), source.labels.tolist()
    w = [1.0] * 8 if source.weights is None else source.weights.double().tolist()
    w = [8 * each / sum(w) for each in w]
    means, squares = {}, [0.0] * 5
    for k in (0, 2, 4):
        own = [i for i in range(8) if labels[i] == k]
        total = sum(w[i] for i in own)
        means[k] = [sum(w[i] * rows[i][j] for i in own) / total for j in range(5)]
        assert int(found.counts[k]) == max(1, round(total))
        np.testing.assert_allclose(found.means[k], means[k], rtol=1e-5)
        for i in own:
            for j in range(5):
                squares[j] += w[i] * (rows[i][j] - means[k][j]) ** 2
    np.testing.assert_allclose(found.variance, [each / (8 - 3) for each in squares], rtol=1e-5)
    assert found.counts[[1, 3]].tolist() == [0, 0]
    assert found.means[[1, 3]].abs().max() == 0
    assert weights or found.counts.tolist() == [4, 0, 3, 0, 1]


def test_of_image_files_nothing_is_known() -> None:
    assert class_statistics(Labeled(ImageFiles(()), torch.empty(0, dtype=torch.int64)), 3) is None


def test_what_is_drawn_is_decided_by_the_seed_and_has_the_statistics() -> None:
    counts, means = torch.tensor([3000, 0, 2000]), torch.tensor([[1.0, 2], [0, 0], [-3, 4]])
    given = ClassStatistics(counts, means, torch.tensor([0.25, 4.0]))
    one, same, other = (given.draw(generator(seed)) for seed in (0, 0, 1))
    assert isinstance(one.inputs, torch.Tensor)
    assert isinstance(same.inputs, torch.Tensor)
    assert isinstance(other.inputs, torch.Tensor)
    assert one.inputs.dtype == torch.float32
    assert torch.equal(one.inputs, same.inputs)
    assert not torch.equal(one.inputs, other.inputs)
    assert torch.bincount(one.labels).tolist() == [3000, 0, 2000]
    again = class_statistics(one, 3)
    assert again is not None
    torch.testing.assert_close(again.counts, counts)
    torch.testing.assert_close(again.means, means, atol=0.15, rtol=0)
    torch.testing.assert_close(again.variance, given.variance, atol=0, rtol=0.1)


def test_very_many_are_drawn_as_fewer_and_no_class_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DRAWN", 100)
    given = ClassStatistics(torch.tensor([600, 1, 0, 400]), torch.zeros(4, 2), torch.ones(2))
    assert given.drawn.tolist() == [59, 1, 0, 39]
    assert len(given.draw(generator(0))) == 99


def test_classes_are_chosen_by_name_and_those_that_are_lacking_have_no_images() -> None:
    given = ClassStatistics(torch.tensor([5, 7, 9]), torch.arange(6.0).view(3, 2), torch.ones(2))
    found = given.of(("a", "b", "c"), ("c", "x", "a"))
    assert found.counts.tolist() == [9, 0, 5]
    assert found.means.tolist() == [[4, 5], [0, 0], [0, 1]]
    assert torch.equal(given.of(("a", "b", "c"), ("a", "b", "c")).means, given.means)


def test_numbers_from_which_nothing_can_be_drawn_are_a_problem() -> None:
    sound = ClassStatistics(torch.tensor([5, 0]), torch.zeros(2, 3), torch.ones(3))
    assert sound.problem == ""
    for damaged, said in (
        (dataclasses.replace(sound, counts=torch.tensor([5, -1])), "0 to 1000000000 images"),
        (dataclasses.replace(sound, counts=torch.tensor([2**40, 1])), "0 to 1000000000 images"),
        (dataclasses.replace(sound, counts=torch.tensor([0, 0])), "0 to 1000000000 images"),
        (dataclasses.replace(sound, variance=-torch.ones(3)), "negative"),
    ):
        assert said in damaged.problem
