"""Whether pretrained weights can be had from the model hub: they are here already, or it answers within seconds."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

import timm
from huggingface_hub import constants, try_to_load_from_cache

PATIENCE = 4.0
"""Seconds that the hub has to answer. Our choice."""

_FILES = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")


def is_downloaded(model: str) -> bool:
    """Whether the hub's file of a model of timm lies in the cache of this user.

    Args:
        model: 'timm/NAME.TAG'.
    """
    place = hub_place(model)
    return place is not None and any(isinstance(try_to_load_from_cache(place, name), str) for name in _FILES)


def hub_place(model: str) -> str | None:
    """Where on the hub a model of timm has its weights; None where timm takes them from elsewhere."""
    name = model.removeprefix("timm/")
    config = None if ":" in name else timm.get_pretrained_cfg(name, allow_unregistered=True)
    place = None if config is None else config.hf_hub_id
    return place if isinstance(place, str) else None


def hub_answers(patience: float = PATIENCE) -> bool:
    """Whether the hub answers soon, whatever it says; a name server that does not answer is not waited for either."""
    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=patience).close()
        except urllib.error.HTTPError:  # it said no, so it is there
            pass
        except OSError:
            return
        answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    return answered.is_set()
