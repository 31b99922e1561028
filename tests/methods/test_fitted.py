"""Methods without gradient steps: how they take part in runs, found by being listed."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.selection.test_session import File
from tests.test_training import blobs
from torch import Tensor

import qurate
from qurate.benchmark.grid import Grid
from qurate.benchmark.options import GridOptions
from qurate.config import NetworkConfig, RunConfig
from qurate.data.digits import digits_split
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Labeled, Split, Unlabeled
from qurate.data.suites import load_suite
from qurate.errors import ConfigError, TrainingError
from qurate.evaluation import evaluate, predict_probabilities
from qurate.methods import build_method
from qurate.methods.fitted import FittedMethod, Transduced, unit_rows
from qurate.networks.heads import build_network
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.registry import FITTED, LONG, METHODS, SELECTORS, goes_with
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.pseudo_labels import Positives
from qurate.selection.session import Pretraining

SUPERVISED = ("knn", "logistic", "logistic_weighted")
"""Those that are fitted to labelled rows alone."""


def config(name: str, selector: str = "none") -> RunConfig:
    return make_config(name, selector, steps=3, rounds=2, round_steps=3, device="cpu")


def said(name: str, split: Split, selector: str = "none") -> Tensor:
    return predict_probabilities(fit(split, config(name, selector)).method, split.target_unlabeled.inputs)


def test_the_registry_says_which_they_are_and_each_defines_fit() -> None:
    for name, entry in METHODS.items():
        assert issubclass(entry.load(), FittedMethod) != entry.has_network, name
        assert entry.has_network or entry.load().fit is not FittedMethod.fit


@pytest.mark.parametrize("name", FITTED)
def test_each_gives_the_same_probabilities_again_whatever_the_seed(name: str) -> None:
    split = blobs()
    first, run = said(name, split), config(name)
    assert first.shape == (40, 3)
    torch.testing.assert_close(first.sum(dim=1), torch.ones(40))
    again = fit(split, dataclasses.replace(run, seed=9)).method
    assert torch.equal(first, predict_probabilities(again, split.target_unlabeled.inputs))
    assert torch.equal(first, predict_probabilities(again, split.target_unlabeled.inputs, batch_size=7))
    assert evaluate(again, split.target_unlabeled).accuracy > 0.8
    assert evaluate(again, split.source).accuracy > 0.8


@pytest.mark.parametrize("name", FITTED)
def test_the_network_answers_as_the_method_does(name: str) -> None:
    split = blobs()
    method, inputs = fit(split, config(name)).method, split.target_unlabeled.inputs
    assert isinstance(inputs, Tensor)
    torch.testing.assert_close(log_probabilities(method.network, inputs).exp(), method.predict(inputs))
    assert method.network.features(inputs).shape == inputs.shape == (40, method.network.n_features)


@pytest.mark.parametrize("name", [name for name in FITTED if name not in SUPERVISED])
def test_those_that_adapt_learn_from_the_unlabelled_rows(name: str) -> None:
    split = blobs()
    rows = split.target_unlabeled.inputs
    assert isinstance(rows, Tensor)
    moved = dataclasses.replace(split, target_unlabeled=Unlabeled(rows * 0.5 + rows.roll(1, 0)))
    one, other = (fit(part, config(name)).method for part in (split, moved))
    assert not torch.equal(one.predict(rows + 0.01), other.predict(rows + 0.01))


@pytest.mark.parametrize("name", SUPERVISED)
def test_the_others_do_not(name: str) -> None:
    split = blobs()
    rows = split.target_unlabeled.inputs
    other = fit(dataclasses.replace(split, target_unlabeled=Unlabeled(-rows)), config(name)).method  # type: ignore[operator]  # a tensor
    assert torch.equal(said(name, split), predict_probabilities(other, rows))


@pytest.mark.parametrize("selector", [name for name in SELECTORS if name not in ("none", "dqn")])
def test_pseudo_labels_are_learned_from_as_labelled_target(selector: str) -> None:
    class Last(Callback):
        def on_round(self, record: RoundRecord, method: qurate.Method, positives: Positives) -> None:
            self.positives, self.method = positives, method

    split, last = blobs(), Last()
    run = config("logistic_weighted", selector)
    result = fit(split, run, callbacks=[last])
    assert len(result.rounds) == 2
    inputs, target = split.target_unlabeled.inputs, split.target_labeled
    assert isinstance(inputs, Tensor)
    assert isinstance(target.inputs, Tensor)
    more = Labeled(
        torch.cat([target.inputs, inputs[last.positives.indices]]), torch.cat([target.labels, last.positives.labels])
    )
    by_hand = fit(dataclasses.replace(split, target_labeled=more), config("logistic_weighted")).method
    assert torch.equal(predict_probabilities(result.method, inputs), predict_probabilities(by_hand, inputs))


@pytest.mark.parametrize("name", FITTED)
def test_a_run_that_is_resumed_ends_as_the_whole_one(name: str, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_round(self, record: RoundRecord, method: qurate.Method, positives: Positives) -> None:
            if record.round == 1:
                raise KeyboardInterrupt

    split, run, memory = blobs(), config(name, "share"), File(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(split, run, callbacks=[Stop()], checkpoint=memory)
    resumed = fit(split, run, checkpoint=memory)
    assert torch.equal(predict_probabilities(resumed.method, split.target_unlabeled.inputs), said(name, split, "share"))


def test_runs_that_share_line_1_fit_it_each() -> None:
    split, shared = blobs(), Pretraining()
    for _ in range(2):
        method = fit(split, config("logistic"), pretrained=shared).method
        assert torch.equal(predict_probabilities(method, split.target_unlabeled.inputs), said("logistic", split))
    assert shared.state is None


@pytest.mark.parametrize("name", FITTED)
def test_the_agent_and_more_steps_are_refused_and_left_out_of_grids(name: str) -> None:
    assert not goes_with(name, "dqn")
    assert not goes_with(name, LONG)
    grid = Grid(
        load_suite("digits"), GridOptions("digits", methods=(name, "tml+long"), selectors=("none", "dqn", LONG))
    )
    assert grid.pairs() == [("tml", "long"), (name, "none")]
    with pytest.raises(ConfigError, match=rf"method '{name}' takes no training steps, and row 'long'"):
        Grid(load_suite("digits"), GridOptions("digits", methods=(f"{name}+long",))).pairs()
    with pytest.raises(ConfigError, match=rf"selector 'dqn' trains the method .* method '{name}' takes no"):
        make_config(name, "dqn")


def test_several_processes_are_refused() -> None:
    run = config("knn")
    several = dataclasses.replace(run, execution=dataclasses.replace(run.execution, devices=2))
    with pytest.raises(ConfigError, match=r"devices must be 1 for method 'knn', .* got 2 processes"):
        fit(blobs(), several)


@pytest.mark.parametrize("name", FITTED)
def test_adapt_saves_no_such_model(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"method '{name}' is fitted to embeddings and leaves no network to save"):
        qurate.adapt(tmp_path, tmp_path, tmp_path, method=name)
    with pytest.raises(ConfigError, match="leaves no network to save"):
        qurate.adapt(tmp_path, tmp_path, tmp_path, config=config(name))


def test_image_files_are_refused(tmp_path: Path) -> None:
    files = ImageFiles(tuple(tmp_path / f"{i}.png" for i in range(4)))
    labels = torch.arange(4) % 2
    split = Split(("a", "b"), Labeled(files, labels), Labeled(files, labels), Unlabeled(files))
    network = NetworkConfig("timm/test_resnet", features=8)
    with pytest.raises(ConfigError, match=r"method 'knn' is fitted to embeddings .* embed_split"):
        fit(split, make_config("knn", "none", network=network))
    with pytest.raises(DataError, match="embed_split"):
        fit(split, config("knn"))


def test_images_in_memory_are_taken_pixel_by_pixel_and_others_are_refused() -> None:
    split = digits_split(shots=3, seed=0, source_per_class=10)
    method = fit(split, make_config("logistic", "none", network=NetworkConfig("digits"))).method
    inputs = split.target_unlabeled.inputs
    assert isinstance(inputs, Tensor)
    assert method.network.n_features == inputs[0].numel()
    assert torch.equal(method.predict(inputs[:5]), method.predict(inputs[:5].flatten(1)))
    with pytest.raises(DataError, match=rf"inputs must be a tensor \(N, \.\.\.\) of {inputs[0].numel()} numbers"):
        predict_probabilities(method, torch.zeros(2, 7))


def test_weights_of_sources_are_refused() -> None:
    split = blobs()
    weighed = dataclasses.replace(split.source, weights=torch.arange(1.0, 41.0))
    with pytest.raises(ConfigError, match=r"method 'logistic' draws no batches, so sources cannot have weights"):
        fit(dataclasses.replace(split, source=weighed), config("logistic"))


def test_one_that_was_not_fitted_says_so() -> None:
    network = build_network(NetworkConfig(features=8), n_classes=3, input_width=4, seed=0)
    method = build_method(config("knn").method, network, seed=0)
    with pytest.raises(TrainingError, match="was not fitted yet"):
        method.predict(torch.zeros(2, 4))


def test_rows_of_d_u_have_what_was_found_for_them_and_others_are_asked_about() -> None:
    class Half:
        def predict_proba(self, rows: np.ndarray) -> np.ndarray:
            return np.full((len(rows), 2), 0.5)

    rows = np.eye(3, dtype=np.float32)
    found = np.array([[1.0, 0.0], [0.2, 0.8], [0.0, 1.0]])
    chosen = Transduced(rows, found, Half()).predict_proba(
        rows[[2, 0, 1]] + np.array([[0.0], [1e-6], [0.0]], np.float32)
    )
    assert chosen.tolist() == [[0.0, 1.0], [0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize("name", ["label_spreading", "mixture"])
def test_rows_of_d_u_are_found_again_in_any_layout(name: str) -> None:
    def lay_out(rows: Tensor) -> Tensor:
        return rows.T.contiguous().T

    split = wide()
    rows = split.target_unlabeled.inputs
    assert isinstance(rows, Tensor)
    columns = dataclasses.replace(split, target_unlabeled=Unlabeled(lay_out(rows)))
    assert not lay_out(rows).is_contiguous()
    expected = fit(split, config(name)).method.predict(rows)
    for data, asked in ((split, lay_out(rows)), (columns, rows), (columns, lay_out(rows)), (columns, rows[:7])):
        assert torch.equal(fit(data, config(name)).method.predict(asked), expected[: len(asked)])


def wide() -> Split:
    """Embeddings of many numbers, whose squares have another sum in another order."""
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(3, 300, generator=rng)

    def draw(count: int) -> Labeled:
        labels = torch.arange(count) % 3
        return Labeled(means[labels] + 2 * torch.randn(count, 300, generator=rng), labels)

    return Split(("a", "b", "c"), draw(30), draw(3), Unlabeled(draw(40).inputs))


@pytest.mark.parametrize("name", FITTED)
def test_one_unlabelled_image_is_enough(name: str) -> None:
    split = blobs()
    rows = split.target_unlabeled.inputs
    assert isinstance(rows, Tensor)
    found = said(name, dataclasses.replace(split, target_unlabeled=Unlabeled(rows[:1])))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(1))


def test_a_row_has_the_same_numbers_whatever_stands_beside_it() -> None:
    inputs = torch.randn(900, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 40
    whole = unit_rows(inputs)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, rtol=1e-6)
    assert (whole[7:8] == unit_rows(inputs[7:8])).all()
    assert (whole == unit_rows(inputs.double().flatten(1))).all()
    assert (unit_rows(torch.zeros(2, 4)) == 0).all()


@pytest.mark.parametrize("name", FITTED)
def test_every_docstring_has_its_source(name: str) -> None:
    assert "Paper:" in inspect.cleandoc(METHODS[name].load().__doc__)


@pytest.mark.parametrize("name", FITTED)
def test_the_estimator_of_scikit_learn_takes_them(name: str) -> None:
    split = blobs()
    rows = torch.cat([torch.as_tensor(part.inputs) for part in (split.source, split.target_labeled)])
    unlabeled = split.target_unlabeled.inputs
    assert isinstance(unlabeled, Tensor)
    labels = torch.cat([split.source.labels, split.target_labeled.labels, torch.full((40,), -1)]).numpy()
    domain = np.array([1] * 40 + [-2] * 46)
    model = qurate.SSDAClassifier(name, "none", calibrate=False)
    model.fit(torch.cat([rows, unlabeled]).numpy(), labels, sample_domain=domain)
    np.testing.assert_allclose(model.predict_proba(unlabeled.numpy()), said(name, split).numpy(), atol=1e-5)
