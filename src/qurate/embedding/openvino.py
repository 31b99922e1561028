"""A frozen backbone in OpenVINO, on the CPU: converted once, kept in the cache, compared with torch before its use."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qurate.embedding.backbone import FrozenBackbone
from qurate.errors import ConfigError, QurateError
from qurate.runtime.paths import shorten

VARIABLE = "QURATE_ENGINE"
"""Set it to 'torch' or 'openvino' to have that one or an error; the faster one that can be used unless set."""

Engine = Literal["torch", "openvino"]
"""What computes a forward pass."""

LARGEST_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 0.25}
"""An embedding by OpenVINO may differ by this share of its length from torch's in float32. Our choice: in bfloat16
three times what was measured (docs/performance.md), by which torch in bfloat16 differs as well."""

_HINTS = {torch.float32: "f32", torch.bfloat16: "bf16"}
_FILES = ("network.xml", "network.bin")
_MOST_KEPT = 2  # compiled networks that stay in memory


class OpenVINOError(QurateError, RuntimeError):
    """OpenVINO cannot be used for a backbone; the message says why."""


class OpenVINOWarning(UserWarning):
    """Torch takes the place of OpenVINO; the message says why."""


class StoredNetwork(NamedTuple):
    """OpenVINO's two files of a network."""

    graph: bytes
    weights: bytes


def choose_engine(
    frozen: FrozenBackbone, device: str, precision: torch.dtype, default: Literal["auto", "torch"] = "auto"
) -> Engine:
    """What the environment names, else the default: 'auto' is OpenVINO on x86 processors where it is installed.

    Raises:
        ConfigError: If the environment asks for an engine that there is not, or that cannot be had here.
    """
    asked = os.environ.get(VARIABLE) or "auto"
    asked = default if asked == "auto" else asked
    if asked not in ("auto", "torch", "openvino"):
        raise ConfigError(f"{VARIABLE} must be one of auto, torch, openvino, or not set, got '{asked}'.")
    if asked == "torch" or (asked == "auto" and platform.machine().lower() not in ("x86_64", "amd64")):
        return "torch"
    is_installed, is_possible = find_spec("openvino") is not None, device == "cpu" and precision in _HINTS
    if asked == "openvino" and not is_installed:
        raise ConfigError(f"{VARIABLE}=openvino needs openvino, which is not installed: pip install 'qurate[fast]'.")
    if asked == "openvino" and not is_possible:
        name = str(precision).removeprefix("torch.")
        raise ConfigError(
            f"{VARIABLE}=openvino computes on the CPU, in float32 or bfloat16, got device '{device}' and {name}. "
            "Set it to torch, or use `device='cpu'`."
        )
    if asked == "openvino":
        return "openvino"
    return "openvino" if is_installed and is_possible and _key(frozen, precision) not in _unusable else "torch"


class CompiledBackbone:
    """A backbone that OpenVINO computes, each call on one core; calls may come from several threads at once.

    Args:
        network: The folder of its files, or what is in them.
        precision: What it computes in.
        streams: Calls that are computed at once.

    Raises:
        OpenVINOError: If OpenVINO cannot be imported, or cannot load the network.
    """

    def __init__(self, network: Path | StoredNetwork, precision: torch.dtype, streams: int) -> None:
        openvino = _import_openvino()
        settings = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": streams,
            "ENABLE_CPU_PINNING": False,  # the threads that decode need the same cores
        }
        self._requests: SimpleQueue[Any] = SimpleQueue()
        try:
            core = openvino.Core()
            if isinstance(network, Path):
                graph = core.read_model(network / _FILES[0], network / _FILES[1])
            else:
                graph = core.read_model(network.graph, network.weights)
            self._compiled = core.compile_model(graph, "CPU", settings)
            for _ in range(streams):
                self._requests.put(self._compiled.create_infer_request())
        except Exception as error:
            raise OpenVINOError(f"it cannot be loaded ({_reason(error)})") from error

    def __call__(self, pixels: Tensor) -> Tensor:
        """(N, crop, crop, 3) uint8 to (N, width) float32."""
        request = self._requests.get()
        try:
            rows = [request.infer([image[None]], share_inputs=True)[0] for image in pixels.numpy()]
        finally:
            self._requests.put(request)
        return torch.from_numpy(np.concatenate(rows))


def compile_backbone(
    frozen: FrozenBackbone, precision: torch.dtype, first: Callable[[], Tensor], cache: Path | None, streams: int
) -> CompiledBackbone:
    """A backbone for OpenVINO: as this process has it already, from the cache, or converted.

    Args:
        frozen: The backbone.
        precision: What it computes in.
        first: Gives a few images, (N, crop, crop, 3) uint8, whose embeddings are compared with those of torch; called
            only where the process does not have the backbone yet.
        cache: Folder of the embedding cache, where the converted network is kept; None keeps it nowhere.
        streams: Calls that are computed at once.

    Raises:
        OpenVINOError: If it cannot be converted, or its embeddings are not those of torch.
    """
    key = _key(frozen, precision)
    with _lock:
        if (compiled := _ready.get(key)) is None:
            compiled = _compile(frozen, precision, first(), cache, streams)
            while len(_ready) >= _MOST_KEPT:
                del _ready[next(iter(_ready))]
            _ready[key] = compiled
    return compiled


