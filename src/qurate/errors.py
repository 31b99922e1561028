"""One base class of all our errors.

An argument in a message stands in backticks, as Python writes it: `out`, `force=True`. The command line shows it as its
option: --out, --force.
"""

from __future__ import annotations


class QurateError(Exception):
    """Base of every error that qurate raises on purpose; its message says what is wrong and what to do."""


class ConfigError(QurateError, ValueError):
    """A setting that is not allowed; the message says whose, what is allowed and what came."""


class DataError(QurateError, ValueError):
    """Data that cannot be used as given; the message says where, what is allowed and what to do."""


class RunError(QurateError, RuntimeError):
    """A run folder cannot be used as asked; the message says why and what to pass."""


class TrainingError(QurateError, RuntimeError):
    """Training cannot continue; the message says at which step, why, and what to try."""


class WorkerError(QurateError, RuntimeError):
    """A worker process has ended or did not start; the message says why."""
