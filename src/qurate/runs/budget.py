"""A time limit: the best run that fits it, by speeds that are measured here, and kept to while it goes on.

Plans are listed from the best to the cheapest: the larger backbones are given up first, then steps and rounds, then the
comparison with S+T, then pixels. The first that fits is taken. Where images turn out to take longer than expected,
the rest of the list is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional as F

from qurate.data.own_images import Parts
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.embedding.backbone import FrozenBackbone, freeze_backbone
from qurate.embedding.embed import embed_files, find_missing, image_paths
from qurate.errors import ConfigError, QurateError
from qurate.methods import Method
from qurate.networks.backbone_names import RECOMMENDED, find_weights, list_available, parse_backbones, weights_of
from qurate.runs.setup import Clock, RunSetup
from qurate.runs.workload import WRITING_AGAIN, workload_of
from qurate.runtime.paths import count
from qurate.runtime.progress import Reporter, say_rate, say_time
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.pseudo_labels import Positives

MARGIN = 1.2
"""A plan is taken if this many times its expected seconds are left. Our choice."""
TOLERANCE = 0.1
"""Share of the limit that a run may take beyond it; one that would take more is cut down. Our choice."""
PROBE_IMAGES = 96
"""Images by which embedding is timed; they stay in the cache. Our choice."""
PROBE_STEPS, PROBE_ROWS = 40, 2000
"""Training steps, and at most so many unlabelled samples, by which training is timed. Our choice."""
LEAST_IMAGES, LEAST_STEPS, LEAST_SECONDS = 16, 20, 3.0
"""What must be done before the speed of something under way is judged. Our choice."""
PROCESS_SECONDS = 5.0
"""Seconds until a worker process has loaded torch. Our choice."""
MEGABYTES_PER_SECOND = 5.0
"""Expected speed of a download. Our choice."""
SHORT_STEPS, SHORT_ROUNDS = 500, 4
"""Steps before selection and rounds of a short run. Our choice."""
JOINED = ("timm/tf_efficientnet_lite0.in1k", "timm/tf_efficientnet_lite2.in1k")
"""Backbones that are better together than the stronger of them alone (docs/backbones.md)."""
SMALL = RECOMMENDED[0].name + "@160"
"""The least: the fastest backbone on smaller images. Our choice."""
COSTS = {row.name: row.cost for row in RECOMMENDED} | {SMALL: 0.6}
"""Time per image, in times of the first recommended backbone, of those that are not timed themselves."""
WIDTHS = {row.name: row.width for row in RECOMMENDED} | {SMALL: RECOMMENDED[0].width}
"""Width of the embeddings of those that are not loaded."""


class OverTime(QurateError, RuntimeError):  # noqa: N818  # caught by the pipeline, which goes on with less
    """What is under way cannot end in time."""


@dataclass(frozen=True)
class BackboneChoice:
    """A backbone, or several, that a plan may have.

    Args:
        name: By its whole name.
        weights: Where its weights come from.
        megabytes: To download.
    """

    name: str
    weights: str
    megabytes: int = 0

    @property
    def members(self) -> list[tuple[str, str]]:
        """Name and weights of each of them."""
        return list(zip(map(str, parse_backbones(self.name)), weights_of(self.name, self.weights), strict=True))


def list_choices() -> list[BackboneChoice]:
    """The backbones that are ready here or can be downloaded, the best first; the last is `SMALL`, where it can be."""
    found = [
        BackboneChoice(row.name, find_weights(row.name, "auto"), 0 if row.ready else row.megabytes)
        for row in list_available()[0]
    ]
    both = [choice for choice in found if choice.name in JOINED]
    if len(both) == len(JOINED):
        name = "+".join(JOINED)
        joined = BackboneChoice(name, find_weights(name, "auto"), sum(each.megabytes for each in both))
        found.insert(found.index(both[-1]) + 1, joined)
    if found[0].name == RECOMMENDED[0].name:
        found.insert(0, replace(found[0], name=SMALL))
    return found[::-1]


@dataclass(frozen=True)
class RunPlan:
    """What a run computes: backbone, comparison with S+T or not, steps before selection, most rounds (0 for none)."""

    backbone: BackboneChoice
    compare: bool
    steps: int
    rounds: int

    def apply(self, setup: RunSetup) -> RunSetup:
        """The run by this plan."""
        config = replace(
            setup.config,
            training=replace(setup.config.training, steps=self.steps),
            selection=replace(setup.config.selection, rounds=self.rounds or setup.config.selection.rounds),
        )
        return replace(
            setup,
            config=config,
            backbone=self.backbone.name,
            weights=self.backbone.weights,
            compare=self.compare,
            cut_short=setup.compare and not self.compare,
        )

    def __str__(self) -> str:
        return describe_choice(self.backbone.name, self.steps, self.rounds, self.compare)


def describe_choice(backbone: str, steps: int, rounds: int, compare: bool) -> str:
    """'timm/NAME, 500 steps and 4 rounds, without a comparison'."""
    with_rounds = f" and {count(rounds, 'round')}" if rounds else ""
    return f"{backbone}, {steps} steps{with_rounds}, {'with' if compare else 'without'} a comparison"


@dataclass(frozen=True)
class Estimate:
    """Expected seconds of a plan from now on."""

    embedding: float
    training: float
    comparison: float
    writing: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.embedding + self.training + self.comparison + self.writing


@dataclass(frozen=True)
class TrainingSpeed:
    """Seconds of a training step, and of what a round does beside its steps."""

    step: float
    round: float


class Budget:
    """Chooses what a run computes so that it ends within its limit.

    Args:
        setup: The run as it is without a limit; what was given of it is kept.
        parts: Its images.
        reporter: Told what was chosen and why, and shown the trials.
    """

    def __init__(self, setup: RunSetup, parts: Parts, reporter: Reporter) -> None:
        assert setup.limit is not None
        self._setup, self._limit, self._reporter = setup, setup.limit, reporter
        self._split, self._paths = parts.split, image_paths(parts.split)
        self._frozen: dict[str, FrozenBackbone] = {}
        self._missing: dict[str, int] = {}  # images to embed
        self._image: dict[str, float] = {}  # seconds of each
        self._training: dict[int, TrainingSpeed] = {}  # by width
        is_chosen = "backbone" not in self._limit.kept
        self._choices = list_choices() if is_chosen else [BackboneChoice(setup.backbone, setup.weights)]
        self._plans = self._list_plans()
        self._plan, self._place = self._plans[0], 0
        self._is_last = False  # nothing quicker is left
        self._widths = dict(WIDTHS)
        alone = [choice for choice in self._choices if len(choice.members) == 1]
        self._megabytes = {choice.name: choice.megabytes for choice in alone}  # still to download

    def _list_plans(self) -> list[RunPlan]:
        """All plans, the best first."""
        usual = [choice for choice in self._choices if choice.name != SMALL] or self._choices
        small = [plan for choice in self._choices[len(usual) :] for plan in self._variants(choice)]
        return [*(self._variants(choice)[0] for choice in usual), *self._variants(usual[-1])[1:], *small]

    def _variants(self, choice: BackboneChoice) -> list[RunPlan]:
        """The plans of a backbone: whole, short, and without a comparison too; what was given stays."""
        config, kept = self._setup.config, self._limit.kept
        rounds = 0 if config.selection.selector.name == "none" else config.selection.rounds
        plans = [RunPlan(choice, self._setup.compare, config.training.steps, rounds)]
        if not {"steps", "rounds"} & kept:
            steps, rounds = min(plans[-1].steps, SHORT_STEPS), min(plans[-1].rounds, SHORT_ROUNDS)
            plans.append(replace(plans[-1], steps=steps, rounds=rounds))
        if self._setup.compare and "compare" not in kept:
            plans.append(replace(plans[-1], compare=False))
        return plans

    def choose(self) -> RunSetup:
        """Time this machine and take the first plan that fits.

        Raises:
            ConfigError: If not even the quickest does.
        """
        self._measure()
        found = self._first_that_fits(self._plans) or self._quickest(self._plans)
        expected = self.estimate(found).total
        if not self._fits(expected):
            raise ConfigError(
                f"`time_limit` is too short: the least that can be done here, {found}, takes {say_time(expected)} "
                f"more. Give {_minutes(self._needed(found))}, or fewer images."
            )
        return self._take(found, f"For the {_minutes(self._limit.left)} that are left:")

    def choose_again(self) -> RunSetup:
        """After `OverTime` while embedding: the next plan that fits, or else the quickest."""
        for name, _ in self._plan.backbone.members:
            self._note_download(name)
        self._measure()
        rest = self._plans[self._place + 1 :] or [self._plan]
        found = self._first_that_fits(rest)
        self._is_last = found is None
        return self._take(found or self._quickest(rest), "Embedding is slower than expected, so the run does less:")

    def settle(self) -> RunSetup:
        """After embedding: the plan, or less of it where too little time is left for all of it."""
        self._missing = dict.fromkeys(self._missing, 0)
        self._frozen.clear()  # they take memory, and are of no more use
        ways = self._variants(self._plan.backbone)
        ways = ways[ways.index(self._plan) :]
        found = next((way for way in ways if self._fits(self.estimate(way).total)), ways[-1])
        if found == self._plan:
            return found.apply(self._setup)
        return self._take(found, "Embedding took longer than expected, so the run does less:")

    def estimate(self, plan: RunPlan) -> Estimate:
        """How long a plan takes from now on."""
        config = plan.apply(self._setup).config
        speed = self._training[self._width(plan.backbone)]
        missing = [name for name, _ in plan.backbone.members if self._missing[name]]
        embedding = sum(self._missing[name] * self._image[name] for name in missing)
        embedding += sum(self._megabytes.get(name, 0) for name in missing) / MEGABYTES_PER_SECOND
        sizes = [len(part) for part in self._split.parts.values()]
        work = workload_of(config, self._split.target_labeled.labels, sizes, compare=plan.compare)
        beside = plan.rounds * speed.round
        training = (work.baseline + work.pretraining + work.rounds) * speed.step + beside
        comparison = (work.baseline_folds + work.folds + work.writing_again) * speed.step
        comparison += beside * work.folds / config.total_steps
        if work.writing_again:  # two sets of processes start, also where all folds end beside the training
            comparison += 2 * PROCESS_SECONDS
        return Estimate(embedding, training, comparison, work.writing * speed.step)

    def watch_embedding(self, reporter: Reporter) -> Reporter:
        """Shows the progress of embedding.

        Raises `OverTime` once the speed of the images shows that the plan cannot end in time.
        """
        members = [name for name, _ in self._plan.backbone.members]
        expected = self.estimate(self._plan)
        rest = expected.total - expected.embedding
        first, second = dict[int, int](), dict[int, tuple[int, float]]()  # reports on each backbone

        def judge(phase: str, done: int, total: int) -> None:
            if phase != "embedding" or self._is_last or not total:
                return
            at = min(done * len(members) // total, len(members) - 1)
            here, now = done - at * total // len(members), self._limit.clock()
            if here == first.setdefault(at, here):
                return
            images, began = second.setdefault(at, (here, now))
            if here - images < LEAST_IMAGES or now - began < LEAST_SECONDS:
                return
            name, seconds = members[at], (now - began) / (here - images)
            left = (self._missing[name] - (here - first[at])) * seconds
            pace = seconds / self._image[name] if self._image[name] else 1.0
            left += sum(self._missing[other] * self._image[other] * pace for other in members[at + 1 :])
            if not self._fits(left + rest):
                self._image = {other: each * pace for other, each in self._image.items()} | {name: seconds}
                raise OverTime

        return _Watch(reporter, judge)

    def watch_comparison(self, reporter: Reporter, folds: int) -> Reporter:
        """Shows the progress of the comparison of so many folds; raises `OverTime` where it cannot end in time."""
        writing = WRITING_AGAIN * self.estimate(self._plan).writing
        phases: list[str] = []
        reports: list[tuple[int, float]] = []

        def judge(phase: str, done: int, total: int) -> None:
            if not phase.startswith("comparison"):
                return
            if phase not in phases:
                phases.append(phase)
            ahead = folds - len(phases) if ", fold " in phase else 0  # else all are one phase
            left = 0.0
            if done or reports:  # from the first step on: before it, processes load torch
                reports.append(((len(phases) - 1) * total + done, self._limit.clock()))
                made, seconds = (end - begin for begin, end in zip(reports[0], reports[-1], strict=True))
                if made >= LEAST_STEPS and seconds >= LEAST_SECONDS:
                    left = (total - done + ahead * total) * seconds / made
            if not self._fits(left + writing):
                raise OverTime

        return _Watch(reporter, judge)

    def _first_that_fits(self, plans: Sequence[RunPlan]) -> RunPlan | None:
        left = self._limit.left
        return next((plan for plan in plans if MARGIN * self.estimate(plan).total <= left), None)

    def _quickest(self, plans: Sequence[RunPlan]) -> RunPlan:
        return min(plans, key=lambda plan: self.estimate(plan).total)

    def _fits(self, seconds: float) -> bool:
        return seconds <= self._limit.left + TOLERANCE * self._limit.seconds

    def _needed(self, plan: RunPlan) -> float:
        """The limit with which a plan would be taken."""
        return self._limit.seconds - self._limit.left + MARGIN * self.estimate(plan).total

    def _take(self, plan: RunPlan, why: str) -> RunSetup:
        """The run by a plan, which is said with what it takes, what more time would buy, and how to repeat it."""
        is_listed = plan in self._plans
        self._place = self._plans.index(plan) if is_listed else self._place
        self._plan, expected, say = plan, self.estimate(plan), self._reporter.say
        shares = {"embedding": expected.embedding, "training": expected.training, "comparing": expected.comparison}
        said = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in shares.items() if seconds >= 0.5)
        say(f"{why} {plan}. Expected: {say_time(expected.total)} ({said}, writing {expected.writing:.0f} s).")
        if not self._fits(expected.total):
            say(f"That is longer than what is left of the limit, {say_time(max(0.0, self._limit.left))}.")
        if better := self._plans[: self._place if is_listed else self._place + 1]:
            buys = [f"{each}, from {_minutes(self._needed(each))} on" for each in (better[-1], better[0])]
            say(f"More time would buy {'; '.join(dict.fromkeys(buys))}.")
        else:
            say("More time would buy nothing: that is the best that is ready here ('qurate backbones' lists others).")
        say(f"To repeat it without a limit: {self._options(plan)}.")
        return plan.apply(self._setup)

    def _options(self, plan: RunPlan) -> str:
        """The options that stand for a plan."""
        config = self._setup.config
        words = [f"--backbone {plan.backbone.name}"] if "backbone" not in self._limit.kept else []
        words += ["--no-compare"] if self._setup.compare and not plan.compare else []
        words += [f"--steps {plan.steps}"] if plan.steps != config.training.steps else []
        words += [f"--rounds {plan.rounds}"] if plan.rounds not in (0, config.selection.rounds) else []
        return " ".join(words) or "the same options but for --minutes"

    def _measure(self) -> None:
        """Count what the cache lacks, and time what was not timed before."""
        members = dict(member for choice in self._choices for member in choice.members)
        absent = {name for name, megabytes in self._megabytes.items() if megabytes}
        for name, weights in members.items():
            if name not in absent and name not in self._frozen:
                self._freeze(name, weights)
            self._missing[name] = len(self._find_missing(name))
        if not self._image:
            known = [name for name in members if name in COSTS]
            if any(self._missing[name] for name in known):
                name = min(
                    known, key=lambda name: (name in absent, not self._missing[name], name == SMALL, COSTS[name])
                )
                if name in absent:
                    self._freeze(name, members[name])
                unit = self._time_embedding(name) / COSTS[name]
                self._image = {name: unit * COSTS[name] for name in known}
            self._image |= {name: self._time_embedding(name) for name in members if name not in COSTS}
        self._image = dict.fromkeys(members, 0.0) | self._image
        for width in map(self._width, self._choices):
            if width not in self._training:
                self._training[width] = self._time_training(width)

    def _freeze(self, name: str, weights: str) -> None:
        """Load a backbone, which downloads it where it is not here."""
        self._frozen[name] = freeze_backbone(name, weights)
        self._widths[name] = self._frozen[name].width
        self._note_download(name)

    def _note_download(self, name: str) -> None:
        """The weights of a backbone are here from now on, whatever the size of its images."""
        model = parse_backbones(name)[0].model
        for other in self._megabytes:
            if parse_backbones(other)[0].model == model:
                self._megabytes[other] = 0

    def _find_missing(self, name: str) -> list[Path]:
        if name not in self._frozen:  # not downloaded yet
            return self._paths
        device = self._setup.config.execution.device
        return find_missing(self._paths, self._frozen[name], cache=self._setup.cache, device=device)

    def _width(self, choice: BackboneChoice) -> int:
        return sum(self._widths[name] for name, _ in choice.members)

    def _time_embedding(self, name: str) -> float:
        """Seconds per image after the first batch; what is embedded stays in the cache."""
        missing = self._find_missing(name)
        paths = (missing or self._paths)[:PROBE_IMAGES]
        reports: list[tuple[int, float]] = []

        def show(done: int, total: int) -> None:
            self._reporter.show("timing the backbone", done, total)
            reports.append((done, self._limit.clock()))

        device, cache = self._setup.config.execution.device, self._setup.cache
        embed_files(paths, self._frozen[name], cache=cache, cached=bool(missing), device=device, on_progress=show)
        self._missing[name] = len(self._find_missing(name))
        begin, end = next((each for each in reports if 0 < each[0] < reports[-1][0]), reports[0]), reports[-1]
        seconds = (end[1] - begin[1]) / max(1, end[0] - begin[0])
        self._reporter.say(f"Measured: {name} embeds {say_rate(1 / max(seconds, 1e-9))} images per second.")
        return seconds

    def _time_training(self, width: int) -> TrainingSpeed:
        """Train for a moment on random embeddings; a round takes longer the more unlabelled images there are."""
        split, rng, setup = self._split, generator(0), self._setup

        def draw(count: int) -> torch.Tensor:
            return torch.randn(count, width, generator=rng)

        source, unlabeled = (min(len(part), PROBE_ROWS) for part in (split.source, split.target_unlabeled))
        chosen = torch.linspace(0, len(split.source) - 1, source).long()
        labels = split.target_labeled.labels
        sample = Split(
            split.classes,
            Labeled(draw(source), split.source.labels[chosen]),
            Labeled(draw(len(labels)), labels),
            Unlabeled(draw(unlabeled)),
        )
        training = replace(setup.config.training, steps=PROBE_STEPS)
        selection = replace(setup.config.selection, rounds=1, round_steps=PROBE_STEPS)
        config = replace(setup.config, training=training, selection=selection)
        baseline = F.log_softmax(torch.randn(unlabeled, split.n_classes, generator=rng), dim=1)
        watch = _Stopwatch(self._reporter, self._limit.clock)
        fit(sample, config, baseline=baseline, callbacks=[watch])
        found = watch.speed(len(split.target_unlabeled) / unlabeled)
        rate = say_rate(1 / max(found.step, 1e-9))
        self._reporter.say(f"Measured: {rate} training steps per second on embeddings {width} wide.")
        return found


class _Stopwatch(Callback):
    """Times the steps of line 1, and of a round what it does beside them."""

    def __init__(self, reporter: Reporter, clock: Clock) -> None:
        self._reporter, self._clock = reporter, clock
        self._steps: list[float] = []
        self._round = self._beside = 0.0

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Note when it ended."""
        self._reporter.show("timing the training", step, PROBE_STEPS)
        self._steps.append(self._clock())

    def on_round_start(self, number: int) -> None:
        """Note when it began."""
        self._round = self._clock()

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Note when it ended."""
        self._beside = self._clock() - self._round

    def speed(self, times: float) -> TrainingSpeed:
        """What was measured; that many times as many samples are labelled in a round."""
        steps = self._steps[:PROBE_STEPS]
        step = (steps[-1] - steps[len(steps) // 4]) / (len(steps) - 1 - len(steps) // 4)  # the first are slower
        return TrainingSpeed(step, max(0.0, self._beside - PROBE_STEPS * step) * times)


class _Watch:
    """Passes on what is said and shown, and judges what is shown."""

    def __init__(self, reporter: Reporter, judge: Callable[[str, int, int], None]) -> None:
        self._reporter, self._judge = reporter, judge

    def say(self, line: str) -> None:
        """A sentence."""
        self._reporter.say(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        """How far a phase is."""
        self._reporter.show(phase, done, total, later=later)
        self._judge(phase, done, total)


def _minutes(seconds: float) -> str:
    """'3 minutes', '0.5 minutes', rounded up."""
    number = math.ceil(seconds / 6 - 1e-6) / 10
    return f"{number:g} minute{'' if number == 1 else 's'}"