def refuse(frozen: FrozenBackbone, precision: torch.dtype, error: OpenVINOError) -> None:
    """Leave a backbone to torch for as long as this process lives, and say why.

    Raises:
        ConfigError: If the environment asks for OpenVINO by name.
    """
    if os.environ.get(VARIABLE) == "openvino":
        raise ConfigError(
            f"{VARIABLE}=openvino cannot embed with {frozen.name}, because {error}. Set it to torch, or unset it."
        ) from error
    _unusable.add(_key(frozen, precision))
    message = f"{frozen.name}: embedded by torch and not by the faster OpenVINO, because {error}."
    warnings.warn(message, OpenVINOWarning, stacklevel=2)


_lock = threading.Lock()  # of what is ready
_ready: dict[str, CompiledBackbone] = {}
_unusable: set[str] = set()


def _key(frozen: FrozenBackbone, precision: torch.dtype) -> str:
    return f"{precision} {frozen.identity}"


def network_folder(frozen: FrozenBackbone, cache: Path) -> Path:
    """Where a cache keeps a converted network; OpenVINOError if OpenVINO cannot be imported."""
    parts = f"{_import_openvino().__version__} from pixels {frozen.identity}"
    about = hashlib.sha256(parts.encode()).hexdigest()[:16]
    return cache / "openvino" / f"{re.sub(r'[^A-Za-z0-9._]+', '-', frozen.name)}-{about}"


def _import_openvino() -> Any:
    try:
        return importlib.import_module("openvino")
    except Exception as error:  # a damaged installation fails in its own ways
        raise OpenVINOError(f"OpenVINO cannot be imported ({_reason(error)})") from error


def read_network(frozen: FrozenBackbone, cache: Path | None) -> StoredNetwork:
    """A converted network from the cache, to be sent elsewhere; OpenVINOError if it is not there."""
    try:
        if cache is None:
            raise FileNotFoundError("no cache")
        folder = network_folder(frozen, cache)
        return StoredNetwork(*((folder / name).read_bytes() for name in _FILES))
    except OSError as error:
        raise OpenVINOError(f"the cache does not have it ({_reason(error)})") from error


def _compile(
    frozen: FrozenBackbone, precision: torch.dtype, pixels: Tensor, cache: Path | None, streams: int
) -> CompiledBackbone:
    _import_openvino()  # before torch computes what it is compared with
    with torch.inference_mode():
        expected = frozen.module.to("cpu")(frozen.transform.normalize(pixels)).float()

    def check(folder: Path) -> CompiledBackbone:
        compiled = CompiledBackbone(folder, precision, streams)
        try:
            found = compiled(pixels)
        except Exception as error:
            raise OpenVINOError(f"it cannot be computed ({_reason(error)})") from error
        if (difference := _difference(found, expected)) > (allowed := LARGEST_DIFFERENCE[precision]):
            raise OpenVINOError(f"embeddings differ by {difference:.1g} of their length (allowed: {allowed:g})")
        return compiled

    kept = None if cache is None else network_folder(frozen, cache)
    is_wrong = False
    if kept is not None and kept.is_dir():
        try:
            return check(kept)
        except OpenVINOError:  # damaged, or of another machine
            is_wrong = True
    with _folder_beside(kept) as folder:
        convert(frozen, folder)
        compiled = check(folder)
        if kept is not None:
            with suppress(OSError):  # another process was first, or there is no room: it is converted again
                if is_wrong:
                    shutil.rmtree(kept, ignore_errors=True)
                folder.rename(kept)
    return compiled


@contextmanager
def _folder_beside(target: Path | None) -> Iterator[Path]:
    """A temporary folder, on the disk of the target where that can be written; OpenVINOError if there can be none."""
    parent = None
    if target is not None:
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            parent = target.parent if os.access(target.parent, os.W_OK) else None
    try:
        folder = Path(tempfile.mkdtemp(prefix=".", dir=parent))
    except OSError as error:
        raise OpenVINOError(f"it cannot be written to disk ({_reason(error)})") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def convert(frozen: FrozenBackbone, folder: Path) -> None:
    """Write the network as OpenVINO's graph and weights in float32, from the pixels of one image at a time.

    Larger batches were no faster, and so an embedding does not depend on the images that come with it. The reader of
    torch's networks is called, and not `openvino.convert_model`, which reports its use over the network.

    Raises:
        OpenVINOError: If OpenVINO cannot be imported, or has no counterpart for an operation of it.
    """
    transform, openvino = frozen.transform, _import_openvino()
    side = transform.crop
    try:
        preprocess: Any = importlib.import_module("openvino.preprocess")
        manager: Any = importlib.import_module("openvino.frontend")
        decoder: Any = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # tracing warns of sizes that become constants; those of ours do not change
            traced = decoder.TorchScriptPythonDecoder(frozen.module, example_input=(torch.zeros(2, 3, side, side),))
        reader = manager.FrontEndManager().load_by_framework("pytorch")
        loaded = reader.load(traced)  # it must outlive the conversion, as must what was traced
        network = reader.convert(loaded)
        network.reshape([1, 3, side, side])
        pixels = preprocess.PrePostProcessor(network)
        pixels.input().tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC"))
        pixels.input().model().set_layout(openvino.Layout("NCHW"))
        to_float = pixels.input().preprocess().convert_element_type(openvino.Type.f32)
        to_float.mean([255 * mean for mean in transform.mean]).scale([255 * std for std in transform.std])
        openvino.serialize(pixels.build(), *(str(folder / name) for name in _FILES))
    except Exception as error:  # each step fails in its own ways
        raise OpenVINOError(f"it cannot be converted ({_reason(error)})") from error


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest distance of two embeddings of one image, as a share of the second's length."""
    if found.shape != expected.shape:
        return float("inf")
    shares = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-12)
    return float(shares.nan_to_num(nan=float("inf")).max()) if len(shares) else 0.0


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return shorten(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)
