"""An adapted model: a network, its classes and how to use it, in two files; reading them runs no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor, nn

from qurate.active.strategies import QueryStrategy
from qurate.calibration import Calibration, accept_at_precision
from qurate.combined import CombinedModel, Prediction
from qurate.config import NetworkConfig
from qurate.data.class_names import NO_CLASS, NO_FIT
from qurate.data.class_statistics import ClassStatistics
from qurate.data.domains import domain_of, leave_out
from qurate.data.images import ImageFiles, Images, Interpolation, OnProgress, Transform, images_in_memory
from qurate.data.list_files import list_frame
from qurate.data.own_images import StrPath, find_images, read_labeled
from qurate.data.samples import UNKNOWN, DataError
from qurate.embedding.backbone import Frozen, freeze_module
from qurate.embedding.embed import Embeddings, embed_files
from qurate.errors import ConfigError
from qurate.evaluation import Metrics, auroc_right, auroc_unknown, calibration_error, certainty, measure
from qurate.networks.backbone_names import MOST_PIXELS
from qurate.networks.backbones import ConcatenatedBackbones
from qurate.networks.heads import Network, build_network
from qurate.networks.inference import log_probabilities
from qurate.novelty import HeldOutScores, Novelty, known_probability
from qurate.run_results import BaselineComparison
from qurate.runs.files import ExportFormat
from qurate.runs.model_json import ABOUT_FILE, FORMAT, WEIGHTS_FILE, ModelError, file_of, read_about
from qurate.runs.options import DEFAULT_QUERY_STRATEGY
from qurate.runtime.files import write_atomically
from qurate.runtime.paths import as_path, list_some, shorten
from qurate.runtime.tensors import not_finite, tensor_digest
from qurate.runtime.validation import show


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


_MOST_RESIZE = round(MOST_PIXELS * 256 / 224)
"""Side in pixels: of the largest images that a backbone sees."""
_MOST_SCALE = 1000.0
"""Pixels are numbers from 0 to 1. Our choice."""


def read_transform(stored: Any) -> Transform:
    """How images are prepared for one backbone, from model.json."""
    sizes, scales = ("resize", "crop"), ("mean", "std")
    if not isinstance(stored, dict) or stored.keys() - {"interpolation"} != {*sizes, *scales}:
        raise ValueError(
            "transform must be a table of resize, crop, mean, std and perhaps interpolation, got "
            f"{shorten(repr(stored))}"
        )
    for name in sizes:
        if type(stored[name]) is not int or not 1 <= stored[name] <= _MOST_RESIZE:
            raise ValueError(
                f"transform.{name} must be an integer between 1 and {_MOST_RESIZE}, got {show(stored[name])}"
            )
    for name, least in (("mean", -_MOST_SCALE), ("std", 1 / _MOST_SCALE)):
        values = stored[name] if isinstance(stored[name], list) else []
        is_allowed = all(type(x) in (int, float) and least <= x <= _MOST_SCALE for x in values)
        if len(values) != 3 or not is_allowed:
            raise ValueError(
                f"transform.{name} must be three numbers between {least:g} and {_MOST_SCALE:g}, got "
                f"{show(stored[name])}"
            )
    interpolation = stored.get("interpolation", "bilinear")
    if interpolation not in get_args(Interpolation):
        raise ValueError(
            f"transform.interpolation must be one of {', '.join(get_args(Interpolation))}, got "
            f"{shorten(repr(interpolation))}"
        )
    return Transform(stored["resize"], stored["crop"], tuple(stored["mean"]), tuple(stored["std"]), interpolation)


def load_tensors(network: nn.Module, path: Path, checksum: str) -> None:
    """Put the tensors of model.safetensors into a module, if they have this checksum."""
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
    damaged = tensor_digest(tensors) != checksum
    if damaged or (strange := not_finite(tensors)):
        why = f"its numbers are not those that {ABOUT_FILE} was written with" if damaged else f"NaN in {strange[0]}"
        raise ModelError(f"{path}: damaged ({why}). Copy it again, or adapt again.")
    network.load_state_dict(tensors)


class _Whole(nn.Module):
    """All tensors of a model: the network, S+T's head, the score `known` and the source's statistics, as far as it has.

    Args:
        network: From images to logits.
        baseline: Bottleneck and classifier of S+T; None where there is none.
        novelty: Its tensors by name; none where it is not measured.
        source: Its statistics, likewise.
    """

    def __init__(
        self,
        network: Network,
        baseline: Network | None,
        novelty: Mapping[str, Tensor],
        source: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.backbone, self.bottleneck, self.classifier = network.backbone, network.bottleneck, network.classifier
        if baseline is not None:
            self.baseline = nn.ModuleDict({"bottleneck": baseline.bottleneck, "classifier": baseline.classifier})
        for name, values in novelty.items():
            self.register_buffer(f"novelty_{name}", values)
        for name, values in source.items():
            self.register_buffer(f"source_{name}", values)


def novelty_tensors(novelty: Novelty | None) -> dict[str, Tensor]:
    """The tensors of the score, by name; `images`, `scores` and `fold` are those of its folds, one after another."""
    if novelty is None:
        return {}
    fold = [torch.full_like(images, number) for number, (images, _) in enumerate(novelty.folds)]
    return {
        "center": novelty.center,
        "weight": novelty.weight,
        "held_out": novelty.held_out,
        "images": torch.cat([images for images, _ in novelty.folds]),
        "scores": torch.cat([scores for _, scores in novelty.folds]),
        "fold": torch.cat(fold),
    }


_LARGEST_SCORE = 1e6


def read_novelty(stored: Any, width: int) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers of the score in model.json, and empty tensors of the shapes that belong to them."""
    if stored is None:
        return {}, {}
    limits = {"bias": _LARGEST_SCORE, "threshold": _LARGEST_SCORE, "share": 1.0, "highest_share": 1.0}
    if not isinstance(stored, dict) or stored.keys() != {*limits, "images"}:
        raise ValueError(f"novelty must be a table of {', '.join(limits)} and images, got {shorten(repr(stored))}")
    for name, most in limits.items():
        value = stored[name]
        if value is None and name == "threshold":
            continue
        if type(value) not in (int, float) or not abs(value) <= most:
            raise ValueError(f"novelty.{name} must be a number up to {most:g}, got {shorten(repr(value))}")
    count = stored["images"]
    if type(count) is not int or not 0 < count <= 10**6:
        raise ValueError(f"novelty.images must be a whole number from 1 to 1000000, got {shorten(repr(count))}")
    numbers = {name: float(stored[name]) for name in limits if stored[name] is not None}
    shapes = {"center": width, "weight": width, "held_out": count, "scores": count}
    tensors = {name: torch.zeros(size) for name, size in shapes.items()}
    return numbers, tensors | {name: torch.zeros(count, dtype=torch.int64) for name in ("images", "fold")}


