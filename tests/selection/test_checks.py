"""Whatever is handed to `fit` is what it needs, or one of our errors says so before anything is built."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qurate.config import NetworkConfig, RunConfig
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.errors import QurateError
from qurate.presets import make_config
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.session import Pretraining

CONFIG = make_config("TML_SPL", steps=2, rounds=1, round_steps=1, device="cpu")
SPLIT = Split(
    ("a", "b"),
    Labeled(torch.randn(6, 4), torch.tensor([0, 1] * 3)),
    Labeled(torch.randn(2, 4), torch.tensor([0, 1])),
    Unlabeled(torch.randn(5, 4)),
)


class Chooses:
    """A custom selector."""

    def __init__(self, chosen: Any) -> None:
        self.chosen = chosen

    def select(self, round: Round) -> Positives:
        return round.positives_at(self.chosen)


class Returns(Chooses):
    """Another, that does not ask the round."""

    def select(self, round: Round) -> Positives:
        return self.chosen  # type: ignore[no-any-return]  # the wrong thing


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"split": "digits"}, "split must be a Split, for example .* got str"),
        ({"config": "tml"}, r"config must be a RunConfig, such as make_config\('tml'\) makes, got str"),
        ({"selector": "dqn"}, r"selector must be an object with a method select\(round\), got str"),
        ({"selector": Chooses}, "selector must be an object .* got type"),
        ({"callbacks": Callback()}, "callbacks must be a list of Callback objects, got Callback"),
        ({"callbacks": [Callback(), print]}, "callbacks must be a list of Callback objects, got builtin_function"),
        ({"checkpoint": "folder"}, r"checkpoint must be an object with load\(\) and save\(progress\), got str"),
        ({"pretrained": 5}, "pretrained must be a Pretraining, got int"),
        ({"pretrained": Pretraining({"x": torch.zeros(1)})}, "The state is of another network, method or optimiser"),
        ({"selector": Returns([1])}, r"Returns.select must return Positives, such as round.positives_at\(indices\)"),
        ({"selector": Chooses([0, 1])}, r"indices must be a tensor \(N,\) of int64 between 0 and 4, got list"),
        ({"selector": Chooses(torch.arange(9))}, r"indices must be a tensor .* between 0 and 4, got 0 to 8"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(change: dict[str, Any], said: str) -> None:
    with pytest.raises(QurateError, match=said):
        fit(**{"split": SPLIT, "config": CONFIG, **change})


def with_source(inputs: torch.Tensor) -> Split:
    return Split(("a", "b"), Labeled(inputs, torch.tensor([0, 1] * 3)), SPLIT.target_labeled, SPLIT.target_unlabeled)


@pytest.mark.parametrize(
    ("split", "config", "said"),
    [
        (with_source(torch.randn(6, 1, 8, 8)), CONFIG, "source.inputs must be .* embeddings; a network for images has"),
        (
            with_source(torch.randn(6, 5)),
            CONFIG,
            r"target_labeled.inputs must be a tensor \(N, 5\).*got a tensor",
        ),
        (with_source(torch.ones(6, 4, dtype=torch.int64)), CONFIG, "must be a tensor of floating-point numbers"),
        (SPLIT, make_config(network=NetworkConfig("digits")), r"must be a tensor \(N, 1, height, width\) of images"),
    ],
)
def test_a_network_that_cannot_read_the_split_says_so(split: Split, config: RunConfig, said: str) -> None:
    with pytest.raises(QurateError, match=said):
        fit(split, config)


def test_a_selector_may_choose_none() -> None:
    assert len(fit(SPLIT, CONFIG, selector=Chooses(torch.arange(0))).positives) == 0
