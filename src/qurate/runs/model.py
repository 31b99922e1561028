"""An adapted model: a network, its classes and how to use it, in two files; reading them runs no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.active.strategies import QueryStrategy
from qurate.calibration import Calibration, at_temperature
from qurate.config import NetworkConfig
from qurate.data.domains import leave_out, list_some
from qurate.data.images import ImageFiles, Interpolation, OnProgress, Transform
from qurate.data.own_images import StrPath, find_images, read_labeled
from qurate.data.samples import DataError
from qurate.embedding.backbone import freeze_module
from qurate.embedding.embed import Embeddings, embed_files
from qurate.evaluation import Metrics, calibration_error, measure
from qurate.networks.backbones import ConcatenatedBackbones
from qurate.networks.heads import Network, build_network
from qurate.networks.inference import infer
from qurate.runs.model_json import ABOUT_FILE, FORMAT, WEIGHTS_FILE, ModelError, file_of, read_about
from qurate.runs.options import DEFAULT_QUERY_STRATEGY
from qurate.runtime.files import write_atomically
from qurate.runtime.paths import as_path, shorten
from qurate.runtime.tensors import not_finite, tensor_digest


def network_transforms(network: Network) -> tuple[Transform, ...]:
    """How image files are prepared for each backbone of a network; none if it takes no files."""
    if isinstance(network.backbone, ConcatenatedBackbones):
        return network.backbone.transforms
    return () if network.transform is None else (network.transform,)


def set_transforms(network: Network, transforms: tuple[Transform, ...]) -> None:
    """Set how image files are prepared for each backbone."""
    wanted = len(network_transforms(network))
    if not wanted:
        raise ValueError("its backbone takes no image files")
    if len(transforms) != wanted:
        raise ValueError(f"transform must be {wanted} tables, one for each backbone, got {len(transforms)}")
    if isinstance(network.backbone, ConcatenatedBackbones):
        network.backbone.transforms = transforms
    else:
        (network.transform,) = transforms


def describe_preparation(transforms: Sequence[Transform]) -> list[str]:
    """How an image becomes an input, in sentences."""
    lines = []
    for number, transform in enumerate(transforms):
        size, crop = transform.resize, transform.crop
        backbone = f"backbone.members.{number}.*" if len(transforms) > 1 else "backbone.*"
        lines += [
            f"Decode to RGB, upright by the EXIF tag; resize to {size} x {size} pixels ({transform.interpolation}), "
            f"cut the centre {crop} x {crop}, divide by 255, subtract mean, divide by std.",
            f"Input: float32 (N, 3, {crop}, {crop}). Tensors: {backbone}, bottleneck.*, classifier.weight.",
        ]
    if len(transforms) > 1:
        lines.append(
            f"backbone(x): each of the {len(transforms)} vectors divided by its length, side by side, times the square "
            f"root of their whole width / {len(transforms)}."
        )
    return lines


def read_transform(stored: Any) -> Transform:
    """How images are prepared for one backbone, from model.json."""
    sizes, scales = ("resize", "crop"), ("mean", "std")
    if not isinstance(stored, dict) or stored.keys() - {"interpolation"} != {*sizes, *scales}:
        raise ValueError(
            "transform must be a table of resize, crop, mean, std and perhaps interpolation, got "
            f"{shorten(repr(stored))}"
        )
    for name in sizes:
        if type(stored[name]) is not int:
            raise ValueError(f"transform.{name} must be an integer, got {shorten(repr(stored[name]))}")
    for name in scales:
        values = stored[name] if isinstance(stored[name], list) else []
        is_allowed = all(type(x) in (int, float) and math.isfinite(x) and (x > 0 or name == "mean") for x in values)
        if len(values) != 3 or not is_allowed:
            kind = "positive numbers" if name == "std" else "numbers"
            raise ValueError(f"transform.{name} must be three {kind}, got {shorten(repr(stored[name]))}")
    interpolation = stored.get("interpolation", "bilinear")
    if interpolation not in get_args(Interpolation):
        raise ValueError(
            f"transform.interpolation must be one of {', '.join(get_args(Interpolation))}, got "
            f"{shorten(repr(interpolation))}"
        )
    return Transform(stored["resize"], stored["crop"], tuple(stored["mean"]), tuple(stored["std"]), interpolation)


def load_tensors(network: Network, path: Path, checksum: str | None) -> None:
    """Put the tensors of model.safetensors into a network; models of version 0.1 have no checksum."""
    try:
        tensors = safetensors.torch.load_file(path)
    except Exception as error:  # a damaged or foreign file fails in many ways; none of them runs its code
        raise ModelError(f"{path}: not a safetensors file of this model ({type(error).__name__}: {error}).") from error
    own = network.state_dict()
    wrong = sorted(own.keys() ^ tensors.keys())
    wrong += sorted(name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape)
    if wrong:
        raise ModelError(
            f"{path}: must hold the {len(own)} tensors that {ABOUT_FILE} describes, but {len(wrong)} are missing, "
            f"extra or of another shape: {list_some(wrong, 3)}. Do both files belong to one model?"
        )
    damaged = checksum is not None and tensor_digest(tensors) != checksum
    if damaged or (strange := not_finite(tensors)):
        why = f"its numbers are not those that {ABOUT_FILE} was written with" if damaged else f"NaN in {strange[0]}"
        raise ModelError(f"{path}: damaged ({why}). Copy it again, or adapt again.")
    network.load_state_dict(tensors)


class Looked(NamedTuple):
    """Readable image files, their embeddings (N, width) and probabilities (N, K); and why others cannot be read."""

    files: tuple[Path, ...]
    embeddings: Tensor
    probabilities: Tensor
    unreadable: Mapping[Path, str]


@dataclass(frozen=True, eq=False, repr=False)
class AdaptedModel:
    """An image classifier for the target domain.

    Args:
        network: Prepared images (N, 3, crop, crop), for each backbone its own, to logits (N, K).
        config: Backbone, bottleneck and classifier that the network is made of.
        classes: Class names.
        origin: Where it comes from: the backbone's weights, what was trained, the version of qurate.
        cache: Folder of the embedding cache; the user's unless given.
        calibration: What the logits are divided by, so that probabilities mean what they say.
        folder: The run that it comes from, if it was written.

    Example:
        >>> model = qurate.load("run")  # needs images  # doctest: +SKIP
        >>> model.predict("photos/phone")  # needs images  # doctest: +SKIP
    """

    network: Network
    config: NetworkConfig
    classes: tuple[str, ...]
    origin: dict[str, Any] = field(default_factory=dict)
    cache: Path | None = None
    calibration: Calibration = field(default_factory=Calibration)
    folder: Path | None = None

    def __repr__(self) -> str:
        trained = "all layers trained" if self.origin.get("trained") == "full" else "head trained"
        return (
            f"AdaptedModel({len(self.classes)} classes: {list_some(self.classes, 3)}; backbone "
            f"{self.config.backbone}, {trained})"
        )

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """How image files are prepared for each backbone; most models have one."""
        return network_transforms(self.network)

    def predict(self, images: StrPath | Sequence[StrPath], on_progress: OnProgress | None = None) -> pd.DataFrame:
        """The most probable class of each image.

        Args:
            images: A folder, a glob, a list file, one image or paths.
            on_progress: Called with the number of images that are done, and of all.

        Returns:
            Columns file, label, probability and problem; an unreadable image has an empty label, no probability and its
            problem in words. Probabilities are calibrated where `calibration` says so.
        """
        files = find_images(images)
        seen = self.look(files, on_progress)
        sure, labels = seen.probabilities.max(dim=1)
        named = zip([self.classes[label] for label in labels.tolist()], sure.tolist(), strict=True)
        found = dict(zip(seen.files, named, strict=True))
        rows = [(str(file), *found.get(file, ("", math.nan)), seen.unreadable.get(file, "")) for file in files]
        return pd.DataFrame(rows, columns=["file", "label", "probability", "problem"])

    def evaluate(self, labeled: StrPath, on_progress: OnProgress | None = None) -> Metrics:
        """Accuracy, balanced accuracy, per class, confusion and calibration error on labelled images.

        Args:
            labeled: Class folders, a list file or a CSV table; classes may be missing, but none may be new. Unreadable
                images are left out with a warning.
            on_progress: Called with the number of images that are done, and of all.
        """
        domain = read_labeled(labeled, "labeled")
        if strange := [name for name in domain.classes if name not in self.classes]:
            raise DataError(
                f"labeled ('{domain.name}') may only have the model's classes ({list_some(self.classes)}), got also "
                f"{list_some(strange)}. Rename or remove them."
            )
        if not domain.classes:
            raise DataError(f"{labeled}: no image has a class, so there is nothing to measure. Label some of them.")
        assert isinstance(domain.inputs, ImageFiles)
        found = self._embed(domain.inputs.paths, on_progress)
        domain = leave_out(domain, found.unreadable)
        assert isinstance(domain.inputs, ImageFiles)
        into = torch.tensor([self.classes.index(name) for name in domain.classes] + [-1])
        log_probs, labels = self._classify(found.of(domain.inputs)), into[domain.labels]
        probabilities = at_temperature(log_probs, self.calibration.temperature)
        return replace(
            measure(log_probs.argmax(dim=1), labels, len(self.classes)),
            confidence=float(probabilities[labels >= 0].max(dim=1).values.mean()),
            calibration_error=calibration_error(probabilities, labels),
            uncalibrated_error=calibration_error(log_probs.exp(), labels),
        )

    def suggest(
        self,
        count: int,
        images: StrPath | Sequence[StrPath] | None = None,
        *,
        asker: str | QueryStrategy = DEFAULT_QUERY_STRATEGY,
        random_share: float = 0.0,
        seed: int = 0,
        on_progress: OnProgress | None = None,
    ) -> pd.DataFrame:
        """Which images a person should label next.

        Args:
            count: How many.
            images: To choose from: a folder, a glob, a list file or paths; the unlabelled images of the run that the
                model comes from unless given, without those that have an answer in its labels.csv.
            asker: How they are chosen: one of `qurate.QUERY_STRATEGIES`, or an `QueryStrategy` of your own.
            random_share: Part of them that is drawn at random instead, between 0 and 1. Only that part shows how often
                the model is right.
            seed: Decides everything random.
            on_progress: Called with the number of images that are done, and of all.

        Returns:
            Columns file, label (empty, for the answer), predicted, probability, runner_up, asker and why; in the order
            of asking.
        """
        from qurate.runs.suggestions import suggest_images

        return suggest_images(self, count, images, asker, random_share=random_share, seed=seed, on_progress=on_progress)

    def look(self, files: Sequence[Path], on_progress: OnProgress | None = None) -> Looked:
        """Embeddings and probabilities of the image files that can be read; why the others cannot."""
        found = self._embed(files, on_progress)
        readable = tuple(file for file in files if file not in found.unreadable)
        embeddings = found.of(ImageFiles(readable))
        probabilities = at_temperature(self._classify(embeddings), self.calibration.temperature)
        return Looked(readable, embeddings, probabilities, found.unreadable)

    def export(self, path: StrPath, *, force: bool = False) -> Path:
        """Write an ONNX file for use without qurate, checked against the model. Needs the extra `qurate[onnx]`.

        Args:
            path: File to write.
            force: Overwrite it if it exists.
        """
        from qurate.runs.export import export_onnx

        target = as_path(path, "path", "a file to write")
        return export_onnx(self.network, self.classes, self.transforms, target, self.calibration, force=force)

    def save(self, folder: StrPath) -> None:
        """Write model.safetensors and model.json, each whole or not at all.

        Raises:
            ModelError: If they cannot be written.
        """
        path = as_path(folder, "folder", "a folder")
        try:
            self.write(path)
        except OSError as error:
            raise ModelError(f"{path}: cannot be written ({error.strerror}). Choose another folder.") from error

    def write(self, path: Path) -> None:
        """`save`, with errors of the disk as they come."""
        tensors = {name: values.detach().cpu().contiguous() for name, values in self.network.state_dict().items()}
        write_atomically(path / WEIGHTS_FILE, safetensors.torch.save(tensors, metadata={"format": FORMAT}))
        self.write_about(path)

    def write_about(self, path: Path) -> None:
        """Write model.json alone; the tensors have not changed."""
        about = {**self.about(), "sha256": tensor_digest(self.network.state_dict())}
        write_atomically(path / ABOUT_FILE, json.dumps(about, indent=2, ensure_ascii=False) + "\n")

    def about(self) -> dict[str, Any]:
        """How to use the model, with or without qurate."""
        prepared = [transform.to_dict() for transform in self.transforms]
        return {
            "format": FORMAT,
            **self.origin,
            "network": asdict(self.config),
            "classes": list(self.classes),
            "transform": prepared[0] if len(prepared) == 1 else prepared,
            "calibration": asdict(self.calibration),
            "how to use": [
                *describe_preparation(self.transforms),
                "logits = scale * normalize(bottleneck(backbone(x))) @ normalize(classifier.weight).T; "
                "softmax(logits / temperature) gives probabilities, in the order of classes.",
                "Python: qurate.load(FOLDER).predict(IMAGES).",
            ],
        }

    def _embed(self, files: Sequence[Path], on_progress: OnProgress | None) -> Embeddings:
        backbone = self.network.eval().backbone
        frozen = freeze_module(self.config.backbone, backbone, self.network.width, self.transforms)
        shared = self.origin.get("trained") == "head"  # else the backbone is one that no other run will have
        found = embed_files(files, frozen, cache=self.cache, cached=shared, on_progress=on_progress)
        backbone.to("cpu")
        return found

    def _classify(self, embeddings: Tensor) -> Tensor:
        """Log-probabilities of images by their embeddings, (N, K), not calibrated."""
        network, log_probs = self.network, torch.empty(len(embeddings), len(self.classes))

        def classify(batch: Tensor) -> Tensor:
            return F.log_softmax(network.classifier(network.bottleneck(batch)), dim=1)

        return infer(network, embeddings, classify, out=log_probs)


def load(folder: StrPath) -> AdaptedModel:
    """A model that was saved; no code in the files is ever run.

    Args:
        folder: A run folder, or one that `AdaptedModel.save` wrote.

    Raises:
        ModelError: If a file is missing, damaged or not qurate's.
    """
    about = read_about(folder)
    path = Path(folder)
    classes = tuple(about["classes"])
    try:
        if not isinstance(stored := about.get("network"), dict):
            raise ValueError(f"network must be a table, got {shorten(repr(stored))}")
        config = replace(NetworkConfig.from_dict(stored), weights="none")  # they are in the other file
        if ":" in config.backbone:  # timm would ask the Hugging Face Hub what it is
            raise ValueError(f"backbone must be a name, not an address, got {shorten(repr(config.backbone))}")
        stored_transforms = about.get("transform")
        if not isinstance(stored_transforms, list):  # of one backbone
            stored_transforms = [stored_transforms]
        transforms = tuple(read_transform(each) for each in stored_transforms)
        calibration = Calibration.of(about.get("calibration"))
        network = build_network(config, n_classes=len(classes), input_width=None, seed=0)
        set_transforms(network, transforms)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ModelError(f"{path / ABOUT_FILE}: does not describe a model of qurate ({error}).") from error
    load_tensors(network, file_of(path, WEIGHTS_FILE), about.get("sha256"))
    origin = {
        name: about[name] for name in about if name in ("qurate", "trained", "weights", "backbone_sha256", "kept")
    }
    return AdaptedModel(network.eval(), config, classes, origin, calibration=calibration, folder=path)
