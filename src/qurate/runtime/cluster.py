"""A Ray cluster to work on: joined, or started here; Ray is an extra."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from qurate.errors import QurateError
from qurate.runtime.signals import defer_signals

RETRIES = 3
"""How often a piece of work is tried again when its worker was lost. Our choice."""


class ClusterError(QurateError, ValueError):
    """There is no such cluster, or it lacks what is needed; the message says what to do."""


def start_ray(address: str, processes: int) -> Mapping[str, float]:
    """Connect to a cluster, or start one here if the address is 'local'.

    Args:
        address: 'local', 'auto' or host:port.
        processes: For 'local': how many at once.

    Returns:
        What the cluster has, by Ray's names: 'CPU', 'GPU' and others.

    Raises:
        ClusterError: If Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns that this will be its default
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f"--ray needs Ray, which is not installed ({error}): pip install 'qurate[ray]'.") from error
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        with defer_signals():  # Ray leaves a handler of its own for SIGTERM behind, which ours replaces again
            if address == "local":
                ray.init(address="local", num_cpus=processes, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError, and what Ray makes of bad addresses
        raise ClusterError(
            f"--ray must be 'local' or the address of a Ray cluster, got '{address}', where none answers ({error})."
        ) from error
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # in Ray
    return resources


def nodes() -> list[Mapping[str, float]]:
    """What each machine of the cluster has; a worker needs room on one of them."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # in Ray


def stop_ray() -> None:
    """Leave the cluster, if there is one; one that was started here ends."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
