"""Models trained without some labelled target images."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.selection.problem import blobs, config

from qurate.data.samples import SealedLabels, Unlabeled
from qurate.evaluation import predict_probabilities
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback
from qurate.selection.crossfit import HeldOut, baseline_of, draw_folds, fit_fold, fit_without, hold_out, is_baseline


def test_held_out_images_leave_the_labelled_part_alone() -> None:
    split = blobs()
    part, hidden = hold_out(split, torch.tensor([1, 5]))
    assert len(part.target_labeled) + len(hidden) == len(split.target_labeled)
    assert part.target_unlabeled is split.target_unlabeled
    inputs = split.target_labeled.inputs
    assert isinstance(inputs, torch.Tensor)
    assert isinstance(hidden.inputs, torch.Tensor)
    assert torch.equal(hidden.inputs, inputs[[1, 5]])


def test_a_fold_is_what_both_models_say() -> None:
    split, run, images = blobs(), config("balanced"), torch.tensor([1, 5, 6])
    names: list[tuple[str, int]] = []

    def listen(name: str, steps: int) -> Callback:
        names.append((name, steps))
        return Callback()

    fold = fit_fold(split, run, images, name="fold 1", make_callback=listen)
    assert names == [("fold 1, adapted", 60 + 2 * 10), ("fold 1, S+T", 60)]
    part, hidden = hold_out(split, images)
    for each, said in ((run, fold.adapted), (baseline_of(run), fold.baseline)):
        method = fit(part, each).method
        assert said.exp() == pytest.approx(predict_probabilities(method, hidden.inputs), abs=1e-6)
    assert torch.equal(fold.labels, split.target_labeled.labels[images])
    assert fold.fits(split, images)


def test_hidden_labels_and_the_labels_of_held_out_images_change_nothing() -> None:
    split, run, images = blobs(), config("none"), torch.tensor([0, 5])
    labels = split.target_labeled.labels.clone()
    labels[images] = 3 - labels[images]
    labeled = dataclasses.replace(split.target_labeled, labels=labels)
    poison = SealedLabels(torch.zeros(len(split.target_unlabeled), dtype=torch.int64))
    unlabeled = Unlabeled(split.target_unlabeled.inputs, poison)
    other = dataclasses.replace(split, target_labeled=labeled, target_unlabeled=unlabeled)
    assert torch.equal(fit_without(split, run, images), fit_without(other, run, images))


def test_a_fold_of_other_data_does_not_fit() -> None:
    split, images = blobs(), torch.tensor([0, 5])
    said = torch.zeros(2, 4)
    sound = HeldOut(images, split.target_labeled.labels[images], said, said)
    assert sound.fits(split, images)
    assert HeldOut.of_tensors({**sound.tensors(), "of an earlier version": said}).fits(split, images)
    for other in (
        dataclasses.replace(sound, images=images + 1),
        dataclasses.replace(sound, labels=sound.labels + 1),
        dataclasses.replace(sound, adapted=torch.zeros(2, 5)),
        dataclasses.replace(sound, baseline=said * float("nan")),
        dataclasses.replace(sound, baseline=said.long()),
    ):
        assert not other.fits(split, images)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(1, 4), st.integers(0, 5))
def test_each_image_is_held_out_once_where_its_class_has_another(sizes: list[int], folds: int, seed: int) -> None:
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    drawn = draw_folds(labels, folds, seed=seed)
    assert all(len(fold) for fold in drawn)
    held = torch.cat([*drawn, torch.zeros(0, dtype=torch.int64)]).tolist()
    assert sorted(held) == [i for i, label in enumerate(labels.tolist()) if sizes[label] > 1]
    if folds > 1:
        for fold in drawn:
            assert bool((torch.bincount(labels[fold], minlength=len(sizes)) < torch.tensor(sizes)).all())


def test_rows_of_folds_are_joined_in_their_order() -> None:
    parts = [HeldOut(*(torch.full((n, 2), float(n)) for _ in range(4))) for n in (1, 3)]
    joined = HeldOut.join(parts)
    assert joined.labels[:, 0].tolist() == joined.adapted[:, 1].tolist() == [1, 3, 3, 3]


def test_s_and_t_is_its_own_baseline() -> None:
    assert is_baseline(config("none", method="source_target"))
    assert is_baseline(baseline_of(config("balanced")))
    assert not is_baseline(config("balanced", method="source_target"))
    assert not is_baseline(dataclasses.replace(config("none"), seed=3))