def make_novelty(numbers: Mapping[str, float], tensors: Mapping[str, Tensor]) -> Novelty | None:
    """The score, from what `read_novelty` and the file of tensors hold; None where there is none."""
    if not tensors:
        return None
    places = [tensors["fold"] == number for number in tensors["fold"].unique()]
    folds = tuple(HeldOutScores(tensors["images"][place], tensors["scores"][place]) for place in places)
    held_out = tensors["held_out"].sort().values
    return Novelty(tensors["center"], tensors["weight"], held_out=held_out, folds=folds, **numbers)


def read_statistics(stored: Any, n_classes: int, width: int) -> ClassStatistics | None:
    """Empty statistics of the source, of the shapes that belong to what model.json says; None where there are none."""
    if stored is None:
        return None
    if not isinstance(stored, dict) or type(stored.get("images")) is not int:
        raise ValueError(f"source_statistics must be a table with images, a whole number, got {shorten(repr(stored))}")
    return ClassStatistics.empty(n_classes, width)


def check_size(config: NetworkConfig, n_classes: int, path: Path) -> None:
    """Make sure that model.safetensors can hold a network, before memory is taken for it.

    Raises:
        ModelError: If it is too small, or not there.
    """
    with torch.device("meta"):  # shapes alone
        network = build_network(config, n_classes=n_classes, input_width=None, seed=0)
    needed = sum(values.numel() * values.element_size() for values in network.state_dict().values())
    try:
        there = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). Copy it again, or adapt again.") from error
    if there < needed:
        raise ModelError(
            f"{path}: must hold the {needed} bytes of the network that {ABOUT_FILE} describes, got {there}. Do both "
            "files belong to one model?"
        )


class EmbeddedImages(NamedTuple):
    """Readable image files, their embeddings (N, width) and predictions; and why others cannot be read."""

    files: tuple[Path, ...]
    embeddings: Tensor
    predicted: Prediction
    unreadable: Mapping[Path, str]

    @property
    def probabilities(self) -> Tensor:
        """(N, K)."""
        return self.predicted.probabilities


