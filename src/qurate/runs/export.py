"""A trained model for other programs: ONNX, with its preprocessing written into the file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.calibration import Calibration, combine
from qurate.combined import CombinedModel
from qurate.data.images import Transform
from qurate.errors import RunError
from qurate.networks.heads import Network
from qurate.novelty import Novelty
from qurate.runs.files import EXPORT_FILE
from qurate.runs.model import AdaptedModel
from qurate.runtime.files import write_atomically
from qurate.runtime.randomness import generator

INPUT_NAME, OUTPUT_NAME, KNOWN_NAME = "images", "probabilities", "known"
LARGEST_DIFFERENCE = 1e-4
"""A probability of the exported file may differ by this from the model's."""


class ExportError(RunError):
    """A model cannot be exported; the message says why and what to do."""


def export_onnx(model: AdaptedModel, path: Path | str, *, force: bool = False) -> Path:
    """Write a model as ONNX, from prepared inputs to probabilities and `known`, for batches of any size.

    The file's metadata say how to prepare an image and what the classes are. It is compared with the model by
    onnxruntime before it is put in place.

    Args:
        model: A model of a run.
        path: File to write, whole or not at all.
        force: Overwrite it if it exists.

    Raises:
        ExportError: If the extra is not installed, the file already exists, or it does not agree with the model.
    """
    target = Path(path)
    check_possible(target, force)
    network = model.network
    if len(model.classes) != network.n_classes:
        raise ExportError(f"export_onnx: classes must be the network's {network.n_classes}, got {len(model.classes)}.")
    device, was_training = network.classifier.weight.device, network.training
    try:
        network.cpu().eval()
        about = describe(model.classes, model.transforms, model.calibration, model.novelty)
        shapes = [(3, transform.crop, transform.crop) for transform in model.transforms]
        content = _convert(_Outputs(network, model.combined).eval(), about, shapes)
    finally:
        network.to(device).train(was_training)
    try:
        write_atomically(target, content)
    except OSError as error:
        raise ExportError(
            f"{target}: cannot be written ({error.strerror}). Make room there, or choose another `out`."
        ) from error
    return target


def input_names(count: int) -> list[str]:
    """What the inputs are called: 'images', or where there are several 'images_1', 'images_2' and so on."""
    return [INPUT_NAME] if count == 1 else [f"{INPUT_NAME}_{number}" for number in range(1, count + 1)]


def describe(
    classes: Sequence[str],
    transforms: Sequence[Transform],
    calibration: Calibration,
    novelty: Novelty | None,
) -> dict[str, str]:
    """The metadata of an exported file; values that are no sentences are JSON.

    Keys about an input end with the number of the input where there are several.
    """
    inputs = input_names(len(transforms))
    about = {
        "classes": json.dumps(list(classes), ensure_ascii=False),
        "input": ", ".join(inputs),
        "output": OUTPUT_NAME,
        "output_meaning": "float32 (batch, classes): the probability of each class, in the order of classes.",
        "calibration": f"The probabilities are {calibration}.",
    }
    if novelty is not None:
        about |= {
            "output": f"{OUTPUT_NAME}, {KNOWN_NAME}",
            "known_meaning": "float32 (batch,): how well the image fits any class, from 0 to 1.",
            "known_threshold": json.dumps(novelty.border),
            "known_threshold_meaning": "An image with a lower `known` fits none of the classes.",
        }
    for name, transform in zip(inputs, transforms, strict=True):
        size, crop, number = transform.resize, transform.crop, name.removeprefix(INPUT_NAME)
        about |= {
            f"preprocessing{number}": (
                "Decode to RGB, upright by the EXIF tag, transparent pixels on white; "
                f"resize to {size} x {size} pixels without keeping the aspect, {transform.interpolation} with "
                f"antialiasing as Pillow does; cut the centre {crop} x {crop}; divide by 255, subtract mean and divide "
                f"by std for each channel; order as float32 (batch, 3, {crop}, {crop})."
            ),
            f"resize{number}": json.dumps(size),
            f"crop{number}": json.dumps(crop),
            f"interpolation{number}": transform.interpolation,
            f"mean{number}": json.dumps(transform.mean),
            f"std{number}": json.dumps(transform.std),
        }
    return about


class _Outputs(nn.Module):
    """From prepared images to probabilities (N, K) and, where it is measured, `known` (N,)."""

    def __init__(self, network: Network, model: CombinedModel) -> None:
        super().__init__()
        self.network, self.baseline = network, model.baseline
        self.calibration, self.novelty = model.calibration, model.novelty

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        vectors = self.network.backbone(*inputs)
        adapted = F.log_softmax(self.network.classifier(self.network.bottleneck(vectors)), dim=1)
        baseline = None if self.baseline is None else F.log_softmax(self.baseline(vectors), dim=1)
        probabilities = combine(adapted, baseline, self.calibration).exp()
        return (probabilities,) if self.novelty is None else (probabilities, self.novelty.known(vectors))


def _convert(model: _Outputs, about: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> bytes:
    onnx: Any = importlib.import_module("onnx")
    names = [OUTPUT_NAME] if model.novelty is None else [OUTPUT_NAME, KNOWN_NAME]
    program: Any = torch.onnx.export(
        model,
        tuple(torch.zeros(2, *shape) for shape in shapes),
        dynamo=True,
        input_names=input_names(len(shapes)),
        output_names=names,
        dynamic_shapes={"inputs": ({0: "batch"}, *({0: torch.export.Dim.DYNAMIC} for _ in shapes[1:]))},  # of one size
        verbose=False,
    )
    proto = program.model_proto
    onnx.helper.set_model_props(proto, about)
    proto.producer_name = "qurate"
    content: bytes = proto.SerializeToString()
    _check_agreement(model, names, content, shapes)
    return content


def _check_agreement(model: nn.Module, names: Sequence[str], content: bytes, shapes: Sequence[tuple[int, ...]]) -> None:
    """Compare file and model on random inputs, in batches of sizes that were not exported with."""
    session: Any = importlib.import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in (1, 3):
        source = generator(0, size)
        inputs = [torch.randn(size, *shape, generator=source) for shape in shapes]
        with torch.no_grad():
            expected: list[NDArray[np.float32]] = [values.numpy() for values in model(*inputs)]
        given = {name: images.numpy() for name, images in zip(input_names(len(shapes)), inputs, strict=True)}
        for name, wanted, got in zip(names, expected, session.run(list(names), given), strict=True):
            difference = float(np.abs(got - wanted).max()) if got.shape == wanted.shape else float("inf")
            if not difference <= LARGEST_DIFFERENCE:
                raise ExportError(
                    f"The exported file's {name} differ from the model's by {difference:g} (allowed: "
                    f"{LARGEST_DIFFERENCE:g}), so nothing was written. Try other versions of torch and onnxscript."
                )


def check_possible(path: Path, force: bool) -> None:
    """Before a large model is read.

    Raises:
        ExportError: If the extra is not installed, or the file already exists.
    """
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise ExportError(
            f"Export needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'qurate[onnx]'."
        )
    if path.is_dir():
        raise ExportError(f"{path} is a folder. Name a file, such as {path / EXPORT_FILE}.")
    if path.exists() and not force:
        raise ExportError(f"{path} exists. Choose another `out`, or pass `force=True` to overwrite it.")
