from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.typing import NDArray
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from qurate.data.domains import DataWarning
from qurate.data.samples import DataError
from qurate.errors import ConfigError
from qurate.estimator import SSDAClassifier

QUICK: dict[str, Any] = {"selector": "balanced", "steps": 60, "rounds": 2, "round_steps": 20, "features": 16}
BARE = QUICK | {"selector": "none"}
EXPECTED_FAILURES = {
    "check_classifiers_classes": (
        "it has a class named -1, which here marks a row without label; scikit-learn excepts its own semi-supervised "
        "classifiers by name, and the test below runs the check under such a name"
    )
}


def _expected_failures(estimator: SSDAClassifier) -> dict[str, str]:
    return EXPECTED_FAILURES


NO_DOMAINS = pytest.mark.filterwarnings("ignore:SSDAClassifier.fit. sample_domain is not given")


@NO_DOMAINS  # scikit-learn's labels of -1 mean no label here
@parametrize_with_checks([SSDAClassifier(**QUICK)], expected_failed_checks=_expected_failures)  # type: ignore[untyped-decorator]
def test_scikit_learns_contract(estimator: SSDAClassifier, check: Any) -> None:
    check(estimator)


@NO_DOMAINS
def test_the_check_of_classes_passes_as_for_scikit_learns_own_semi_supervised_ones() -> None:
    check_classifiers_classes("SelfTrainingClassifier", SSDAClassifier(**QUICK))