@dataclass(frozen=True, eq=False, repr=False)
class AdaptedModel:
    """An image classifier for the target domain.

    Args:
        network: Prepared images (N, 3, crop, crop), for each backbone its own, to logits (N, K).
        config: Backbone, bottleneck and classifier that the network is made of.
        classes: Class names.
        origin: Where it comes from: the backbone's weights, what was trained, the version of qurate.
        cache: Folder of the embedding cache; the user's unless given.
        calibration: How the adapted network and S+T are combined, so that probabilities mean what they say.
        folder: The run that it comes from, if it was written.
        baseline: S+T on the same embeddings; None where the model has none.
        novelty: How well images fit the classes; None where that was not measured.
        comparison: With plain training (S+T): its `verdict` ('helps', 'unclear' or 'harms') and its `gain` in accuracy,
            with `estimate`, `low` and `high`; None where they were not compared.
        no_comparison: Why not, as a sentence; empty where they were.
        source_statistics: Counts, means and spread of the source's embeddings, from which `adapt` with `from_model`
            draws a source; None where the model has none.

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
    baseline: Network | None = None
    novelty: Novelty | None = None
    comparison: BaselineComparison | None = None
    no_comparison: str = ""
    source_statistics: ClassStatistics | None = None

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

    def predict(
        self,
        images: Images,
        on_progress: OnProgress | None = None,
        *,
        precision: float | None = None,
    ) -> pd.DataFrame:
        """The most probable class of each image.

        Args:
            images: A folder, a glob, a list file, one image or paths; or PIL images, or arrays (H, W, 3) of uint8,
                whose `file` is 'image 0' and so on.
            on_progress: Called with the number of images that are done, and of all.
            precision: Leave the label empty unless it is among the most probable ones of which this share can be
                expected to be right, and the image fits a class; None gives a label to each.

        Returns:
            Columns file, label, probability, known and problem. `known` is how well the image fits any class, from 0
            to 1; that it fits none is a problem in words. An unreadable image has an empty label, no numbers and its
            problem. Probabilities are calibrated where `calibration` says so.
        """
        names, seen = self._embed_and_predict(images, on_progress)
        (sure, labels), flagged = seen.probabilities.max(dim=1), seen.predicted.flagged.tolist()
        taken = ~seen.predicted.flagged
        if precision is not None:
            taken[taken.clone()] = accept_at_precision(self._chances(sure, seen.predicted.known)[taken], precision)
        named = [
            self.classes[label] if accepted or precision is None else ""
            for label, accepted in zip(labels.tolist(), taken.tolist(), strict=True)
        ]
        problems = [NO_FIT if one else "" for one in flagged]
        values = zip(named, sure.tolist(), seen.predicted.known.tolist(), problems, strict=True)
        found = dict(zip(seen.files, values, strict=True))
        found |= {file: ("", math.nan, math.nan, why) for file, why in seen.unreadable.items()}
        rows = [(name, *found[file]) for name, file in names]
        return pd.DataFrame(rows, columns=["file", "label", "probability", "known", "problem"])

    def expected_precision(self, table: pd.DataFrame) -> float:
        """The share of the labels in a table of `predict` that can be expected to be right; NaN where it has none.

        Args:
            table: As `predict` gives it, whole: how many of its images fit no class counts.
        """
        seen = table[table["probability"].notna()]
        sure, known = (torch.tensor(seen[name].tolist(), dtype=torch.float32) for name in ("probability", "known"))
        return float(self._chances(sure, known)[torch.tensor((seen["label"] != "").tolist(), dtype=torch.bool)].mean())

    def _chances(self, sure: Tensor, known: Tensor) -> Tensor:
        """The probability that each prediction is right: less than that of its class where images fit no class, (N,).

        Args:
            sure: Of the predicted classes, (N,).
            known: How well all images of the folder fit any class, (N,).
        """
        if self.novelty is None or not self.novelty.sees_unknown:
            return sure
        return sure * known_probability(known)

    def predict_proba(
        self, images: Images, on_progress: OnProgress | None = None, *, top_k: int | None = None
    ) -> pd.DataFrame:
        """The probability of each class for each image; calibrated where `calibration` says so.

        Args:
            images: See `predict`.
            on_progress: Called with the number of images that are done, and of all.
            top_k: Give the names and probabilities of so many classes, the most probable first, in place of all.

        Returns:
            A row for each image, by its file, and a column for each class; with `top_k` the columns label_1,
            probability_1, label_2 and so on. The numbers of an unreadable image are NaN.
        """
        if top_k is not None and (type(top_k) is not int or not 1 <= top_k <= len(self.classes)):
            raise ConfigError(f"top_k must be an integer between 1 and {len(self.classes)}, got {show(top_k)}.")
        names, seen = self._embed_and_predict(images, on_progress)
        place = {file: i for i, file in enumerate(seen.files)}
        index = pd.Index([name for name, _ in names], name="file")
        table = pd.DataFrame(seen.probabilities.numpy(), columns=list(self.classes))
        if top_k is not None:
            values, labels = seen.probabilities.topk(top_k, dim=1)
            table = pd.DataFrame(index=range(len(seen.files)))
            for rank in range(top_k):
                table[f"label_{rank + 1}"] = [self.classes[k] for k in labels[:, rank].tolist()]
                table[f"probability_{rank + 1}"] = values[:, rank].numpy()
        return table.reindex([place.get(file, -1) for _, file in names]).set_axis(index)

    def _embed_and_predict(
        self, images: Images, on_progress: OnProgress | None
    ) -> tuple[list[tuple[str, Path]], EmbeddedImages]:
        """The name and the file of each image, and what the model sees; images in memory have a file for a moment."""
        in_memory = images_in_memory(images)
        if in_memory is None:
            files = find_images(images)  # type: ignore[arg-type]  # paths, then
            return [(str(file), file) for file in files], self.embed_images(files, on_progress)
        with TemporaryDirectory(prefix="qurate-") as folder:
            files = [Path(folder) / f"{number}.png" for number in range(len(in_memory))]
            for file, image in zip(files, in_memory, strict=True):
                image.save(file, compress_level=1)
            return [(f"image {file.stem}", file) for file in files], self.embed_images(files, on_progress)

    def evaluate(self, labeled: StrPath | pd.DataFrame, on_progress: OnProgress | None = None) -> Metrics:
        """Accuracy, balanced accuracy, per class, confusion, calibration error and AUROC on labelled images.

        Args:
            labeled: Class folders, a list file, a CSV table, or a table in memory with the columns file and label;
                classes may be missing, but none may be new. Images of class 'none', unless the model has one, are of
                no class: only `auroc_unknown` is about them. Unreadable images are left out with a warning.
            on_progress: Called with the number of images that are done, and of all.
        """
        if isinstance(labeled, pd.DataFrame):
            domain, where = domain_of(list_frame(labeled, "labeled")), "labeled"
        else:
            domain, where = read_labeled(labeled, "labeled"), str(labeled)
        if strange := [name for name in domain.classes if name not in (*self.classes, NO_CLASS)]:
            raise DataError(
                f"labeled ('{domain.name}') may only have the model's classes ({list_some(self.classes)}), got also "
                f"{list_some(strange)}. Rename or remove them, or call images of no class '{NO_CLASS}'."
            )
        if not set(domain.classes) & set(self.classes):
            raise DataError(f"{where}: no image has a class, so there is nothing to measure. Label some of them.")
        assert isinstance(domain.inputs, ImageFiles)
        found = self._embed(domain.inputs.paths, on_progress)
        domain = leave_out(domain, found.unreadable)
        assert isinstance(domain.inputs, ImageFiles)
        places = {NO_CLASS: UNKNOWN, **{name: place for place, name in enumerate(self.classes)}}
        into = torch.tensor([places[name] for name in domain.classes] + [-1])
        embeddings, labels = found.of(domain.inputs), into[domain.labels]
        predicted = self.predict_embedded(embeddings)
        probabilities, alone = predicted.probabilities, log_probabilities(self.combined.network, embeddings).exp()
        known = predicted.known if self.novelty is not None else certainty(probabilities)
        return replace(
            measure(predicted.labels, labels, len(self.classes)),
            confidence=float(probabilities[labels >= 0].max(dim=1).values.mean()),
            calibration_error=calibration_error(probabilities, labels),
            uncalibrated_error=calibration_error(alone, labels),
            auroc=auroc_right(probabilities, labels),
            auroc_unknown=auroc_unknown(known, labels),
            unknown=int((labels == UNKNOWN).sum()),
            classes=self.classes,
        )

    def suggest(
        self,
        count: int,
        images: StrPath | Sequence[StrPath] | None = None,
        *,
        query_strategy: str | QueryStrategy = DEFAULT_QUERY_STRATEGY,
        random_share: float = 0.0,
        seed: int = 0,
        on_progress: OnProgress | None = None,
    ) -> pd.DataFrame:
        """Which images a person should label next.

        Args:
            count: How many.
            images: To choose from: a folder, a glob, a list file or paths; the unlabelled images of the run that the
                model comes from unless given, without those that have an answer in its labels.csv.
            query_strategy: How they are chosen: one of `qurate.QUERY_STRATEGIES`, or a `QueryStrategy` of your own.
            random_share: Part of them that is drawn at random instead, between 0 and 1. Only that part shows how often
                the model is right.
            seed: Decides everything random.
            on_progress: Called with the number of images that are done, and of all.

        Returns:
            Columns file, label (empty, for the answer), predicted, probability, runner_up, query_strategy and why; in
            the order of asking.
        """
        from qurate.runs.suggestions import suggest_images

        return suggest_images(
            self, count, images, query_strategy, random_share=random_share, seed=seed, on_progress=on_progress
        )

    def embed_images(self, files: Sequence[Path], on_progress: OnProgress | None = None) -> EmbeddedImages:
        """Embeddings and probabilities of the image files that can be read; why the others cannot."""
        found = self._embed(files, on_progress)
        readable = tuple(file for file in files if file not in found.unreadable)
        embeddings = found.of(ImageFiles(readable))
        return EmbeddedImages(readable, embeddings, self.predict_embedded(embeddings), found.unreadable)

    def export(
        self,
        path: StrPath,
        *,
        format: ExportFormat = "onnx",
        copy: bool = False,
        force: bool = False,
    ) -> Path:
        """Write the model, or the labels of its run, for use without qurate.

        Args:
            path: File or folder to write.
            format: 'onnx': the model, checked against this one; needs the extra `qurate[onnx]`. Or the images of the
                run with their labels, as a folder: 'label-studio', 'fiftyone', 'imagefolder' (of Hugging Face), or
                'folders', one per class.
            copy: Copy the images; otherwise they are links.
            force: Overwrite it if it exists.

        Raises:
            ConfigError: If labels are asked for and the model was not written as a run.
        """
        from qurate.runs.export import export_onnx
        from qurate.runs.label_export import export_labels

        target = as_path(path, "path", "a file or folder to write")
        if format == "onnx":
            return export_onnx(self, target, force=force)
        if self.folder is None:
            raise ConfigError("export: labels belong to a run, and this model was not written as one. Load a run.")
        return export_labels(self.folder, target, format, copy=copy, force=force).folder

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
        tensors = {name: values.detach().cpu().contiguous() for name, values in self._tensors().items()}
        write_atomically(path / WEIGHTS_FILE, safetensors.torch.save(tensors, metadata={"format": FORMAT}))
        self.write_about(path)

    def write_about(self, path: Path) -> None:
        """Write model.json alone; the tensors have not changed."""
        about = {**self.about(), "sha256": tensor_digest(self._tensors())}
        write_atomically(path / ABOUT_FILE, json.dumps(about, indent=2, ensure_ascii=False) + "\n")

    def _tensors(self) -> dict[str, Tensor]:
        statistics = {} if self.source_statistics is None else self.source_statistics.tensors
        return _Whole(self.network, self.baseline, novelty_tensors(self.novelty), statistics).state_dict()

    def predict_embedded(self, embeddings: Tensor) -> Prediction:
        """What the model says of images by their embeddings.

        Raises:
            ModelError: If that is no number.
        """
        predicted = self.combined.predict(embeddings)
        if not bool(predicted.log_probs.isfinite().all()):
            where = "the model" if self.folder is None else self.folder
            raise ModelError(f"{where}: gives NaN or infinity for these images, so it is damaged. Adapt again.")
        return predicted

    @property
    def combined(self) -> CombinedModel:
        """The model on embeddings of the backbone."""
        network = self.network
        head = Network(nn.Identity(), network.bottleneck, network.classifier, pretrained=network.pretrained)
        return CombinedModel(head, self.baseline, self.calibration, self.novelty)

    def about(self) -> dict[str, Any]:
        """How to use the model, with or without qurate."""
        prepared, novelty = [transform.to_dict() for transform in self.transforms], self.novelty
        statistics = self.source_statistics
        score = novelty and {
            "bias": novelty.bias,
            "threshold": novelty.threshold if math.isfinite(novelty.threshold) else None,
            "share": novelty.share,
            "highest_share": novelty.highest_share,
            "images": len(novelty.held_out),
        }
        return {
            "format": FORMAT,
            **self.origin,
            "network": asdict(self.config),
            "classes": list(self.classes),
            "transform": prepared[0] if len(prepared) == 1 else prepared,
            "calibration": asdict(self.calibration),
            "baseline": self.baseline is not None,
            "novelty": score,
            "source_statistics": None if statistics is None else {"images": int(statistics.counts.sum())},
            "comparison": None if self.comparison is None else self.comparison.stored(),
            "no_comparison": self.no_comparison,
            "how to use": [
                *describe_preparation(self.transforms),
                "logits = scale * normalize(bottleneck(backbone(x))) @ normalize(classifier.weight).T; "
                "softmax(logits / temperature) gives probabilities, in the order of classes. Where there is a "
                "baseline_temperature: softmax(log_softmax(logits) / temperature + log_softmax(logits by baseline.*) / "
                "baseline_temperature).",
                "Python: qurate.load(FOLDER).predict(IMAGES).",
            ],
        }

    @property
    def frozen(self) -> Frozen:
        """Its backbone, for embedding."""
        network = self.network.eval()
        return freeze_module(self.config.backbone, network.backbone, network.width, self.transforms)

    def _embed(self, files: Sequence[Path], on_progress: OnProgress | None) -> Embeddings:
        frozen = self.frozen
        shared = self.origin.get("trained") == "head"  # else the backbone is one that no other run will have
        found = embed_files(files, frozen, cache=self.cache, cached=shared, on_progress=on_progress)
        self.network.backbone.to("cpu")
        return found


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
        if not isinstance(stored := about["network"], dict):
            raise ValueError(f"network must be a table, got {shorten(repr(stored))}")
        config = replace(NetworkConfig.from_dict(stored), weights="none")  # they are in the other file
        stored_transforms = about["transform"]
        if not isinstance(stored_transforms, list):  # of one backbone
            stored_transforms = [stored_transforms]
        transforms = tuple(read_transform(each) for each in stored_transforms)
        calibration = Calibration.of(about["calibration"])
        check_size(config, len(classes), file_of(path, WEIGHTS_FILE))
        network = build_network(config, n_classes=len(classes), input_width=None, seed=0)
        set_transforms(network, transforms)
        if type(has_baseline := about["baseline"]) is not bool:
            raise ValueError(f"baseline must be true or false, got {shorten(repr(has_baseline))}")
        head = replace(config, backbone="none")
        beside = {"n_classes": len(classes), "input_width": network.width, "seed": 0}
        baseline = build_network(head, **beside) if has_baseline else None
        numbers, tensors = read_novelty(about["novelty"], network.width)
        statistics = read_statistics(about.get("source_statistics"), len(classes), network.width)
        compared = about["comparison"]
        comparison = None if compared is None else BaselineComparison.of(compared)
        if not isinstance(why_not := about["no_comparison"], str):
            raise ValueError(f"no_comparison must be a sentence, got {shorten(repr(why_not))}")
    except ModelError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ModelError(f"{path / ABOUT_FILE}: does not describe a model of qurate ({error}).") from error
    whole = _Whole(network, baseline, tensors, {} if statistics is None else statistics.tensors)
    load_tensors(whole, file_of(path, WEIGHTS_FILE), about["sha256"])
    if statistics is not None:
        statistics = ClassStatistics(**{name: whole.get_buffer(f"source_{name}") for name in statistics.tensors})
        if problem := statistics.problem:
            raise ModelError(f"{file_of(path, WEIGHTS_FILE)}: damaged ({problem}). Copy it again, or adapt again.")
    found = {name: whole.get_buffer(f"novelty_{name}") for name in tensors}
    origin = {
        name: about[name] for name in about if name in ("qurate", "trained", "weights", "backbone_sha256", "kept")
    }
    return AdaptedModel(
        network.eval(),
        config,
        classes,
        origin,
        calibration=calibration,
        folder=path,
        baseline=None if baseline is None else baseline.eval(),
        novelty=make_novelty(numbers, found),
        comparison=comparison,
        no_comparison=why_not,
        source_statistics=statistics,
    )
