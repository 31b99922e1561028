"""A time limit: what is chosen, what is dropped on the way, what a resumed run keeps. No test looks at a real clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.own_images import BACKBONE, make_folders, save_weights

from qurate.data.own_images import read_parts
from qurate.errors import ConfigError, DataError
from qurate.networks import backbone_names
from qurate.networks.backbone_names import OFFLINE_BACKBONES
from qurate.runs import budget, workload
from qurate.runs.adapt import resolve, run_adaptation
from qurate.runs.budget import BackboneChoice, Budget, RunPlan, list_choices
from qurate.runs.options import check_options
from qurate.runs.pipeline import NO_TIME
from qurate.runs.setup import RunOutcome

LARGE, USUAL, TINY = f"{BACKBONE}@48", f"{BACKBONE}@32", f"{BACKBONE}@24"
OTHER = "timm/test_vit"
"""Not here, and never loaded."""


class Simulation:
    """A reporter and its clock: time passes as progress is shown, by the seconds of a unit of each phase.

    Args:
        seconds: Of an image or a step, by how the name of a phase begins; others take no time.
        stop: Phase at whose beginning the run is interrupted.
    """

    def __init__(self, seconds: dict[str, float] | None = None, stop: str = "") -> None:
        self.seconds = {"timing the backbone": 1.0, "timing the training": 0.01, "embedding": 1.0, **(seconds or {})}
        self.now, self.stop = 0.0, stop
        self.lines: list[str] = []
        self.phases: dict[str, int] = {}

    def clock(self) -> float:
        return self.now

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        if self.stop and phase.startswith(self.stop):
            raise KeyboardInterrupt
        each = next((each for name, each in self.seconds.items() if phase.startswith(name)), 0.0)
        self.now += max(0, done - self.phases.get(phase, 0)) * each
        self.phases[phase] = done

    def line(self, words: str) -> str:
        """The line with these words."""
        return next(line for line in self.lines if words in line)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """42 images, three backbones of 2, 1 and 0.5 seconds per image, and folds that are trained one by one."""
    weights = save_weights(tmp_path / "w.safetensors")
    choices = [BackboneChoice(name, weights) for name in (LARGE, USUAL, TINY)]
    monkeypatch.setattr(budget, "list_choices", lambda: choices)
    monkeypatch.setattr(budget, "SMALL", TINY)
    monkeypatch.setattr(budget, "COSTS", {LARGE: 2.0, USUAL: 1.0, TINY: 0.5, OTHER: 0.8})
    monkeypatch.setattr(budget, "WIDTHS", {LARGE: 96, USUAL: 96, TINY: 96, OTHER: 64})
    monkeypatch.setattr(budget, "PROBE_IMAGES", 16)
    monkeypatch.setattr(budget, "PROCESS_SECONDS", 0.0)
    monkeypatch.setattr(workload, "workers_for", lambda config, folds, rows: 1)
    monkeypatch.setattr(workload, "WRITING_STEPS", 400.0)
    monkeypatch.setattr(workload, "WRITING_STEPS_PER_IMAGE", 0.0)
    monkeypatch.setattr(workload, "WRITING_AGAIN", 1.0)
    return {**make_folders(tmp_path), "cache": tmp_path / "cache", "device": "cpu"}


def budget_of(given: dict[str, Any], seconds: float, simulation: Simulation) -> Budget:
    """A budget that has chosen nothing yet."""
    setup = resolve(check_options({**given, "time_limit": seconds}), simulation.clock)
    return Budget(setup, read_parts(*setup.places[:3], cache=setup.cache), simulation)


def plan_of(given: dict[str, Any], seconds: float, simulation: Simulation) -> tuple[Any, ...]:
    """Backbone, comparison, steps and rounds that are chosen for a limit."""
    chosen = budget_of(given, seconds, simulation).choose()
    return chosen.backbone, chosen.compare, chosen.config.training.steps, chosen.config.selection.rounds


@pytest.mark.parametrize(
    ("seconds", "plan"),
    [
        (360, (LARGE, True, 1500, 8)),  # 84 s of embedding, 46 of training, 142 of the comparison, 4 of writing
        (290, (USUAL, True, 1500, 8)),  # 26 s of embedding: 16 of 42 images are embedded in the trial
        (150, (USUAL, True, 500, 4)),  # 18 s of training, 58 of the comparison
        (80, (USUAL, False, 500, 4)),
        (70, (TINY, False, 500, 4)),  # 21 s of embedding
        (60, (TINY, False, 500, 4)),  # its 43 s are what is left: without a margin, but not over
    ],
)
def test_the_best_that_fits_is_taken(given: dict[str, Any], seconds: float, plan: tuple[Any, ...]) -> None:
    simulation = Simulation()
    assert plan_of(given, seconds, simulation) == plan
    assert plan[0] in simulation.line("that are left: ")


def test_it_says_what_it_chose_why_and_what_more_time_would_buy(given: dict[str, Any]) -> None:
    simulation = Simulation()
    plan_of(given, 150, simulation)
    assert simulation.lines == [
        f"Measured: {USUAL} embeds 1.0 images per second.",
        "Measured: 100 training steps per second on embeddings 96 wide.",
        f"For the 2.3 minutes that are left: {USUAL}, 500 steps and 4 rounds, with a comparison. Expected: "
        "about 2 minutes (embedding 26 s, training 18 s, comparing 58 s, writing 4 s).",
        f"More time would buy {USUAL}, 1500 steps and 8 rounds, with a comparison, from 4.7 minutes on; {LARGE}, 1500 "
        "steps and 8 rounds, with a comparison, from 5.8 minutes on.",
        f"To repeat it without a limit: --backbone {USUAL} --steps 500 --rounds 4.",
    ]


def test_a_limit_that_nothing_fits_is_refused_with_one_that_does(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"`time_limit` is too short: .*@24, 500 steps.* Give 1.2 minutes"):
        plan_of(given, 30, Simulation())
    assert plan_of(given, 72, Simulation())[0] == USUAL  # the trial's images are in the cache by now


def test_processes_take_time_to_start_also_where_all_folds_end_beside_the_training(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "workers_for", lambda config, folds, rows: 4)
    chosen = budget_of(given, 1000, Simulation())
    chosen.choose()
    compared, alone = (RunPlan(BackboneChoice(USUAL, "auto"), compare, 500, 4) for compare in (True, False))
    before = chosen.estimate(compared).comparison
    monkeypatch.setattr(budget, "PROCESS_SECONDS", 5.0)
    assert chosen.estimate(compared).comparison == pytest.approx(before + 10)
    assert chosen.estimate(alone).comparison == 0


def test_embeddings_in_the_cache_cost_nothing(given: dict[str, Any]) -> None:
    assert plan_of(given, 1000, Simulation())[0] == LARGE
    run_adaptation({**given, **TRAINED, "backbone": LARGE, "weights": weights_of(given)}, Simulation())
    assert plan_of(given, 260, Simulation())[0] == LARGE


@pytest.mark.parametrize(("seconds", "backbone"), [(360, LARGE), (290, USUAL), (70, TINY)])
def test_a_download_for_the_trial_counts_no_more(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, seconds: float, backbone: str
) -> None:
    # all have the same weights
    absent = [BackboneChoice(name, weights_of(given), 500) for name in (LARGE, USUAL, TINY)]
    monkeypatch.setattr(budget, "list_choices", lambda: absent)
    assert plan_of(given, seconds, Simulation())[0] == backbone


def test_only_what_is_absent_is_downloaded_and_only_once(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, absent = BackboneChoice(USUAL, weights_of(given)), BackboneChoice(OTHER, "pretrained", 50)
    both = BackboneChoice(f"{USUAL}+{OTHER}", f"{here.weights}+pretrained", 50)
    monkeypatch.setattr(budget, "list_choices", lambda: [both, absent, here])
    simulation = Simulation()
    chosen = budget_of(given, 10_000, simulation)
    assert chosen.choose().backbone == both.name
    assert simulation.line("embeds").startswith(f"Measured: {USUAL}")  # not absent because of its partner
    plans = [RunPlan(choice, True, 1500, 8) for choice in (both, absent, here)]
    found = [chosen.estimate(plan).embedding for plan in plans]
    assert found == pytest.approx([26 + 0.8 * 42 + 10, 0.8 * 42 + 10, 26])  # 16 images were embedded in the trial
    chosen.settle()
    assert chosen.estimate(plans[0]).embedding == 0  # by now it is downloaded
    assert not chosen._frozen  # nothing but the backbone of the run stays in memory


def test_what_is_given_is_kept(given: dict[str, Any]) -> None:
    named = {**given, "backbone": TINY, "weights": weights_of(given)}
    assert plan_of(named, 10_000, Simulation()) == (TINY, True, 1500, 8)
    assert plan_of({**given, "backbone": "auto"}, 10_000, Simulation())[0] == LARGE
    simulation = Simulation()
    assert plan_of({**given, "compare": True, "steps": 1000}, 250, simulation) == (USUAL, True, 1000, 8)
    assert simulation.lines[-1].endswith(f"--backbone {USUAL}.")
    with pytest.raises(ConfigError, match="too short"):
        plan_of({**given, "compare": True, "steps": 1000}, 60, Simulation())


TRAINED = {"selector": "none", "steps": 30}


def weights_of(given: dict[str, Any]) -> str:
    return str(given["source"].parent / "w.safetensors")


def run(given: dict[str, Any], simulation: Simulation, **options: Any) -> RunOutcome:
    return run_adaptation({**given, **TRAINED, **options}, simulation, simulation.clock)


def test_answers_about_other_images_are_refused_before_anything_is_timed(given: dict[str, Any], tmp_path: Path) -> None:
    labels, simulation = tmp_path / "labels.csv", Simulation()
    labels.write_text("file,label\nelsewhere.png,blue\n")
    with pytest.raises(DataError, match="is about an image of this run"):
        run(given, simulation, time_limit=100, labels=labels)
    assert not simulation.phases


def tensors_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return settings


def test_the_printed_options_repeat_a_run_to_the_last_bit(given: dict[str, Any], tmp_path: Path) -> None:
    simulation = Simulation()
    model = run(given, simulation, time_limit=100, out=tmp_path / "limited").model
    assert settings_of(tmp_path / "limited")["backbone"] == USUAL
    assert simulation.line("To repeat it").endswith(f"--backbone {USUAL}.")
    again = run(given, Simulation(), backbone=USUAL, weights=weights_of(given), out=tmp_path / "again").model
    assert tensors_of(tmp_path / "limited") == tensors_of(tmp_path / "again")
    assert settings_of(tmp_path / "limited") == settings_of(tmp_path / "again")
    assert model.comparison == again.comparison
    assert model.comparison is not None


def test_slow_embedding_gives_up_the_larger_backbone(given: dict[str, Any], tmp_path: Path) -> None:
    simulation = Simulation({"embedding": 6.0})  # three times what the trial and the costs say of the large one
    model = run(given, simulation, time_limit=200, out=tmp_path / "run").model
    assert LARGE in simulation.line("minutes that are left: ")
    assert "Embedding is slower than expected, so the run does less: " + TINY in simulation.line("slower than expected")
    assert settings_of(tmp_path / "run")["backbone"] == TINY == model.config.backbone
    assert simulation.phases["embedding"] > 0


def test_slow_embedding_gives_up_the_comparison_when_it_is_over(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "LEAST_IMAGES", 1000)  # nothing is noticed before the end
    simulation = Simulation({"embedding": 3.0})
    model = run(given, simulation, time_limit=100, out=tmp_path / "run").model
    assert simulation.line("took longer than expected").startswith("Embedding took longer than expected, so the run")
    assert settings_of(tmp_path / "run")["check_helping"] is False
    assert model.comparison is None
    assert model.no_comparison == NO_TIME, "nobody switched it off"
    options = {"backbone": USUAL, "weights": weights_of(given), "compare": False}
    run(given, Simulation(), **options, out=tmp_path / "again")
    assert tensors_of(tmp_path / "run") == tensors_of(tmp_path / "again")
    assert resolve(check_options({**given, "config": tmp_path / "run" / "config.json"})).cut_short
    files = pd.read_csv(tmp_path / "run" / "predictions.csv")["file"]
    (tmp_path / "run" / "labels.csv").write_text("file,label\n" + "".join(f"{file},new\n" for file in files[:3]))
    previous = {**given, "previous": tmp_path / "run"}
    assert run_adaptation(previous, Simulation()).model.no_comparison == NO_TIME, "a new class starts a run anew"
    assert not resolve(check_options({**previous, "compare": False})).cut_short, "now somebody did"


def test_a_slow_comparison_is_left_for_resume(given: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "run"
    simulation = Simulation({"comparison": 1.0})
    model = run(given, simulation, time_limit=100, out=place).model
    assert "left" in simulation.line("does not fit the time limit")
    assert "--resume" in simulation.line("The model is finished.")
    assert model.no_comparison.startswith("The comparison with plain training (S+T) was not finished")
    assert simulation.now < 120
    assert (place / "comparison.safetensors").is_file()
    after = Simulation({"comparison": 100.0})
    done = run(given, after, time_limit=100, out=place, resume=True)
    assert "is not limited again" in after.lines[0]
    assert not any(phase.startswith("timing") for phase in after.phases)
    run(given, Simulation(), backbone=USUAL, weights=weights_of(given), out=tmp_path / "again")
    assert done.model.comparison is not None
    assert (place / "predictions.csv").read_bytes() == (tmp_path / "again" / "predictions.csv").read_bytes()
    assert not (place / "comparison.safetensors").exists()


def test_a_slow_comparison_without_a_folder_says_so(given: dict[str, Any]) -> None:
    simulation = Simulation({"comparison": 1.0})
    assert run(given, simulation, time_limit=100).model.no_comparison == NO_TIME
    assert not any("--resume" in line for line in simulation.lines)


def test_a_resumed_run_keeps_its_choice(given: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(given, Simulation(stop="pre-training"), time_limit=100, out=place)
    before = (place / "config.json").read_bytes()
    simulation = Simulation()
    run(given, simulation, time_limit=10_000, out=place, resume=True)
    assert simulation.lines[0] == (
        f"The run goes on with what was chosen when it began, and is not limited again: {USUAL}, 30 steps, with a "
        "comparison."
    )
    assert (place / "config.json").read_bytes() == before
    run(given, Simulation(), backbone=USUAL, weights=weights_of(given), out=tmp_path / "again")
    assert tensors_of(place) == tensors_of(tmp_path / "again")


def test_a_run_that_was_stopped_before_its_choice_was_written_chooses_again(
    given: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(given, Simulation(stop="embedding"), time_limit=100, out=tmp_path / "run")
    simulation = Simulation()
    run(given, simulation, time_limit=300, out=tmp_path / "run", resume=True)
    assert settings_of(tmp_path / "run")["backbone"] == LARGE


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time_limit": 0}, "`time_limit` must be between 1 and 10000000, got 0."),
        ({"time_limit": -5}, "`time_limit` must be between"),
        ({"time_limit": float("nan")}, "`time_limit` must be"),
        ({"time_limit": "20"}, "`time_limit` must be a finite number"),
        ({"time_limit": 60, "train": "full"}, "`train='full'` cannot be given beside `time_limit`"),
        ({"time_limit": 60, "preset": "paper"}, "`preset='paper'` cannot be given beside `time_limit`"),
        ({"time_limit": 60, "devices": 2, "full_steps": 3}, "`devices`, `full_steps` cannot be given beside"),
        ({"time_limit": 60, "config": "file.json"}, "`config` cannot be given beside `time_limit`"),
        ({"time_limit": 60, "previous": "run"}, "`previous` cannot be given beside `time_limit`"),
    ],
)
def test_limits_that_cannot_be_are_refused(given: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_options({**given, **options})
    assert says in str(refused.value)


@pytest.mark.parametrize("online", [False, True])
def test_choices_are_what_is_here_or_can_be_downloaded(monkeypatch: pytest.MonkeyPatch, online: bool) -> None:
    monkeypatch.setattr(
        backbone_names, "offline_is_installed", lambda name: name.partition(".")[0] in OFFLINE_BACKBONES
    )
    monkeypatch.setattr(backbone_names, "is_downloaded", lambda name: False)
    monkeypatch.setattr(backbone_names, "hub_answers", lambda: online)
    found = [(each.name.replace("timm/tf_efficientnet_", ""), each.weights, each.megabytes) for each in list_choices()]
    downloads = [
        ("timm/vit_base_patch14_dinov2.lvd142m@224", "pretrained", 346),
        ("timm/vit_small_patch14_dinov2.lvd142m@224", "pretrained", 88),
    ]
    here = ("lite0.in1k+lite2.in1k", "lite2.in1k", "lite1.in1k", "lite0.in1k", "lite0.in1k@160")
    assert found == (downloads if online else []) + [(name, "offline", 0) for name in here]
