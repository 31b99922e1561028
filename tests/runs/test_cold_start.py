"""What to label first, before any run, and the run that learns from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.own_images import BACKBONE, save_weights
from tests.runs.written import write_run
from torch import Tensor

import qurate
from qurate.active.pool import Pool
from qurate.data.listing import DataWarning
from qurate.errors import DataError
from qurate.runs.cold_start import predict_by_source
from qurate.runs.result_tables import SUGGESTED


def groups(shift: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Three groups of 20 images each, all moved by the same vector, as another domain is."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(20)
    return torch.eye(3, 8)[labels] + 0.1 * torch.randn(60, 8, generator=rng) + shift, labels


def test_a_shift_of_the_whole_domain_does_not_matter() -> None:
    source, labels = groups(torch.zeros(8), 0)
    target, truth = groups(torch.tensor([0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]), 1)
    probabilities = predict_by_source(source, labels, target, 3)
    assert probabilities.sum(dim=1).tolist() == pytest.approx([1.0] * 60)
    assert (probabilities.argmax(dim=1) == truth).float().mean() > 0.95
    assert torch.equal(predict_by_source(source * 5, labels, target * 2, 3).argmax(dim=1), probabilities.argmax(dim=1))


def test_very_many_target_images_are_predicted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    source, labels = groups(torch.zeros(8), 0)
    target, _ = groups(torch.full((8,), 0.5), 1)
    whole = predict_by_source(source, labels, target, 3)
    for module in ("qurate.runs.cold_start", "qurate.novelty"):
        monkeypatch.setattr(f"{module}.MOST_IN_MEMORY", 7)
    torch.testing.assert_close(predict_by_source(source, labels, target, 3), whole, rtol=0, atol=1e-4)


def test_a_class_without_an_image_in_the_source_has_no_probability() -> None:
    source, labels = groups(torch.zeros(8), 0)
    probabilities = predict_by_source(source, labels + (labels > 0), source, 5)
    assert probabilities.shape == (60, 5)
    assert probabilities[:, [1, 4]].abs().sum() == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cold")
    write_run(folder)
    return folder


def test_the_table_is_that_of_a_run_and_the_images_those_of_the_target(place: Path) -> None:
    words = {"backbone": BACKBONE, "weights": save_weights(place / "w.safetensors"), "cache": place / "cache"}
    table = qurate.suggest(place / "source", place / "unlabeled", 5, random_share=0.2, **words)  # type: ignore[arg-type]  # values of two types
    assert list(table.columns) == SUGGESTED
    assert table["query_strategy"].tolist().count("random") == 1
    assert set(table["query_strategy"]) == {"clusters", "random"}
    assert table["file"].nunique() == 5
    assert all(str(place / "unlabeled") in file for file in table["file"])
    assert not any(table["label"])

    class First:
        def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
            return pool.open[:count]

    own = qurate.suggest(place / "source", place / "unlabeled", 2, query_strategy=First(), **words)  # type: ignore[arg-type]
    assert own["why"].tolist() == ["Chosen by First."] * 2


def test_what_cannot_be_asked_is_refused(place: Path) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'weight'. Did you mean 'weights'"):
        qurate.suggest(place / "source", place / "unlabeled", 2, weight="none")  # type: ignore[call-arg]
    only = next(one for one in sorted((place / "source").iterdir()) if one.is_dir())
    (place / "one.txt").write_text("".join(f"{file} a\n" for file in sorted(only.iterdir())))
    with pytest.raises(DataError, match="source must have at least two classes, got 'a'"):
        qurate.suggest(place / "one.txt", place / "unlabeled", 2)
    first, *others = sorted(only.iterdir())
    (place / "some.csv").write_text(f"path,label\n{first},\n" + "".join(f"{file},a\n" for file in others))
    with pytest.raises(DataError, match=rf"a class for every image, but 1 of {len(others) + 1} have none"):
        qurate.suggest(place / "some.csv", place / "unlabeled", 2)


def test_a_source_of_which_one_class_can_be_read_is_refused(place: Path) -> None:
    words = {"backbone": BACKBONE, "weights": save_weights(place / "w.safetensors"), "cache": place / "cache"}
    only = next(one for one in sorted((place / "source").iterdir()) if one.is_dir())
    (place / "broken.png").write_bytes(b"no image")
    (place / "two.txt").write_text("".join(f"{file} a\n" for file in sorted(only.iterdir())) + "broken.png b\n")
    with pytest.warns(DataWarning, match="cannot be read"), pytest.raises(DataError, match="got 'a'"):
        qurate.suggest(place / "two.txt", place / "unlabeled", 2, **words)  # type: ignore[arg-type]  # of two types
