"""Options that several verbs share. None means that the library's own default, or that of a --config file, holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from qurate import config, presets
from qurate.registry import ASKERS, DEFAULT_SELECTOR, LONG, METHODS, ORACLE, SELECTORS
from qurate.runs import settings


def _shown(metavar: str | None, default: str = "", help: str | None = None) -> Any:
    """How an option without a value of its own looks in the help."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint=f"(default: {default})" if default else "")


Flag = Annotated[tyro.conf.FlagCreatePairsOff[bool], _shown(None)]
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: yes)")]
Names = Annotated[str, tyro.conf.arg(metavar="A,B,...")]
AnyName = Annotated[str | None, _shown("NAME")]
Count = Annotated[int | None, _shown("INT")]
Minutes = Annotated[float | None, _shown("FLOAT")]

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
AnyFolder = Annotated[Path | None, _shown("DIR")]
AnyFile = Annotated[Path | None, _shown("FILE")]
AnyRun = Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")]
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]

MethodName = Annotated[
    str | None,
    _shown(
        "NAME", "tml", f"How the network learns: {', '.join(METHODS)}; or a row of the paper's tables such as TML_SPL."
    ),
]
SelectorName = Annotated[
    str | None, _shown("NAME", DEFAULT_SELECTOR, f"Which pseudo-labels to trust: {', '.join(SELECTORS)}.")
]
Preset = Annotated[presets.Preset | None, _shown("{qurate,paper}", "qurate")]
Seed = Annotated[int | None, _shown("INT", "0")]
Steps = Annotated[int | None, _shown("INT", str(config.TrainingConfig.steps))]
Rounds = Annotated[int | None, _shown("INT", "that of the preset")]

Backbone = Annotated[str | None, _shown("NAME", f"fast, {settings.BACKBONE}")]
ImageSize = Annotated[int | None, _shown("PIXELS", "the model's own")]
Pooling = Annotated[Literal["class", "mean", "both"] | None, _shown("{class,mean,both}", "the model's own")]
Weights = Annotated[str | None, _shown("FILE", "auto")]
Train = Annotated[settings.Train | None, _shown("{head,full}", "head")]
Strategy = Annotated[Literal["auto", "ddp"] | None, _shown("{auto,ddp}", "auto")]
Precision = Annotated[config.Precision | None, _shown("{32-true,16-mixed,bf16-mixed}", "32-true")]
Device = Annotated[config.Device | None, _shown("{auto,cpu,cuda,mps}", "auto")]

Methods = Annotated[
    str,
    tyro.conf.arg(
        metavar="A,B,...",
        help=f"Each with every selector: {', '.join(METHODS)}. Alone: tml+dqn, or a row of the paper such as TML_SPL.",
    ),
]
Selectors = Annotated[
    str,
    tyro.conf.arg(metavar="A,B,...", help=f"Which pseudo-labels to trust: {', '.join([*SELECTORS, ORACLE, LONG])}."),
]
Askers = Annotated[
    str | None,
    _shown(
        "A,B,...",
        "all",
        f"Who says which images to label next: {', '.join(ASKERS)}, or none, the control without answers.",
    ),
]
EVERY_SELECTOR = ",".join(SELECTORS)
Protocol = Annotated[Literal["mme", "clean", "drawn"] | None, _shown("{mme,clean,drawn}", "the suite's first")]
Row = Annotated[str | None, _shown("ROW", "TML_DQNPL*, or else the best")]
Ray = Annotated[str | None, _shown("local|ADDRESS")]
