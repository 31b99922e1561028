"""Several sources: how often each is drawn from, and which explains the labelled target."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from tests.own_images import make_folders, paint
from torch import Tensor

from qurate.data.batches import draw_batches, draw_source, draw_weighted
from qurate.data.checks import check_data
from qurate.data.list_files import list_sources
from qurate.data.listing import describe_sources, join_listings
from qurate.data.own_images import read_parts
from qurate.data.samples import DataError, Labeled
from qurate.data.sources import EM_STEPS, LEAST, SCALE, choose_weights, learn_weights, weigh_domains, weigh_sources
from qurate.runtime.randomness import generator


def test_samples_are_drawn_in_proportion_to_their_weights() -> None:
    weights = torch.tensor([1.0, 2.0, 5.0, 0.5])
    rows = draw_weighted(weights, 7, 30, generator(3))
    assert rows.shape == (30, 7)
    wanted = 210 * weights / weights.sum()
    counts = torch.bincount(rows.flatten(), minlength=4)
    assert (counts >= wanted.floor()).all()
    assert (counts <= wanted.ceil()).all()
    assert torch.equal(rows, draw_weighted(weights, 7, 30, generator(3)))
    assert not torch.equal(rows, draw_weighted(weights, 7, 30, generator(4)))


def test_equal_weights_are_whole_passes_and_no_weights_draw_as_ever() -> None:
    counts = torch.bincount(draw_weighted(torch.full((10,), 0.3), 5, 9, generator(0)).flatten(), minlength=10)
    assert set(counts.tolist()) == {4, 5}
    plain = Labeled(torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64))
    assert torch.equal(draw_source(plain, 5, 9, generator(0)), draw_batches(10, 5, 9, generator(0)))


@pytest.mark.parametrize("weights", [torch.ones(2), torch.tensor([1.0, 0.0, 1.0]), torch.ones(3, dtype=torch.int64)])
def test_weights_are_positive_and_one_for_each(weights: Tensor) -> None:
    with pytest.raises(DataError, match=r"weights must be a tensor \(3,\) of positive"):
        Labeled(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), weights)


def _clusters(spread: float, seed: int, noise: float = 0.2) -> Labeled:
    """Three classes on three axes, turned away from these by some noise of the domain."""
    rng = torch.Generator().manual_seed(seed)
    axes = torch.eye(6)[:3] + spread * torch.randn(3, 6, generator=rng)
    labels = torch.arange(30) % 3
    return Labeled(axes[labels] + noise * torch.randn(30, 6, generator=rng), labels)


def _joined(*parts: Labeled) -> tuple[Labeled, Tensor]:
    inputs = [part.inputs for part in parts if isinstance(part.inputs, Tensor)]
    whole = Labeled(torch.cat(inputs), torch.cat([part.labels for part in parts]))
    return whole, torch.cat([torch.full((len(part),), i) for i, part in enumerate(parts)])


def _reference(source: Labeled, domains: Tensor, target: Labeled, n_classes: int) -> list[float]:
    """The same by plain loops."""

    def unit(rows: list[list[float]]) -> list[list[float]]:
        return [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in rows]

    def centered(inputs: Tensor) -> list[list[float]]:
        rows = unit(inputs.double().tolist())
        middle = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        return unit([[value - m for value, m in zip(row, middle, strict=True)] for row in rows])

    table = []
    for number in range(int(domains.max()) + 1):
        chosen = [i for i, domain in enumerate(domains.tolist()) if domain == number]
        rows, labels = centered(source.inputs[chosen]), [int(source.labels[i]) for i in chosen]  # type: ignore[index]
        means = {}
        for k in range(n_classes):
            if members := [row for row, label in zip(rows, labels, strict=True) if label == k]:
                means[k] = unit([[sum(column) for column in zip(*members, strict=True)]])[0]
        chances = []
        for row, label in zip(centered(target.inputs), target.labels.tolist(), strict=True):  # type: ignore[arg-type]
            exps = {k: math.exp(SCALE * sum(a * b for a, b in zip(row, m, strict=True))) for k, m in means.items()}
            chances.append(exps.get(label, 0.0) / sum(exps.values()))
        table.append(chances)
    weights = [1 / len(table)] * len(table)
    for _ in range(EM_STEPS):
        shares = [[w * p for w, p in zip(weights, column, strict=True)] for column in zip(*table, strict=True)]
        shares = [row for row in shares if sum(row) > 0]
        weights = [sum(row[m] / sum(row) for row in shares) / len(shares) for m in range(len(table))]
    weights = [max(weight, LEAST) for weight in weights]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("rows_at_a_time", [7, 2**14])
def test_learned_weights_are_those_of_plain_loops(rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.data.sources._SLICE", rows_at_a_time)
    source, domains = _joined(_clusters(0.4, 1), _clusters(0.8, 2), _clusters(0.2, 3))
    missing = (domains == 2) & (source.labels == 0)  # the last lacks a class
    source, domains = Labeled(source.inputs[~missing], source.labels[~missing]), domains[~missing]  # type: ignore[index]
    target = _clusters(0.3, 4)
    found = learn_weights(source, domains, target, 3)
    assert found.tolist() == pytest.approx(_reference(source, domains, target, 3), abs=1e-9)
    assert float(found.sum()) == pytest.approx(1)


def test_a_source_with_shuffled_labels_gets_the_least_weight_and_the_order_does_not_matter() -> None:
    good, bad, target = _clusters(0.1, 1), _clusters(0.1, 2), _clusters(0.1, 3)
    bad = Labeled(bad.inputs, (bad.labels + 1) % 3)
    first = learn_weights(*_joined(good, bad), target, 3)
    assert first[1] < 0.02 < first[0]
    assert torch.allclose(first.flip(0), learn_weights(*_joined(bad, good), target, 3))
    alike = learn_weights(*_joined(good, good), target, 3)
    assert alike.tolist() == pytest.approx([0.5, 0.5])


def test_a_batch_holds_the_shares_and_weights_by_images_change_nothing() -> None:
    source, domains = _joined(_clusters(0.1, 1), _clusters(0.1, 2))
    source, domains = Labeled(source.inputs[:40], source.labels[:40]), domains[:40]  # type: ignore[index]
    weights, how = choose_weights((1.0, 3.0), source, domains, source, 3)
    assert how == "given"
    weighed = weigh_domains(source, domains, weights)
    drawn = domains[draw_source(weighed, 24, 10, generator(0))]
    assert float(drawn.double().mean()) == pytest.approx(0.75, abs=0.01)
    by_images, how = choose_weights("images", source, domains, source, 3)
    assert by_images.tolist() == [0.75, 0.25]
    assert weigh_domains(source, domains, by_images).weights is None


def _second_source(root: Path) -> Path:
    """Another source, with two of the three classes."""
    for i, (name, color) in enumerate((("blue", (60, 60, 200)), ("green tea", (60, 200, 60)))):
        for j in range(4):
            paint(root / "more" / name / f"{j}.png", color, seed=5000 + 100 * i + j)
    return root / "more"


def test_sources_are_read_as_one_domain_of_all_their_classes(tmp_path: Path) -> None:
    place = make_folders(tmp_path)
    more = _second_source(tmp_path)
    parts = read_parts([more, place["source"]], place["labeled"], place["unlabeled"], cache=tmp_path / "cache")
    assert parts.sources == ("more", "source")
    assert parts.split.classes == ("blue", "green tea", "été"), "the union, in the order in which classes come"
    assert torch.bincount(parts.source_domains).tolist() == [8, 18]
    by_hand = {"more": ["blue"] * 4 + ["green tea"] * 4}
    assert parts.source_labels["more"] == by_hand["more"]
    said = describe_sources(parts.source_labels, parts.split.classes)
    assert said[0] == "Source 'more': 8 images, 4 in each of 2 classes, none of 'été'."
    broken = {next(iter((more / "blue").iterdir())): "broken"}
    assert torch.bincount(parts.without(broken).source_domains).tolist() == [7, 18]
    gone = dict.fromkeys(more.rglob("*.png"), "broken")
    without = parts.without(gone)
    with pytest.raises(DataError, match=r"'more' has no image"):
        weigh_sources(without, without.split, "images")
    alone = read_parts(place["source"], place["labeled"], place["unlabeled"], cache=tmp_path / "cache")
    assert alone.sources == ()
    assert weigh_sources(alone, alone.split, "learned")[1] is alone.split


def test_what_is_no_list_of_sources_is_refused(tmp_path: Path) -> None:
    place = make_folders(tmp_path)
    for wrong, says in (
        ([], "got none"),
        ([place["source"], place["source"] / ".." / "source"], "given twice"),
    ):
        with pytest.raises(DataError, match=says):
            list_sources(wrong)
    listing = list_sources(place["source"])["source"]
    with pytest.raises(DataError, match="in two of the sources"):
        join_listings([listing, listing])


def test_sources_of_one_name_are_named_by_their_place(tmp_path: Path) -> None:
    for shop in ("a", "b"):
        make_folders(tmp_path / shop)
    places = [tmp_path / shop / "source" for shop in ("a", "b")]
    assert list(list_sources(places)) == [str(place) for place in places]


def test_the_check_names_each_source(tmp_path: Path) -> None:
    place = make_folders(tmp_path)
    report = check_data([place["source"], _second_source(tmp_path)], place["labeled"], place["unlabeled"])
    assert report.ok
    assert "Source 'source': 18 images, 6 in each of 3 classes." in report.lines()
    assert "Source 'more': 8 images, 4 in each of 2 classes, none of 'été'." in report.lines()
    shutil.rmtree(tmp_path / "more" / "blue")
    report = check_data([place["source"], tmp_path / "more"], place["labeled"], place["unlabeled"])
    assert "Source 'more': 4 images, all in one class, none of 'blue', 'été'." in report.lines()
    report = check_data([place["source"], place["source"]], place["labeled"], place["unlabeled"])
    assert report.problems == (f"source: '{place['source']}' is given twice. Name each source once.",)
