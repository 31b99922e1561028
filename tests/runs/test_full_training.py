"""`adapt --train full`: all layers from the head, and which of the two is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.own_images import BACKBONE, make_folders, save_weights
from tests.runs.test_adapt import Listener

import qurate
from qurate.config import NetworkConfig, RunConfig
from qurate.data.class_statistics import class_statistics
from qurate.data.images import ImageFiles
from qurate.data.own_images import read_labeled, read_parts
from qurate.data.samples import Labeled, Split
from qurate.embedding.backbone import freeze_backbone
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.errors import ConfigError
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.run_results import Gain
from qurate.runs import full_training
from qurate.runs.adapt import resolve, run_adaptation
from qurate.runs.full_training import FullTraining, fine_tune, full_config, say_kept
from qurate.runs.options import check_options
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.callbacks import Callback
from qurate.selection.crossfit import HeldOut
from qurate.training import scheduled_rate

FEW = {"steps": 8, "rounds": 1, "full_steps": 3, "selector": "balanced", "progress": False}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    return make_folders(tmp_path)


def adapt(place: dict[str, Any], weights: str, **options: Any) -> Any:
    reporter = options.pop("reporter", None)
    return run_adaptation(
        {**place, "backbone": BACKBONE, "weights": weights, "train": "full", **FEW, **options}, reporter
    )


@pytest.mark.parametrize("better", [True, False])
def test_the_better_of_both_is_kept_and_said(
    better: bool, place: dict[str, Any], weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FullTraining, "kept", property(lambda self: better))
    heard, out = Listener(), tmp_path / "run"
    outcome = adapt(place, weights, out=out, cache=tmp_path / "cache", reporter=heard)
    about = json.loads((out / "model.json").read_text())
    assert about["trained"] == ("full" if better else "head")
    assert about["kept"] in heard.lines
    assert "All layers were trained, and " in about["kept"]
    assert "held-out labelled images" in about["kept"]
    assert about["kept"] in outcome.record.notes
    assert outcome.record.comparison is not None
    assert json.loads((out / "config.json").read_text())["full"]["frozen_norms"] is True
    assert not list(out.glob("full*.safetensors"))  # the run is finished
    model = qurate.load(out)
    assert model.origin["kept"] == about["kept"]
    told = model.predict(place["unlabeled"]).set_index("file")
    written = pd.read_csv(out / "predictions.csv").set_index("file").loc[told.index]
    assert list(told["label"]) == list(written["label"])
    assert told["probability"].to_numpy() == pytest.approx(written["probability"].to_numpy(), abs=1e-3)
    source = read_labeled(place["source"], "source")
    assert isinstance(source.inputs, ImageFiles)
    embedded = embed_files(list(source.inputs.paths), model.frozen, cached=False).of(source.inputs)
    wanted, known = class_statistics(Labeled(embedded, source.labels), 3), model.source_statistics
    assert wanted is not None
    assert known is not None  # of what the backbone in the model gives, which may be trained
    torch.testing.assert_close(known.means, wanted.means, rtol=1e-3, atol=1e-3)
    target = {name: place[name] for name in ("labeled", "unlabeled")}
    few = {"steps": 4, "rounds": 1, "selector": "balanced", "progress": False, "compare": False}
    after = run_adaptation({**target, **few, "from_model": out, "cache": tmp_path / "cache"}).model
    assert torch.equal(*(each.network.backbone.state_dict()["conv1.0.weight"] for each in (model, after)))


def test_a_run_repeats_by_its_config_and_resumes(place: dict[str, Any], weights: str, tmp_path: Path) -> None:
    first = adapt(place, weights, out=tmp_path / "run", cache=tmp_path / "cache", compare=False)
    options = {"config": tmp_path / "run" / "config.json", "cache": tmp_path / "cache", "progress": False}
    again: Any = run_adaptation({**options, "compare": False, "weights": weights})
    pd.testing.assert_frame_equal(first.record.predictions, again.record.predictions)
    assert "no labelled image was held out" in again.model.origin["kept"]


def test_what_is_not_for_it_is_refused(place: dict[str, Any], weights: str) -> None:
    given = {**place, "backbone": BACKBONE, "weights": weights}
    with pytest.raises(ConfigError, match="`full_steps` is for `train='full'`"):
        resolve(check_options({**given, "full_steps": 3}))
    as_printed = resolve(check_options({**given, "train": "full", "preset": "paper"}))
    assert (as_printed.full, as_printed.config.network.backbone) == (None, BACKBONE)
    assert (as_printed.config.training.backbone_learning_rate, as_printed.config.training.frozen_norms) == (
        0.001,
        False,
    )


@pytest.fixture
def head(place: dict[str, Any], weights: str, tmp_path: Path) -> tuple[Split, Split, RunConfig, Adaptation, RunConfig]:
    files = read_parts(place["source"], place["labeled"], place["unlabeled"], cache=tmp_path / "cache").split
    embedded = put_embeddings(files, embed_files(image_paths(files), freeze_backbone(BACKBONE, weights), cached=False))
    config = make_config("tml", "balanced", steps=8, rounds=1, round_steps=4, device="cpu")
    found = fit(embedded, config)
    training = full_training.full_training(config.training, 4)
    training = replace(training, batch_source=4, batch_target=4, batch_unlabeled=4)
    full = full_config(config, NetworkConfig(BACKBONE, weights, "normalized"), training)
    return files, embedded, config, found, full


def test_it_starts_where_the_head_ended(head: tuple[Split, Split, RunConfig, Adaptation, RunConfig]) -> None:
    files, embedded, _, found, full = head
    slow = replace(full, training=replace(full.training, learning_rate=1e-12, backbone_learning_rate=1e-12))
    before = found.method.state_dict()
    still, tuned = fine_tune(files, found, slow), fine_tune(files, found, full)
    for name, values in before.items():
        assert torch.allclose(still.state_dict()[name], values, atol=1e-6), name
        is_statistic = "running" in name or "num_batches" in name
        assert torch.equal(tuned.state_dict()[name], values) is is_statistic, name
    frozen = {name: values for name, values in still.state_dict().items() if "running" in name}
    assert frozen
    assert all(torch.equal(tuned.state_dict()[name], values) for name, values in frozen.items())
    assert len(found.positives) > 0
    by_head = log_probabilities(found.method.network, embedded.target_unlabeled.inputs)
    assert by_head.shape == log_probabilities(tuned.network, files.target_unlabeled.inputs).shape


class StopError(Exception):
    pass


class Stop(Callback):
    def on_step(self, step: int, terms: dict[str, float]) -> None:
        if step == 3:
            raise StopError


def test_it_resumes_to_the_last_bit(
    head: tuple[Split, Split, RunConfig, Adaptation, RunConfig], tmp_path: Path
) -> None:
    files, _, _, found, full = head
    full = replace(full, execution=replace(full.execution, checkpoint_steps=1, threads=1))
    whole, file = fine_tune(files, found, full), tmp_path / "full.safetensors"
    with pytest.raises(StopError):
        fine_tune(files, found, full, file=file, callbacks=[Stop()])
    assert file.is_file()
    resumed = fine_tune(files, found, full, file=file).state_dict()
    assert all(torch.equal(values, resumed[name]) for name, values in whole.state_dict().items())
    file.write_bytes(b"damaged")
    again = fine_tune(files, found, full, file=file).state_dict()
    assert all(torch.equal(values, again[name]) for name, values in whole.state_dict().items())


def test_the_sign_of_the_estimated_gain_decides() -> None:
    labels = torch.tensor([0, 1, 1])
    by_full, by_head = torch.eye(2)[labels].log_softmax(1), torch.eye(2)[[0, 0, 0]].log_softmax(1)
    for estimate, kept in ((0.02, True), (-0.01, False)):
        gain = Gain(estimate, estimate - 0.01, estimate + 0.01, 0.1)
        judged = HeldOut(torch.arange(3), labels, by_full, by_head)
        done = FullTraining(None, {0: by_full}, gain, say_kept(judged, gain))  # type: ignore[arg-type]
        assert done.kept is kept
        assert ("fully trained model is kept" in done.sentence) is kept
        assert "right on 3 of 3 held-out labelled images against 1" in done.sentence


def test_rates_warm_up() -> None:
    config = full_training.full_training(make_config().training, 60)
    steps = config.warmup_steps
    assert steps > 0
    plain = replace(config, warmup_steps=0)
    for step in range(60):
        expected = scheduled_rate(1.0, plain, step, 61) * min(1, (step + 1) / (steps + 1))
        assert scheduled_rate(1.0, config, step, 61) == pytest.approx(expected)
