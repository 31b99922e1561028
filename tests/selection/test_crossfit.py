"""Models trained without some labelled target images."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.selection.problem import blobs, config

from qurate.data.samples import SealedLabels, Unlabeled
from qurate.evaluation import predict_probabilities, true_labels
from qurate.networks.inference import log_probabilities
from qurate.presets import baseline_of, is_baseline
from qurate.selection import algorithm
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback
from qurate.selection.crossfit import (
    Fold,
    HeldOut,
    draw_folds,
    fit_fold,
    hold_out,
    leave_out,
)
from qurate.selection.session import Pretraining


def test_held_out_images_move_to_the_unlabelled_part() -> None:
    split = blobs()
    part, hidden = hold_out(split, torch.tensor([1, 5]))
    inputs = split.target_labeled.inputs
    assert isinstance(inputs, torch.Tensor)
    assert isinstance(hidden.inputs, torch.Tensor)
    assert len(part.target_labeled) + len(hidden) == len(split.target_labeled)
    unlabeled, extended = split.target_unlabeled.inputs, part.target_unlabeled.inputs
    assert isinstance(unlabeled, torch.Tensor)
    assert isinstance(extended, torch.Tensor)
    assert torch.equal(extended, torch.cat([unlabeled, hidden.inputs]))
    assert part.target_unlabeled.sealed is None
    assert torch.equal(hidden.inputs, inputs[[1, 5]])


def test_a_fold_is_what_a_model_without_its_images_says() -> None:
    split, run, images = blobs(), config("balanced"), torch.tensor([1, 5, 6])
    steps: list[int] = []

    class Listen(Callback):
        def on_step(self, step: int, terms: dict[str, float]) -> None:
            steps.append(step)

    part, hidden = hold_out(split, images)
    for each in (run, baseline_of(run)):
        steps.clear()
        fold = fit_fold(split, each, images, [Listen()])
        assert len(steps) == each.total_steps
        method = fit(part, each).method
        assert fold.log_probs.exp() == pytest.approx(predict_probabilities(method, hidden.inputs), abs=1e-6)
        assert torch.equal(fold.labels, split.target_labeled.labels[images])
        assert fold.fits(split, images)
        if each is run:
            assert not len(fold.cosines)
            continue
        logits = method.network.eval()(part.target_unlabeled.inputs) / method.network.classifier.scale
        assert fold.cosines == pytest.approx(logits.detach().amax(dim=1), abs=1e-5)


def test_flagged_images_leave_the_unlabelled_part_with_their_sealed_labels() -> None:
    split = blobs()
    flagged = torch.zeros(len(split.target_unlabeled), dtype=torch.bool)
    assert leave_out(split, flagged)[0] is split
    flagged[[0, 3]] = True
    part, kept = leave_out(split, flagged)
    assert kept.tolist() == [i for i in range(len(flagged)) if i not in (0, 3)]
    assert torch.equal(true_labels(part.target_unlabeled), true_labels(split.target_unlabeled)[kept])
    assert part.target_labeled is split.target_labeled


def test_hidden_labels_and_the_labels_of_held_out_images_change_nothing() -> None:
    split, run, images = blobs(), config("none"), torch.tensor([0, 5])
    labels = split.target_labeled.labels.clone()
    labels[images] = 3 - labels[images]
    labeled = dataclasses.replace(split.target_labeled, labels=labels)
    poison = SealedLabels(torch.zeros(len(split.target_unlabeled), dtype=torch.int64))
    unlabeled = Unlabeled(split.target_unlabeled.inputs, poison)
    other = dataclasses.replace(split, target_labeled=labeled, target_unlabeled=unlabeled)
    assert torch.equal(fit_fold(split, run, images).log_probs, fit_fold(other, run, images).log_probs)


def test_a_fold_of_other_data_does_not_fit() -> None:
    split, images = blobs(), torch.tensor([0, 5])
    said = torch.zeros(2, 4)
    sound = Fold(images, split.target_labeled.labels[images], said, torch.zeros(0), said[:0])
    assert sound.fits(split, images)
    assert Fold.of_tensors({**sound.tensors(), "of an earlier version": said}).fits(split, images)
    for other in (
        dataclasses.replace(sound, images=images + 1),
        dataclasses.replace(sound, labels=sound.labels + 1),
        dataclasses.replace(sound, log_probs=torch.zeros(2, 5)),
        dataclasses.replace(sound, cosines=torch.zeros(2)),
        dataclasses.replace(sound, log_probs=said.long()),
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
    parts = [Fold(*(torch.full((n, 2), float(n)) for _ in range(5))) for n in (1, 3)]
    joined = Fold.join(parts)
    assert joined.labels[:, 0].tolist() == joined.log_probs[:, 1].tolist() == [1, 3, 3, 3]
    both = HeldOut.of(parts, [dataclasses.replace(part, log_probs=-part.log_probs) for part in parts])
    assert torch.equal(both.adapted, -both.baseline)


def test_s_and_t_is_its_own_baseline() -> None:
    assert is_baseline(config("none", method="source_target"))
    assert is_baseline(baseline_of(config("balanced")))
    assert not is_baseline(config("balanced", method="source_target"))
    assert not is_baseline(dataclasses.replace(config("none"), seed=3))


def test_the_adapted_model_of_a_fold_is_labelled_by_s_t_of_that_fold() -> None:
    split, images = blobs(), torch.tensor([1, 5, 6])
    run = config("adaptive")
    run = dataclasses.replace(run, selection=dataclasses.replace(run.selection, labeler="combined"))
    of_baseline = fit_fold(split, baseline_of(run), images)
    part, _ = hold_out(split, images)
    alone = fit(part, baseline_of(run)).method
    said = of_baseline.unlabeled_log_probs(torch.arange(len(split.target_unlabeled)))
    assert said is not None
    assert said.exp() == pytest.approx(predict_probabilities(alone, part.target_unlabeled.inputs), abs=1e-6)
    some = of_baseline.unlabeled_log_probs(torch.tensor([2, 0]))
    assert some is not None
    assert torch.equal(some, said[[2, 0, -3, -2, -1]])
    adapted = fit_fold(split, run, images, baseline=said)
    assert adapted.unlabeled_log_probs(torch.arange(2)) is None
    assert adapted.fits(split, images)
    expected = fit(part, run, baseline=said).method
    assert adapted.log_probs.exp() == pytest.approx(
        predict_probabilities(expected, part.target_unlabeled.inputs)[-3:], abs=1e-6
    )
    assert torch.equal(adapted.log_probs, fit_fold(split, run, images).log_probs)  # trained anew
    assert not torch.equal(adapted.log_probs, fit_fold(split, run, images, baseline=said.roll(1, dims=0)).log_probs)


def test_a_run_without_s_t_trains_it_once_for_all_that_share_line_1(monkeypatch: pytest.MonkeyPatch) -> None:
    split, run = blobs(), config("adaptive")
    run = dataclasses.replace(run, selection=dataclasses.replace(run.selection, labeler="combined"))
    inputs = split.target_unlabeled.inputs
    said = log_probabilities(fit(split, baseline_of(run)).method.network, inputs)
    by_both = log_probabilities(fit(split, run, baseline=said).method.network, inputs)
    shared = Pretraining()
    first = fit(split, run, pretrained=shared).method
    assert shared.baseline is not None
    assert torch.equal(shared.baseline, said)
    assert torch.equal(log_probabilities(first.network, inputs), by_both)
    monkeypatch.setattr(algorithm, "baseline_of", None)  # a second training of S+T would fail
    assert torch.equal(log_probabilities(fit(split, run, pretrained=shared).method.network, inputs), by_both)
