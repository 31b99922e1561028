"""One base class of all our errors."""

from __future__ import annotations


class QurateError(Exception):
    """Base of every error that qurate raises on purpose; its message says what is wrong and what to do."""


class ConfigError(QurateError, ValueError):
    """A setting that is not allowed; the message says whose, what is allowed and what came."""
