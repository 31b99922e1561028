"""How far a run is, for those who wait for it, and why it may do without a comparison."""

from __future__ import annotations

from qurate.config import RunConfig
from qurate.runs.previous import PreviousRun
from qurate.runs.staging import REPORT_FILE
from qurate.runtime.progress import Audience
from qurate.selection.callbacks import Callback
from qurate.selection.crossfit import is_baseline
from qurate.selection.q_learning.memory import readable_size

TOO_FEW = "No class has two labelled target images, so none can be held out. Label a few more and adapt again."
STILL_TO_COME = (
    "The comparison with plain training (S+T) was not finished when this page was written. Re-run the command with "
    "--resume to finish it, or with --resume --no-compare to do without."
)
_IS_BASELINE = "This run is plain training (S+T) itself, so there is nothing to compare it with."
_SWITCHED_OFF = (
    "The comparison with plain training (S+T) was switched off. Adapt again with it to see whether it helps."
)


class Phases(Callback):
    """Shows pre-training and each round as a phase.

    Args:
        audience: Told of them.
        config: The run.
    """

    def __init__(self, audience: Audience, config: RunConfig) -> None:
        self._audience = audience
        self._selection = config.selection
        self._loads = config.network.backbone != "none"
        self._phase, self._total = "pre-training", config.training.steps

    def on_memory(self, peak: int) -> None:
        """Say it once."""
        self._audience.say(f"Expected memory: about {readable_size(peak)}.")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Move on."""
        self._audience.show(self._phase, step, self._total)

    def on_waited(self, waited: float, seconds: float) -> None:
        """Say it where images are decoded for each step."""
        if self._loads and seconds:
            self._audience.say(
                f"The network waited for data in {waited / seconds:.0%} of {seconds:.0f} seconds of training."
            )

    def on_round_start(self, number: int) -> None:
        """A new phase."""
        self._phase, self._total = f"round {number + 1} of {self._selection.rounds}", self._selection.round_steps
        self._audience.show(self._phase, 0, self._total)


def why_not_compared(config: RunConfig, check_helping: bool, previous: PreviousRun | None) -> str:
    """Why a run has no comparison, as a sentence or two."""
    if previous is not None:
        is_calibrated = previous.model.calibration.by != "nothing"
        kept = "are made as sure as that run's" if is_calibrated else "are not calibrated, as those of that run"
        return (
            f"This run learns from answers about {previous.folder} and repeats neither its comparison with plain "
            "training (S+T) nor its calibration, which would take longer than the run itself. Its probabilities "
            f"{kept}, and what "
            f"{previous.compared / REPORT_FILE} says of whether adaptation helped holds for the model before the "
            "answers."
        )
    if not check_helping:
        return _SWITCHED_OFF
    return _IS_BASELINE if is_baseline(config) else TOO_FEW
