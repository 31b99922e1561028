"""Whether what people hand to Algorithm 1 is what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qurate.config import RunConfig
from qurate.data.samples import DataError, Split, check_positions, describe
from qurate.errors import ConfigError
from qurate.selection.callbacks import Callback
from qurate.selection.continuation import Previous
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round


def check_fit(
    split: object,
    config: object,
    selector: object,
    callbacks: object,
    checkpoint: object,
    pretrained: object,
    previous: object,
) -> None:
    """The arguments of `fit`, before anything is built.

    Raises:
        DataError: If it is not a Split.
        ConfigError: If another argument is not what it must be.
    """
    if not isinstance(split, Split):
        raise DataError(f"fit: split must be a Split, for example from split_target(...), got {describe(split)}.")
    if not isinstance(config, RunConfig):
        raise ConfigError(f"fit: config must be a RunConfig, such as make_config('tml') makes, got {describe(config)}.")
    if selector is not None and (isinstance(selector, type) or not callable(getattr(selector, "select", None))):
        raise ConfigError(
            f"fit: selector must be an object with a method select(round), got {describe(selector)}. Selectors with "
            "a name are chosen by make_config(selector=...)."
        )
    if not isinstance(callbacks, Sequence) or not all(isinstance(each, Callback) for each in callbacks):
        raise ConfigError(f"fit: callbacks must be a list of Callback objects, got {_kinds(callbacks)}.")
    if checkpoint is not None and not all(callable(getattr(checkpoint, verb, None)) for verb in ("load", "save")):
        raise ConfigError(
            f"fit: checkpoint must be an object with load() and save(progress), got {describe(checkpoint)}."
        )
    if pretrained is not None and not isinstance(pretrained, Mapping):
        raise ConfigError(f"fit: pretrained must be what pretrain(...) gives, got {describe(pretrained)}.")
    if previous is not None:
        _check_previous(previous, split, pretrained)


def _check_previous(previous: object, split: Split, pretrained: object) -> None:
    if not isinstance(previous, Previous):
        raise ConfigError(f"fit: previous must be a Previous, got {describe(previous)}.")
    if pretrained is not None:
        raise ConfigError("fit: previous and pretrained cannot be combined. Give one of them.")
    check_positions(previous.positives.indices, len(split.target_unlabeled), "fit: previous.positives.indices")
    check_positions(previous.positives.labels, split.n_classes, "fit: previous.positives.labels")
    if previous.answered >= len(split.target_labeled):
        raise DataError(
            f"fit: previous.answered must be below the {len(split.target_labeled)} samples of D_t, got "
            f"{previous.answered}."
        )


def check_positives(positives: object, selector: object, round: Round) -> None:
    """What a selector chose.

    Raises:
        ConfigError: If these are no positives.
        DataError: If they point to no sample of the round, or to no class.
    """
    where = f"{type(selector).__name__}.select"
    if not isinstance(positives, Positives):
        raise ConfigError(
            f"{where} must return Positives, such as round.positives_at(indices), got {describe(positives)}."
        )
    check_positions(positives.indices, len(round.pseudo_labels), f"{where}: indices")
    check_positions(positives.labels, round.n_classes, f"{where}: labels")


def _kinds(values: object) -> str:
    if not isinstance(values, Sequence):
        return describe(values)
    return next(describe(each) for each in values if not isinstance(each, Callback))