def domains(
    n: int = 60, shots: int = 2, spread: float = 0.25
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Three classes in the plane; the target's are turned by 40 degrees.

    Returns:
        X, true labels, y with -1 for all but `shots` per class of the target, and domains.
    """
    rng = np.random.default_rng(0)
    true = np.tile(np.arange(3), 2 * n // 3)
    target = np.arange(2 * n) >= n
    angles = true * 2 * np.pi / 3 + target * np.deg2rad(40) + rng.normal(0, spread, 2 * n)
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.uniform(0.8, 1.2, (2 * n, 1))
    y = np.where(target & (np.arange(2 * n) >= n + 3 * shots), -1, true)
    return features, true, y, np.where(target, -2, 1)


@pytest.mark.parametrize(("method", "selector"), [("tml", "dqn"), ("mme", "balanced"), ("source_target", "none")])
def test_it_learns_the_target(method: str, selector: str) -> None:
    features, true, y, sample_domain = domains()
    model = SSDAClassifier(method, selector, steps=200, rounds=1, features=32).fit(features, y, sample_domain)
    hidden = y == -1
    assert model.score(features[hidden], true[hidden]) > 0.9


@pytest.mark.parametrize(("row", "pair"), [("TML_SPL", ("tml", "confidence")), ("MME + balanced", ("mme", "balanced"))])
def test_a_row_of_the_tables_names_method_and_selector(row: str, pair: tuple[str, str]) -> None:
    features, _, y, sample_domain = domains()
    settings: dict[str, Any] = {"steps": 20, "rounds": 1, "round_steps": 5, "features": 8}
    named = SSDAClassifier(row, **settings).fit(features, y, sample_domain)
    spelled = SSDAClassifier(*pair, **settings).fit(features, y, sample_domain)
    assert (named.predict_proba(features) == spelled.predict_proba(features)).all()
    assert (named.transduction_ == spelled.transduction_).all()


def test_trusted_pseudo_labels_are_told_and_given_labels_kept() -> None:
    features, true, y, sample_domain = domains()
    model = SSDAClassifier(**QUICK).fit(features, y, sample_domain)
    filled = model.transduction_
    assert (filled[y != -1] == y[y != -1]).all()
    trusted = (y == -1) & (filled != -1)
    assert trusted.sum() > 10
    assert (filled[trusted] == true[trusted]).mean() > 0.8
    assert "2 rounds" in model.stopped_


def test_the_same_seed_gives_the_same_model_and_the_given_arrays_stay() -> None:
    features, _, y, sample_domain = domains()
    copies = features.copy(), y.copy(), sample_domain.copy()
    first, second = (SSDAClassifier(**QUICK).fit(features, y, sample_domain) for _ in range(2))
    other = SSDAClassifier(**QUICK, random_state=np.int64(1)).fit(features, y, sample_domain)
    assert np.array_equal(first.predict_proba(features), second.predict_proba(features))
    assert not np.array_equal(first.predict_proba(features), other.predict_proba(features))
    assert all(np.array_equal(a, b) for a, b in zip(copies, (features, y, sample_domain), strict=True))


@pytest.mark.parametrize("mark", ["", None])
def test_strings_are_labels_too(mark: str | None) -> None:
    features, true, y, sample_domain = domains()
    words = np.array(["cat", "dog", "elk"], dtype=object)
    named = np.where(y == -1, mark, words[y])
    model = SSDAClassifier(**QUICK).fit(features, named, sample_domain)
    assert model.classes_.tolist() == ["cat", "dog", "elk"]
    assert model.score(features[y == -1], words[true][y == -1]) > 0.8
    assert model.transduction_[y != -1].tolist() == named[y != -1].tolist()
    found = model.transduction_[y == -1]
    assert set(found) == {"cat", "dog", "elk", mark}  # some pseudo-labels are trusted, some not


def test_labels_need_not_start_at_zero() -> None:
    features, _, y, sample_domain = domains()
    numbers = np.array([7, 40, 1000])
    model = SSDAClassifier(**QUICK).fit(features, np.where(y == -1, -1, numbers[y]), sample_domain)
    assert model.classes_.tolist() == [7, 40, 1000]
    assert set(model.predict(features)) == {7, 40, 1000}


def test_without_domains_unlabelled_rows_are_the_target() -> None:
    features, _, y, _ = domains(shots=0)
    with pytest.warns(DataWarning, match="so all 60 labelled rows count as source. Pass it"):
        implied = SSDAClassifier(**QUICK).fit(features, y)
    said = SSDAClassifier(**QUICK).fit(features, y, np.where(y == -1, -1, 0))
    assert np.array_equal(implied.predict_proba(features), said.predict_proba(features))


def test_a_missing_part_is_stood_in_for() -> None:
    features, true, y, sample_domain = domains()
    target = sample_domain < 0
    only_target = SSDAClassifier(**QUICK).fit(features[target], y[target], sample_domain[target])
    assert only_target.score(features[target], true[target]) > 0.8
    all_labelled = SSDAClassifier("mme", **QUICK).fit(features, true, sample_domain)
    supervised = SSDAClassifier("source_target", **BARE).fit(features, true, sample_domain)
    assert np.array_equal(all_labelled.predict_proba(features), supervised.predict_proba(features))
    assert "no selector" in all_labelled.stopped_


def test_domains_are_passed_on_and_rows_without_label_do_not_count() -> None:
    features, true, y, sample_domain = domains()
    model = SSDAClassifier("mme", **BARE).fit(features, y, sample_domain)
    right = model.predict(features) == true
    assert model.score(features, y) == right[y != -1].mean()
    weights = np.arange(len(y))
    assert model.score(features, y, weights) == pytest.approx(np.average(right[y != -1], weights=weights[y != -1]))
    with pytest.raises(DataError, match=r"SSDAClassifier.score: y must have labelled rows, got none"):
        model.score(features[y == -1], y[y == -1])
    folds = PredefinedSplit(np.where(y == -1, 0, np.arange(len(y)) % 2))  # unlabelled rows are held out too
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), SSDAClassifier("mme", **BARE))
        scores = cross_val_score(pipeline, features, y, cv=folds, params={"sample_domain": sample_domain})
        search = GridSearchCV(pipeline, {"ssdaclassifier__learning_rate": [0.01]}, cv=folds)
        search.fit(features, y, sample_domain=sample_domain)
    assert search.cv_results_["mean_test_score"] == pytest.approx(scores.mean())
    assert scores.min() > 0.6, "unlabelled rows are not counted as wrong"


def test_a_handful_of_rows_is_enough() -> None:
    features, _, y, sample_domain = domains()
    few = np.r_[:6, 60:68]  # two unlabelled rows
    model = SSDAClassifier(**QUICK | {"selector": "dqn"}).fit(features[few], y[few], sample_domain[few])
    assert model.predict_proba(features).shape == (120, 3)


def test_calibrated_probabilities_are_those_of_the_combined_model() -> None:
    features, true, y, sample_domain = domains(240, shots=6, spread=0.7)
    strange = np.random.default_rng(1).normal(0, 0.05, (60, 2))  # of no class: in the middle
    rows, hidden = np.r_[features, strange], np.r_[y == -1, np.zeros(60, bool)]
    given = np.r_[y, np.full(60, -1)], np.r_[sample_domain, np.full(60, -2)]
    plain, model = (SSDAClassifier(**QUICK, calibrate=each).fit(rows, *given) for each in (False, True))
    assert model.model_.baseline is not None
    assert model.model_.calibration.images == 18
    assert model.model_.novelty is not None
    found, before = model.predict_proba(rows), plain.predict_proba(rows)
    assert found.sum(axis=1) == pytest.approx(1)
    assert (found.argmax(axis=1)[hidden] == true[y == -1]).mean() > 0.7
    assert log_loss(true[y == -1], found[hidden]) < log_loss(true[y == -1], before[hidden])
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(rows), found)


@pytest.mark.parametrize("missing", ["source", "labels of the target"])
def test_what_cannot_be_calibrated_is_said(missing: str) -> None:
    features, _, y, sample_domain = domains()
    kept = sample_domain < 0 if missing == "source" else (sample_domain > 0) | (y == -1)
    with pytest.warns(DataWarning, match="probabilities are not calibrated"):
        model = SSDAClassifier(**BARE, calibrate=True).fit(features[kept], y[kept], sample_domain[kept])
    assert model.model_.novelty is None
    assert model.predict_proba(features).shape == (120, 3)


def test_it_lives_among_scikit_learns_tools() -> None:
    features, true, y, sample_domain = domains()
    frame = pd.DataFrame(features, columns=["a", "b"])
    with sklearn.config_context(enable_metadata_routing=True):
        model = SSDAClassifier("mme", **BARE)
        pipeline = make_pipeline(StandardScaler(), model).fit(frame, y, sample_domain=sample_domain)
    assert pipeline.score(frame[y == -1], true[y == -1]) > 0.8
    assert np.array_equal(pickle.loads(pickle.dumps(pipeline)).predict_proba(frame), pipeline.predict_proba(frame))
    labelled_target = np.where((sample_domain < 0) & (y != -1), np.arange(len(y)) % 2, -1)
    rates = {"learning_rate": [1e-9, 0.01]}  # with the first nothing is learned
    search = GridSearchCV(SSDAClassifier("mme", **BARE), rates, cv=PredefinedSplit(labelled_target))
    search.fit(features, y, sample_domain=sample_domain)
    idle, trained = search.cv_results_["mean_test_score"]
    assert idle < trained
    assert search.best_params_ == {"learning_rate": 0.01}


@pytest.mark.parametrize("selector", ["dqn", "balanced", "quality"])
def test_one_unlabelled_row_is_enough(selector: str) -> None:
    features, _, y, sample_domain = domains()
    few = np.r_[:6, 60:67]
    model = SSDAClassifier(**QUICK | {"selector": selector}).fit(features[few], y[few], sample_domain[few])
    assert (y[few] == -1).sum() == 1
    assert np.isfinite(model.predict_proba(features)).all()


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        (lambda y: np.where(y == -1, -2, y), "got -2 in 54 rows"),
        (lambda y: np.where(y == -1, "-1", y.astype(str)), "got '-1' in 54 rows"),
        (lambda y: np.where(y == -1, "-1.0", y.astype(str)), "got '-1.0' in 54 rows"),
        (lambda y: np.where(y == 0, -3.0, y), "got -3.0 in"),
    ],
)
def test_what_only_looks_like_no_label_is_refused(strange: Callable[[NDArray[Any]], NDArray[Any]], said: str) -> None:
    features, _, y, sample_domain = domains()
    with pytest.raises(DataError, match=f"must not be negative.*{said}.*A row without label has the number -1"):
        SSDAClassifier(**QUICK).fit(features, strange(y), sample_domain)


def test_names_with_a_minus_are_classes() -> None:
    features, _, y, sample_domain = domains()
    names = np.array(["-a", "b-1", "- c", ""])[y]
    model = SSDAClassifier(**BARE).fit(features, names, sample_domain)
    assert model.classes_.tolist() == ["- c", "-a", "b-1"]


def test_errors_say_what_to_do() -> None:
    features, _, y, sample_domain = domains()
    with pytest.raises(ValueError, match="at least two classes, got 1 class"):
        SSDAClassifier(**QUICK).fit(features, np.where(y == 0, 0, -1), sample_domain)
    with pytest.raises(ValueError, match=r"unlabelled rows must be of the target .* but 60 are of the source"):
        SSDAClassifier(**QUICK).fit(features, np.where(sample_domain > 0, -1, y), sample_domain)
    with pytest.raises(ValueError, match="selector must be one of none"):
        SSDAClassifier(**QUICK | {"selector": "luck"}).fit(features, y, sample_domain)
    with pytest.raises(ValueError, match="preset must be one of qurate, paper, got 'luck'"):
        SSDAClassifier(preset="luck").fit(features, y, sample_domain)  # type: ignore[arg-type]  # the wrong word
    with pytest.raises(ValueError, match="method must be one of source_target"):
        SSDAClassifier("luck", **QUICK).fit(features, y, sample_domain)
    with pytest.raises(ConfigError, match=r"bottleneck must be one of 'none', 'linear', 'normalized', got 'foo'"):
        SSDAClassifier(**QUICK | {"bottleneck": "foo"}).fit(features, y, sample_domain)
    for domain in (np.full(len(y), np.nan), np.full(len(y), "target")):
        with pytest.raises(DataError, match="sample_domain must be finite numbers"):
            SSDAClassifier(**QUICK).fit(features, y, domain)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SSDAClassifier(**QUICK).fit(features, y, sample_domain[:5])


def test_each_source_number_is_a_domain_with_a_weight() -> None:
    features, _, y, sample_domain = domains()
    source = np.flatnonzero(sample_domain >= 0)
    several = sample_domain.copy()
    several[source[: len(source) // 4]] = 7
    swapped = y.copy()
    of_bad = source[: len(source) // 4]
    swapped[of_bad] = np.roll(np.unique(y[y != -1]), 1)[np.searchsorted(np.unique(y[y != -1]), y[of_bad])]
    one = SSDAClassifier("mme", **BARE).fit(features, y, sample_domain)
    assert list(one.source_weights_.values()) == [1.0]
    images = SSDAClassifier("mme", **BARE).fit(features, y, several)
    assert images.source_weights_[7] == pytest.approx(len(of_bad) / len(source))
    assert np.array_equal(images.predict_proba(features), one.predict_proba(features)), "joined"
    learned = SSDAClassifier("mme", **BARE, source_weights="learned").fit(features, swapped, several)
    assert learned.source_weights_[7] < 0.1, "its labels contradict the target's"
    first = int(sample_domain[source[0]])
    given = SSDAClassifier("mme", **BARE, source_weights={first: 1.0, 7: 3.0}).fit(features, y, several)
    assert given.source_weights_ == {first: 0.25, 7: 0.75}
    assert not np.array_equal(given.predict_proba(features), one.predict_proba(features))
    refused: list[Any] = [{first: 1.0, 7: 0.0}, "best", None, np.array([1.0, 2.0])]
    for wrong in refused:
        for of_rows in (several, None):
            with pytest.raises(ConfigError, match="source_weights must be 'learned', 'images' or a table"):
                SSDAClassifier("mme", **BARE, source_weights=wrong).fit(features, y, of_rows)
    with pytest.raises(ConfigError, match="source_weights must have a number for each source domain"):
        SSDAClassifier("mme", **BARE, source_weights={first: 1.0}).fit(features, y, several)
