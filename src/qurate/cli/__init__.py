"""The command line: one function per verb. Imported by nobody, and light until a verb runs."""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, get_type_hints

import tyro

import qurate
from qurate.cli import asking, benchmarks, own_images
from qurate.cli.terminal import on_stop, print_line, print_message, stop_advice
from qurate.errors import ConfigError, QurateError
from qurate.runtime.paths import shorten
from qurate.runtime.signals import ReceivedSignal, ignore_signals, raise_on_signal
from qurate.runtime.validation import Allowed, show

VERBS: dict[str, Callable[..., Any]] = {
    "check": own_images.check,
    "adapt": own_images.adapt,
    "predict": own_images.predict,
    "evaluate": own_images.evaluate,
    "suggest": asking.suggest,
    "open": asking.open_page,
    "export": own_images.export,
    "embed": own_images.embed,
    "backbones": own_images.backbones,
    "demo": benchmarks.demo,
    "benchmark": benchmarks.benchmark,
    "report": benchmarks.report,
}
"""Your own images first, in the order of their use; then the benchmarks."""

_DESCRIPTION = (
    "Adapt an image classifier to a new domain with a few labels per class. "
    "`qurate COMMAND --help` explains a command; `qurate --version` prints the version."
)


def main() -> None:
    """Entry point of `qurate`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, so that the next file to be opened would take its place
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115  # as long as we run
    try:
        run_verb(is_last=True)
    finally:
        ignore_signals()  # all is done; a signal now would print a traceback


def run_verb(*, is_last: bool = False) -> None:
    """Do what the command line says; exit code 2 for an error of ours, 130 for Ctrl-C, 143 for SIGTERM.

    Args:
        is_last: Whether the process ends with it: signals are ignored from its end on.
    """
    words = sys.argv[1:] or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name need not be valid text
    on_stop(str)  # no advice yet
    with raise_on_signal(restore=not is_last) as received, warnings.catch_warnings():
        warnings.showwarning = _print_once(set())
        try:
            _do(words)
            sys.stdout.flush()
            if is_last:
                ignore_signals()
        except BaseException as error:
            sys.exit(_explain(error, received))


def _do(words: Sequence[str]) -> None:
    _refuse_empty(words)
    if words == ["--version"]:
        print_line(f"qurate {qurate.__version__}")
        return
    if not words[0].startswith("-") and words[0] not in VERBS:
        likely = ["open"] if words[0] == "review" else get_close_matches(words[0], VERBS, 1)
        meant = f" Did you mean 'qurate {likely[0]}'?" if likely else ""
        raise ConfigError(f"there is no command {shorten(words[0])!r}.{meant} 'qurate --help' lists all.")
    verbs = {name: _checked(verb) for name, verb in VERBS.items()}
    tyro.extras.subcommand_cli_from_dict(verbs, args=words, prog="qurate", description=_DESCRIPTION)


def _checked(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, which checks its arguments by the rules in their annotations before it begins."""

    @functools.wraps(verb)
    def run(*positional: Any, **named: Any) -> None:
        kinds = get_type_hints(verb, include_extras=True)
        for name, value in inspect.signature(verb).bind(*positional, **named).arguments.items():
            for rule in getattr(kinds[name], "__metadata__", ()):
                if isinstance(rule, Allowed) and not rule.test(value):
                    raise ConfigError(f"--{name.replace('_', '-')} must be {rule.words}, got {show(value)}.")
        verb(*positional, **named)

    # tyro shows the docstring of the verb itself, with the line breaks in what it says of an argument
    verb.__doc__ = re.sub(r"\n {8}(?=\S)", " ", inspect.getdoc(verb) or "")
    return run


def _explain(error: BaseException, received: ReceivedSignal) -> int:
    """Print in a line what happened.

    Returns:
        The exit code.

    Raises:
        BaseException: If it is none of ours, or no error at all.
    """
    if received.signal is not None or isinstance(error, KeyboardInterrupt):
        advice = [str(word) for word in error.args] if isinstance(error, KeyboardInterrupt) else []
        print_message(" ".join(["stopped.", *(advice or [stop_advice()])]), "red")
        return received.exit_code
    if isinstance(error, QurateError):
        print_message(str(error), "red")
        return 2
    if isinstance(error, OSError) and error.filename is None and _output_is_lost():
        print_message(f"standard output: cannot be written ({error.strerror}), so lines are missing there.", "red")
        return 2
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        print_message(
            f"{named}cannot be read or written ({error.strerror}). Check the disk and the permissions.", "red"
        )
        return 2
    raise error


def _output_is_lost() -> bool:
    """Whether nothing can be written to the standard output: an error of the system does not say whose it is."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"\n")
    except io.UnsupportedOperation:  # no file
        return False
    except OSError:
        return True
    return False


def _refuse_empty(words: Sequence[str]) -> None:
    """An empty word is a variable that is not set; as a path it would mean the current folder."""
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if word == "" or (option.startswith("--") and equals and not value):
            named = option or (before if before.startswith("--") else "an argument")
            raise ConfigError(f"{named} is empty; is a variable unset?")


def _print_once(printed: set[str]) -> Callable[..., None]:
    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            print_message(f"warning: {message}", "yellow")

    return show_warning
