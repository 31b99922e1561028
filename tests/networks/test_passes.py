"""A batch in several passes is as good as in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.test_distributed import digits_config, in_double, pictures
from tests.test_training import blobs, config
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from qurate.config import ExecutionConfig, NetworkConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.digits import digits_split
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.errors import ConfigError, TrainingError
from qurate.networks.heads import CosineClassifier, Network
from qurate.networks.inference import evaluation_mode
from qurate.registry import TRAINED
from qurate.runtime.randomness import generator, seeded
from qurate.training import Trainer, start


def trained(split: Split, run: RunConfig, **training: Any) -> dict[str, Tensor]:
    again = training.pop("activation_checkpointing", False)
    execution = ExecutionConfig("cpu", activation_checkpointing=again)
    trainer = start(split, replace(run, training=replace(run.training, **training), execution=execution))
    trainer.run(TrainingData.of(split), steps=4, seed=0)
    counts = ("num_batches_tracked",)  # of passes, and some are made twice
    return {name: v for name, v in trainer.method.state_dict().items() if not name.endswith(counts)}


@pytest.fixture
def digits() -> Split:
    return in_double(digits_split(shots=3, seed=0))


@pytest.mark.parametrize("rows", [20, 7])
@pytest.mark.parametrize("name", TRAINED)
def test_micro_batches_change_nothing_without_batch_norm_in_the_backbone(
    name: str, rows: int, digits: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn, "BatchNorm2d", lambda width: nn.Identity())
    whole, parts = trained(digits, digits_config(name)), trained(digits, digits_config(name), micro_batch=rows)
    assert any("bottleneck" in key and "running" in key for key in whole)  # that norm sees the whole batch
    for key, values in whole.items():
        assert torch.allclose(values, parts[key], atol=1e-9), key


def test_batch_norm_takes_the_statistics_of_the_rows_that_pass_and_counts_them_once(digits: Split) -> None:
    whole, parts = trained(digits, digits_config()), trained(digits, digits_config(), micro_batch=24)
    norm = "network.backbone.layers.1.running_mean"
    assert not torch.equal(whole[norm], parts[norm])  # said in TrainingConfig.micro_batch
    assert torch.allclose(whole[norm], parts[norm], atol=0.2)


def test_frozen_norms_keep_their_statistics_and_see_no_other_rows(digits: Split) -> None:
    whole, parts = (trained(digits, digits_config(), frozen_norms=True, micro_batch=rows) for rows in (0, 7))
    for key, values in whole.items():
        assert torch.allclose(values, parts[key], atol=1e-9), key
    assert float(whole["network.backbone.layers.1.running_mean"].abs().max()) == 0  # as it came
    assert float(whole["network.backbone.layers.1.running_var"].sub(1).abs().max()) == 0
    assert float(whole["network.backbone.layers.1.weight"].sub(1).abs().max()) > 0  # its weights learn
    changing = trained(digits, digits_config())
    assert float(changing["network.backbone.layers.1.running_mean"].abs().max()) > 0


def test_a_frozen_norm_of_timm_is_the_layer_in_evaluation_and_stays_it() -> None:
    layer = BatchNormAct2d(3).double()
    layer.running_mean = torch.randn(3, generator=generator(0)).double()
    inputs = torch.randn(4, 3, 5, 5, generator=generator(1)).double()
    expected = layer.eval()(inputs)
    network = Network(layer, nn.Flatten(), CosineClassifier(75, 2, 30.0), pretrained=True)
    network.frozen_norms = True
    for _ in range(2):
        network.train()
        assert network.bottleneck.training
        assert torch.equal(network.backbone(inputs), expected)
        with evaluation_mode(network):
            assert not network.bottleneck.training


def test_micro_batches_recompute_the_same_dropout() -> None:
    backbone = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    network = Network(backbone, nn.Identity(), CosineClassifier(3, 2, 30.0).double(), pretrained=True)
    network.micro_batch = 4
    inputs, masks = torch.randn(11, 4, generator=generator(0)).double(), []
    backbone[1].register_forward_hook(lambda layer, given, made: masks.append(made.detach() != 0))
    with seeded(0):
        network.train().features(inputs).square().sum().backward()
    assert [len(mask) for mask in masks[:3]] == [4, 4, 3]
    assert all(any(torch.equal(mask, again) for again in masks[3:]) for mask in masks[:3])


def test_activation_checkpointing_changes_nothing_batch_norm_included(tmp_path: Path) -> None:
    source, labeled = (Labeled(*pictures(tmp_path, count, seed)) for seed, count in ((0, 4), (1, 3)))
    split = Split(tuple("abc"), source, labeled, Unlabeled(pictures(tmp_path, 4, 2)[0]))
    run = RunConfig(
        NetworkConfig("timm/test_resnet", features=8), training=replace(config().training, learning_rate=1e-3)
    )
    few = {"batch_source": 2, "batch_target": 2, "batch_unlabeled": 2}
    kept, again = trained(split, run, **few), trained(split, run, **few, activation_checkpointing=True)
    for key, values in kept.items():
        assert torch.allclose(values, again[key], atol=1e-5), key


def test_a_backbone_that_cannot_is_named() -> None:
    split = digits_split(shots=3, seed=0)
    run = digits_config()
    with pytest.raises(ConfigError, match=r"DigitsCNN, which cannot .* `micro_batch`"):
        start(split, replace(run, execution=ExecutionConfig(activation_checkpointing=True)))


@pytest.mark.parametrize(("where", "what"), [(Trainer, "minimize"), (TrainingData, "to")])
def test_no_memory_left_says_what_to_turn_on(where: type, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split = blobs()
    trainer = start(split, config())

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(where, what, full)
    with pytest.raises(TrainingError, match=r"20.00 GiB.*these: `micro_batch=24`.*bf16"):
        trainer.run(TrainingData.of(split), steps=1, seed=0)
