"""A finished run that answers are about: its settings, its model, its pseudo-labels, and whether they fit."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from qurate.config import RunConfig
from qurate.data.domains import list_some
from qurate.data.embedding.several import Frozen, transforms_of
from qurate.data.parts import Parts, paths_of
from qurate.data.places import Place
from qurate.errors import ConfigError, DataError
from qurate.methods import build_method
from qurate.networks.heads import Network
from qurate.networks.offline import find_weights
from qurate.runs.about import file_of, read_about
from qurate.runs.answers import LABELS_FILE
from qurate.runs.model import AdaptedModel, load
from qurate.runs.origin import check_beside_previous, is_text, read_settings_of
from qurate.runs.staging import CONFIG_FILE, POSITIVES_FILE, PREDICTIONS_FILE, RunError
from qurate.runs.suggestions import read_run_table
from qurate.runtime.checksums import tensor_digest
from qurate.runtime.tables import to_csv
from qurate.selection.positives import Positives

_NUMBERS = ("reward", "phi", "classifier_prob", "center_prob", "entropy_drop")


@dataclass(frozen=True, eq=False)
class PreviousRun:
    """A finished run.

    Args:
        folder: Where it is.
        settings: Its config.json.
        config: The run that these describe.
        model: Its model.
        predictions: predictions.csv, all of it text.
        positives: positives.csv, likewise.
    """

    folder: Path
    settings: Mapping[str, Any]
    config: RunConfig
    model: AdaptedModel
    predictions: pd.DataFrame
    positives: pd.DataFrame

    @property
    def labels(self) -> Path:
        """Where the answers about it are."""
        return self.folder / LABELS_FILE

    @property
    def compared(self) -> Path:
        """The run whose page says whether adaptation helped: this one, or the first that it goes back to."""
        back = self.settings.get("compared_in")
        return Path(back) if isinstance(back, str) and back else self.folder

    @property
    def compared_in(self) -> str | None:
        """The same for config.json; None where the path is no valid text."""
        return str(self.compared) if is_text(str(self.compared)) else None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a run that learns from answers about it depends on."""
        weights = {name: values.cpu() for name, values in self.model.network.state_dict().items()}
        return {"model": tensor_digest(weights), "positives": hashlib.sha256(to_csv(self.positives)).hexdigest()}

    @cached_property
    def predicted(self) -> dict[str, str]:
        """Its prediction of each image, by absolute path."""
        return {whole_path(file): label for file, label in self.predictions[["file", "label"]].itertuples(index=False)}

    def sure_of(self, files: Sequence[Path]) -> float:
        """Mean probability that its model gave the classes it named in these images; 1 where its table does not say."""
        if "probability" not in self.predictions:
            return 1.0
        wanted = {whole_path(file) for file in files}
        rows = self.predictions[[whole_path(file) in wanted for file in self.predictions["file"]]]
        sure = pd.to_numeric(rows["probability"], errors="coerce").clip(0, 1).mean()
        return 1.0 if math.isnan(sure) else float(sure)

    @cached_property
    def learned(self) -> dict[str, tuple[str, str]]:
        """What it had been told already: the answer and the class, by absolute path."""
        if not {"answer", "answer_label"} <= set(self.predictions):
            return {}
        rows = self.predictions[["file", "answer", "answer_label"]].itertuples(index=False)
        return {whole_path(file): (answer, label) for file, answer, label in rows if answer}

    def understand(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Config, backbone and weights of a run that learns from answers about it.

        Args:
            given: Words and numbers that were given beside it.

        Raises:
            ConfigError: If they say anything but where the weights are and where to train.
            RunError: If its own settings are damaged.
        """
        check_beside_previous(given)
        config = self.config
        if "device" in given:
            config = dataclasses.replace(config, training=dataclasses.replace(config.training, device=given["device"]))
        backbone, weights = self.settings.get("backbone"), given.get("weights") or self.settings.get("weights")
        if not isinstance(backbone, str) or not isinstance(weights, str):
            raise RunError(f"{self.folder / CONFIG_FILE}: damaged (it does not name the backbone and its weights).")
        weights = find_weights(backbone, weights)
        if config.network.backbone != "none":
            config = dataclasses.replace(config, network=dataclasses.replace(config.network, weights=weights))
        return {"config": config, "backbone": backbone, "weights": weights}

    def check(self, parts: Parts, frozen: Frozen) -> None:
        """Make sure that its model is one of these classes and images, before any work.

        Raises:
            DataError: If the classes are others.
            ConfigError: If the backbone, its weights or the preparation of images are.
            RunError: If positives.csv is damaged.
        """
        self.trusted(paths_of(parts.split.target_unlabeled))
        own, wanted = self.model.classes, parts.split.classes
        if own != wanted:
            differ = [name for name in (*own, *wanted) if name not in own or name not in wanted]
            what = f"these differ: {list_some(differ)}" if differ else "their order differs"
            raise DataError(
                f"a run that learns from answers about {self.folder} must have its {len(own)} classes, and {what}. "
                "Give the images of that run, or give `labels` without `previous` for a whole run."
            )
        if self.model.transforms != transforms_of(frozen):
            raise ConfigError(
                f"the images of {self.folder} were prepared in another way than this version of qurate does for "
                f"{self.settings.get('backbone')}, so no run can learn from answers about it. Give `labels` without "
                "`previous` for a whole run."
            )
        identity = hashlib.sha256(frozen.identity.encode()).hexdigest()
        if self.settings.get("backbone_sha256", identity) != identity:
            raise ConfigError(
                f"a run that learns from answers about {self.folder} must have its backbone, "
                f"{self.settings.get('backbone')}, with the same weights; these are others. Pass its weights as "
                "`weights=FILE`."
            )

    def weights(self) -> dict[str, Tensor]:
        """State of its method: F and C as they were. What a method has beside them begins anew, as at the start."""
        kept = self.model.network
        network = kept
        if self.config.network.backbone == "none":  # only the head was trained
            network = Network(nn.Identity(), kept.bottleneck, kept.classifier, pretrained=kept.pretrained)
        return build_method(self.config.method, network, seed=self.config.seed).state_dict()

    def trusted(self, files: Sequence[Path]) -> Positives:
        """Its D_p, as positions in a D_u of these files; what is not among them is left out.

        Raises:
            RunError: If positives.csv is damaged.
        """
        place = {whole_path(file): i for i, file in enumerate(files)}
        table = self.positives
        places = [place.get(whole_path(file), -1) for file in table["file"]]
        try:
            labels = [self.model.classes.index(label) for label in table["label"]]
            rounds = [int(number) for number in table["round"]]
            where, named, since = (torch.tensor(column, dtype=torch.int64) for column in (places, labels, rounds))
            numbers = [torch.tensor([float(x) if x else math.nan for x in table[name]]) for name in _NUMBERS]
        except (ValueError, OverflowError, RuntimeError) as error:  # torch has its own words for numbers too large
            path = self.folder / POSITIVES_FILE
            raise RunError(f"{path}: damaged ({error}). Adapt again without `previous`.") from error
        whole = Positives(where, named, since, *numbers)
        return whole.take(whole.indices >= 0)


def read_previous(run: Place | AdaptedModel) -> PreviousRun:
    """A run that answers are about.

    Args:
        run: Its folder, or its model.

    Raises:
        ConfigError: If the model was not written as a run.
        ModelError: If the run is not finished, or its model is damaged.
        RunError: If its tables are missing or damaged.
    """
    if isinstance(run, AdaptedModel):
        if run.folder is None:
            raise ConfigError(
                "previous: this model was not written as a run. Adapt with `out`, or give a run's folder."
            )
        run = run.folder
    read_about(run)  # which judges what was given
    folder = Path(run)
    settings = read_settings_of(folder)
    config = RunConfig.from_file(file_of(folder, CONFIG_FILE))
    predictions = read_run_table(folder, PREDICTIONS_FILE, "file", "label")
    positives = read_run_table(folder, POSITIVES_FILE, "file", "label", "round", *_NUMBERS)
    return PreviousRun(folder, settings, config, load(folder), predictions, positives)


def whole_path(file: Path | str) -> str:
    """One name for an image, however a table spells it: its absolute path; links are not followed."""
    return os.path.abspath(file)  # noqa: PTH100  # Path.absolute keeps '..'
