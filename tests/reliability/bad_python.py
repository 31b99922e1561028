"""Bad inputs to the Python API: what is adapted, fitted, loaded and configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.own_images import BACKBONE
from tests.reliability.damage import every, written
from tests.reliability.rows import BadInput

_PARTS: dict[str, Any] = {"source": "source", "labeled": "labeled", "unlabeled": "unlabeled"}
_QUICK: dict[str, Any] = {
    **{"backbone": BACKBONE, "weights": "w.safetensors", "selector": "balanced", "device": "cpu"},
    **{"steps": 4, "rounds": 1, "compare": False, "progress": False},
}


def _row(name: str, call: Callable[[], object], *says: str, **more: Any) -> BadInput:
    return BadInput(name, call, says, **more)


def _adapt_rows() -> list[BadInput]:
    def adapt(**given: Any) -> Callable[[], object]:
        def call() -> object:
            import qurate

            return qurate.adapt(**{**_PARTS, **_QUICK, **given})

        return call

    bad: dict[str, tuple[Any, ...]] = {
        "source": (None, 5, "", "nope", ["source", 5], ["source", "nope"], [], "a\0b", b"source"),
        "from_model": (5, "", "nope", "a\0b", "run"),
        "labeled": (None, "nope"),
        "unlabeled": (None, "nope", 1.5),
        "method": (None, 5, "tlm", ["tml"]),
        "selector": (5, "best", "oracle"),
        "preset": ("mine", None),
        "backbone": (None, 5, "nope"),
        "weights": (None, 5, ""),
        "train": ("half", None),
        "steps": (0, -1, "many", 1.5, True, float("nan"), 10**20),
        "rounds": (0, "x", 0.5),
        "seed": (-1, "0", None, 1.5, 2**32),
        "out": (5, "note.txt", "source", "", "a\0b"),
        "missing": ("ignore", None),
        "device": ("tpu", None, 0),
        "config": ("run/config.json", {}, 5),
        "cache": (5, "note.txt/c"),
    }
    rows = []
    for argument, values in bad.items():
        for value in values:
            if (argument, value) == ("cache", "note.txt/c"):
                continue
            rows.append(_row(f"qurate.adapt: {argument}={value!r}", adapt(**{argument: value}), argument))
    config_and_words = adapt(config=_config(), steps=7)
    return [
        *rows,
        _row("qurate.adapt: out holds a finished run", adapt(out="run"), "run", "force=True"),
        _row("qurate.adapt: resume and force", adapt(out="begun", resume=True, force=True), "resume", "force"),
        _row("qurate.adapt: force and a missing source", adapt(out="run", force=True, source="nope"), "source", "nope"),
        _row("qurate.adapt: missing weights", adapt(weights="nope.pth"), "nope.pth"),
        _row("qurate.adapt: config beside steps", config_and_words, "config", "steps"),
    ]


def _config(**words: Any) -> Any:
    from qurate.presets import make_config

    return make_config("tml", "none", steps=2, device="cpu", **words)


def _config_rows() -> list[BadInput]:
    import qurate

    bad: dict[str, tuple[Any, ...]] = {
        "method": (None, 5, "tlm", ""),
        "selector": ("best", 5),
        "preset": ("mine", 5),
        "network": ("digits", 5, {}),
        "steps": (0, "x", 1.5, float("inf")),
        "rounds": (0, -1),
        "round_steps": (0, "x"),
        "learning_rate": (0, -1, float("nan"), "fast"),
        "seed": (-1, 2**32, "x", 0.5),
        "device": ("tpu", 5),
    }

    def make(argument: str, value: Any) -> Callable[[], object]:
        return lambda: qurate.make_config(**{argument: value})

    rows = [
        _row(f"make_config: {argument}={value!r}", make(argument, value), argument)
        for argument, values in bad.items()
        for value in values
    ]
    from_file, from_dict = qurate.RunConfig.from_file, qurate.RunConfig.from_dict
    return [
        *rows,
        _row("RunConfig.from_file: nothing there", lambda: from_file("nope.json"), "nope.json"),
        _row("RunConfig.from_file: a folder", lambda: from_file("run"), "run"),
        _row("RunConfig.from_file: None", lambda: from_file(None), "path"),  # type: ignore[arg-type]
        _row("RunConfig.from_file: a number", lambda: from_file(5), "path"),  # type: ignore[arg-type]
        _row("RunConfig.from_file: an empty file", lambda: from_file("c.json"), "c.json", damage=written("c.json", "")),
        _row(
            "RunConfig.from_file: a deep nest",
            lambda: from_file("c.json"),
            "c.json",
            damage=written("c.json", "[" * 100_000),
        ),
        _row(
            "RunConfig.from_file: a deep TOML",
            lambda: from_file("c.toml"),
            "c.toml",
            damage=written("c.toml", "a = " + "[" * 100_000),
        ),
        _row(
            "RunConfig.from_file: a date",
            lambda: from_file("c.toml"),
            "c.toml",
            "seed",
            damage=every(written("c.toml", "seed = 2020-01-01\n")),
        ),
        _row("RunConfig.from_dict: None", lambda: from_dict(None), "RunConfig"),  # type: ignore[arg-type]
        _row("RunConfig.from_dict: a number as key", lambda: from_dict({5: 1}), "5"),  # type: ignore[dict-item]
        _row("RunConfig.from_dict: an unknown key", lambda: from_dict({"sed": 1}), "sed", "seed"),
        _row("RunConfig.from_dict: an old selector", lambda: from_dict({"selection": {"selector": "best"}}), "best"),
        _row("RunConfig: a word as seed", lambda: qurate.RunConfig(seed="x"), "seed"),  # type: ignore[arg-type]
        _row("RunConfig: a word as network", lambda: qurate.RunConfig(network="x"), "network"),  # type: ignore[arg-type]
        _row("NetworkConfig: bottleneck Linear", lambda: qurate.NetworkConfig(bottleneck="Linear"), "bottleneck"),  # type: ignore[arg-type]
        _row("RewardConfig: center neighbours", lambda: qurate.RewardConfig(center="neighbours"), "center"),  # type: ignore[arg-type]
        _row("TrainingConfig: NaN as rate", lambda: qurate.TrainingConfig(learning_rate=float("nan")), "learning_rate"),
        _row("MethodConfig.of: unknown", lambda: qurate.MethodConfig.of("tlm"), "tlm", "tml"),
        _row("MethodConfig.of: a number", lambda: qurate.MethodConfig.of(5), "5"),  # type: ignore[arg-type]
        _row("MethodConfig.of: an unknown number", lambda: qurate.MethodConfig.of("tml", margn=1), "margn", "margin"),
        _row("MethodConfig.of: a margin of 9", lambda: qurate.MethodConfig.of("tml", margin=9), "margin", "9"),
        _row("SelectorConfig.of: unknown", lambda: qurate.SelectorConfig.of("best"), "best"),
        _row("SelectorConfig.of: too sure", lambda: qurate.SelectorConfig.of("confidence", threshold=2), "threshold"),
        _row("QLearningConfig: no hidden layer", lambda: qurate.QLearningConfig(hidden=()), "hidden"),
        _row("EpisodeConfig: no candidates", lambda: qurate.EpisodeConfig(candidates=0), "candidates"),
    ]


def _model_rows() -> list[BadInput]:
    import qurate

    def load(place: Any) -> Callable[[], object]:
        return lambda: qurate.load(place)

    rows = [_row(f"qurate.load: {place!r}", load(place), says) for place, says in _PLACES]
    calls: dict[str, tuple[Callable[[Any], object], tuple[str, ...]]] = {
        "predict(None)": (lambda model: model.predict(None), ("images",)),
        "predict(5)": (lambda model: model.predict(5), ("images",)),
        "predict([])": (lambda model: model.predict([]), ("images",)),
        "predict([5])": (lambda model: model.predict([5]), ("images",)),
        "predict of nothing": (lambda model: model.predict("nope"), ("nope",)),
        "predict of an empty word": (lambda model: model.predict(""), ("images",)),
        "predict of NUL": (lambda model: model.predict("a\0b"), ("images",)),
        "evaluate(None)": (lambda model: model.evaluate(None), ("labeled",)),
        "evaluate of nothing": (lambda model: model.evaluate("nope"), ("labeled", "nope")),
        "export(None)": (lambda model: model.export(None), ("path",)),
        "export to a file that is there": (lambda model: model.export("note.txt"), ("note.txt", "force=True")),
        "save(None)": (lambda model: model.save(None), ("folder",)),
        "save to a file": (lambda model: model.save("note.txt"), ("note.txt",)),
    }
    for what, (call, says) in calls.items():
        rows.append(_row(f"AdaptedModel.{what}", _of_model(call), *says))
    return rows


def _of_model(call: Callable[[Any], object]) -> Callable[[], object]:
    import qurate

    return lambda: call(qurate.load("run"))


_PLACES = (
    *((None, "folder"), (5, "folder"), ("", "folder"), ("nope", "nope"), ("note.txt", "note.txt")),
    *(("begun", "begun"), ("a\0b", "folder"), (["run"], "folder")),
)


def _estimator_rows() -> list[BadInput]:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(40, 4)), np.array([0, 1] * 15 + [-1] * 10)
    domain = np.array([1] * 20 + [-1] * 20)

    def fit(x: Any = rows, y: Any = labels, sample_domain: Any = domain, **given: Any) -> Callable[[], object]:
        def call() -> object:
            from qurate import SSDAClassifier

            return SSDAClassifier(**{"steps": 2, "rounds": 1, "selector": "balanced", **given}).fit(x, y, sample_domain)

        return call

    def after(call: Callable[[Any], object]) -> Callable[[], object]:
        return lambda: call(fit()())

    words = np.array(["a", "b"] * 15 + ["-1"] * 10)
    values, types = (ValueError,), (ValueError, TypeError)
    cases: dict[str, tuple[Callable[[], object], tuple[str, ...], tuple[type[Exception], ...]]] = {
        "y of '-1'": (fit(y=words), ("'-1'",), values),
        "y of -2": (fit(y=np.where(labels == -1, -2, labels)), ("-2",), values),
        "y of one class": (fit(y=np.where(labels == 1, 0, labels)), ("two classes",), values),
        "y without labels": (fit(y=np.full(40, -1)), ("two classes",), values),
        "y of fractions": (fit(y=rng.normal(size=40)), ("label",), values),
        "y too short": (fit(y=labels[:-1]), ("samples",), values),
        "X with NaN": (fit(x=np.where(rows > 2, np.nan, np.nan)), ("NaN",), values),
        "X of words": (fit(x=[["a", "b"]] * 40), (), values),
        "X of one dimension": (fit(x=rows[:, 0]), ("2D",), values),
        "X that is empty": (fit(x=np.zeros((0, 4)), y=[], sample_domain=[]), ("sample",), values),
        "sample_domain too short": (fit(sample_domain=domain[:-1]), ("samples",), values),
        "sample_domain of words": (fit(sample_domain=["s"] * 40), ("sample_domain",), values),
        "sample_domain with NaN": (fit(sample_domain=np.full(40, np.nan)), ("sample_domain",), values),
        "unlabelled source": (fit(sample_domain=np.ones(40)), ("target",), values),
        "bottleneck foo": (fit(bottleneck="foo"), ("bottleneck", "foo"), values),
        "method foo": (fit(method="foo"), ("method", "foo"), values),
        "selector foo": (fit(selector="foo"), ("selector", "foo"), values),
        "preset foo": (fit(preset="foo"), ("preset", "foo"), values),
        "steps 0": (fit(steps=0), ("steps",), values),
        "steps 'x'": (fit(steps="x"), ("steps",), types),
        "features 0": (fit(features=0), ("features",), values),
        "learning_rate -1": (fit(learning_rate=-1), ("learning_rate",), values),
        "random_state -1": (fit(random_state=-1), ("seed",), values),
        "random_state 'x'": (fit(random_state="x"), ("seed",), values),
        "device tpu": (fit(device="tpu"), ("device", "tpu"), values),
        "predict of another width": (after(lambda model: model.predict(rows[:, :3])), ("features",), values),
        "predict with NaN": (after(lambda model: model.predict(rows * np.nan)), ("NaN",), values),
        "predict before fit": (lambda: _unfitted(rows), ("not fitted",), values),
    }
    return [
        _row(f"SSDAClassifier: {what}", call, *says, error=error, works="predict" in what)
        for what, (call, says, error) in cases.items()
    ]


def _unfitted(rows: Any) -> object:
    from qurate import SSDAClassifier

    return SSDAClassifier().predict(rows)


PYTHON_ROWS = (*_adapt_rows(), *_config_rows(), *_model_rows(), *_estimator_rows())
