"""A trained model for other programs: ONNX, with its preprocessing written into the file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.data.images import Transform
from qurate.networks.heads import Network
from qurate.runs.model import load
from qurate.runs.staging import EXPORT_FILE, RunError
from qurate.runtime.files import write_atomically
from qurate.runtime.randomness import generator

OUTPUT_NAME = "probabilities"
LARGEST_DIFFERENCE = 1e-4
"""A probability of the exported file may differ by this from the model's."""

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class ExportError(RunError):
    """A model cannot be exported; the message says why and what to do."""


def export_run(
    run: Path | str, out: Path | str | None = None, format: Literal["onnx"] = "onnx", *, force: bool = False
) -> Path:
    """Write the model of a run in a format that other programs read.

    Args:
        run: Folder of a finished run.
        out: File to write; `model.onnx` in the run's folder if None.
        format: 'onnx'.
        force: Overwrite the file if it exists.

    Returns:
        The file written.

    Raises:
        ExportError: If the extra is not installed, the file already exists, or it does not agree with the model.
    """
    if format != "onnx":
        raise ExportError(f"export_run: format must be 'onnx', got {format!r}.")
    path = Path(run) / EXPORT_FILE if out is None else Path(out)
    _check_possible(path, force)  # before a large model is read
    model = load(run)
    return export_onnx(model.network, model.classes, model.transform, path, force=force)


def export_onnx(
    network: Network, classes: Sequence[str], transform: Transform | None, path: Path | str, *, force: bool = False
) -> Path:
    """Write a network as ONNX, from prepared inputs to probabilities, for batches of any size.

    The file's metadata say how to prepare an image and what the classes are. It is compared with the network by
    onnxruntime before it is put in place.

    Args:
        network: Inputs to logits.
        classes: Names of the K outputs.
        transform: How images are prepared; None where the inputs are embeddings.
        path: File to write, whole or not at all.
        force: Overwrite it if it exists.

    Raises:
        ExportError: If the extra is not installed, the file already exists, or it does not agree with the network.
    """
    target = Path(path)
    _check_possible(target, force)
    if len(classes) != network.n_classes:
        raise ExportError(f"export_onnx: classes must be the network's {network.n_classes}, got {len(classes)}.")
    device, was_training = network.classifier.weight.device, network.training
    try:
        content = _convert(network.cpu().eval(), describe(classes, transform), _input_shape(network, transform))
    finally:
        network.to(device).train(was_training)
    try:
        write_atomically(target, content)
    except OSError as error:
        raise ExportError(
            f"{target}: cannot be written ({error.strerror}). Make room there, or choose another `out`."
        ) from error
    return target


def describe(classes: Sequence[str], transform: Transform | None) -> dict[str, str]:
    """The metadata of an exported file; values that are no sentences are JSON."""
    said = {
        "classes": json.dumps(list(classes), ensure_ascii=False),
        "input": "embeddings" if transform is None else "images",
        "output": OUTPUT_NAME,
        "output_meaning": "float32 (batch, classes): the probability of each class, in the order of classes.",
    }
    if transform is None:
        return said | {"preprocessing": "None: the inputs are embeddings, float32 (batch, width)."}
    size, crop = transform.resize, transform.crop
    return said | {
        "preprocessing": (
            "Decode to RGB, upright by the EXIF tag, transparent pixels on white; "
            f"resize to {size} x {size} pixels without keeping the aspect, bilinear with antialiasing as Pillow does; "
            f"cut the centre {crop} x {crop}; divide by 255, subtract mean and divide by std for each channel; "
            f"order as float32 (batch, 3, {crop}, {crop})."
        ),
        "resize": json.dumps(size),
        "crop": json.dumps(crop),
        "mean": json.dumps(transform.mean),
        "std": json.dumps(transform.std),
    }


class _Probabilities(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return F.softmax(self.network(inputs), dim=1)


def _convert(network: Network, about: dict[str, str], shape: tuple[int, ...]) -> bytes:
    onnx: Any = importlib.import_module("onnx")
    model = _Probabilities(network).eval()
    program: Any = torch.onnx.export(
        model,
        (torch.zeros(2, *shape),),
        dynamo=True,
        input_names=[about["input"]],
        output_names=[OUTPUT_NAME],
        dynamic_shapes={"inputs": {0: "batch"}},
        verbose=False,
    )
    proto = program.model_proto
    onnx.helper.set_model_props(proto, about)
    proto.producer_name = "qurate"
    content: bytes = proto.SerializeToString()
    _check_agreement(model, content, shape)
    return content


def _check_agreement(model: nn.Module, content: bytes, shape: tuple[int, ...]) -> None:
    """Compare file and network on random inputs, in batches of sizes that were not exported with."""
    session: Any = importlib.import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in (1, 3):
        inputs = torch.randn(size, *shape, generator=generator(0, size))
        with torch.no_grad():
            expected: NDArray[np.float32] = model(inputs).numpy()
        (got,) = session.run([OUTPUT_NAME], {session.get_inputs()[0].name: inputs.numpy()})
        difference = float(np.abs(got - expected).max()) if got.shape == expected.shape else float("inf")
        if not difference <= LARGEST_DIFFERENCE:
            raise ExportError(
                f"The exported file's probabilities differ from the model's by {difference:g} (allowed: "
                f"{LARGEST_DIFFERENCE:g}), so nothing was written. Try other versions of torch and onnxscript."
            )


def _input_shape(network: Network, transform: Transform | None) -> tuple[int, ...]:
    if transform is not None:
        return (3, transform.crop, transform.crop)
    linear = [layer for layer in network.bottleneck.modules() if isinstance(layer, nn.Linear)]
    return (linear[0].in_features if linear else network.n_features,)


def _check_possible(path: Path, force: bool) -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ExportError(
            f"Export needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'qurate[onnx]'."
        )
    if path.is_dir():
        raise ExportError(f"{path} is a folder. Name a file, such as {path / EXPORT_FILE}.")
    if path.exists() and not force:
        raise ExportError(f"{path} exists. Choose another `out`, or pass `force=True` to overwrite it.")
