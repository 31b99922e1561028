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

from qurate.calibration import Calibration
from qurate.data.images import Transform
from qurate.errors import RunError
from qurate.networks.heads import Network
from qurate.runs.files import EXPORT_FILE
from qurate.runtime.files import write_atomically
from qurate.runtime.randomness import generator

INPUT_NAME, OUTPUT_NAME = "images", "probabilities"
LARGEST_DIFFERENCE = 1e-4
"""A probability of the exported file may differ by this from the model's."""

_NONE = Calibration()


class ExportError(RunError):
    """A model cannot be exported; the message says why and what to do."""


def export_onnx(
    network: Network,
    classes: Sequence[str],
    transforms: Sequence[Transform],
    path: Path | str,
    calibration: Calibration = _NONE,
    *,
    force: bool = False,
) -> Path:
    """Write a network as ONNX, from prepared inputs to probabilities, for batches of any size.

    The file's metadata say how to prepare an image and what the classes are. It is compared with the network by
    onnxruntime before it is put in place.

    Args:
        network: Inputs to logits.
        classes: Names of the K outputs.
        transforms: How images are prepared; one for each backbone, whose input it is.
        path: File to write, whole or not at all.
        calibration: Whose temperature becomes part of the graph.
        force: Overwrite it if it exists.

    Raises:
        ExportError: If the extra is not installed, the file already exists, or it does not agree with the network.
    """
    target = Path(path)
    check_possible(target, force)
    if len(classes) != network.n_classes:
        raise ExportError(f"export_onnx: classes must be the network's {network.n_classes}, got {len(classes)}.")
    device, was_training = network.classifier.weight.device, network.training
    try:
        model = _Probabilities(network.cpu().eval(), calibration.temperature).eval()
        about = describe(classes, transforms, calibration)
        content = _convert(model, about, [(3, transform.crop, transform.crop) for transform in transforms])
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
    classes: Sequence[str], transforms: Sequence[Transform], calibration: Calibration = _NONE
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


class _Probabilities(nn.Module):
    def __init__(self, network: Network, temperature: float) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature

    def forward(self, *inputs: Tensor) -> Tensor:
        return F.softmax(self.network(*inputs) / self.temperature, dim=1)


def _convert(model: _Probabilities, about: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> bytes:
    onnx: Any = importlib.import_module("onnx")
    program: Any = torch.onnx.export(
        model,
        tuple(torch.zeros(2, *shape) for shape in shapes),
        dynamo=True,
        input_names=input_names(len(shapes)),
        output_names=[OUTPUT_NAME],
        dynamic_shapes={"inputs": ({0: "batch"}, *({0: torch.export.Dim.DYNAMIC} for _ in shapes[1:]))},  # of one size
        verbose=False,
    )
    proto = program.model_proto
    onnx.helper.set_model_props(proto, about)
    proto.producer_name = "qurate"
    content: bytes = proto.SerializeToString()
    _check_agreement(model, content, shapes)
    return content


def _check_agreement(model: nn.Module, content: bytes, shapes: Sequence[tuple[int, ...]]) -> None:
    """Compare file and network on random inputs, in batches of sizes that were not exported with."""
    session: Any = importlib.import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in (1, 3):
        source = generator(0, size)
        inputs = [torch.randn(size, *shape, generator=source) for shape in shapes]
        with torch.no_grad():
            expected: NDArray[np.float32] = model(*inputs).numpy()
        given = {name: images.numpy() for name, images in zip(input_names(len(shapes)), inputs, strict=True)}
        (got,) = session.run([OUTPUT_NAME], given)
        difference = float(np.abs(got - expected).max()) if got.shape == expected.shape else float("inf")
        if not difference <= LARGEST_DIFFERENCE:
            raise ExportError(
                f"The exported file's probabilities differ from the model's by {difference:g} (allowed: "
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
