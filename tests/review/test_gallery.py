"""The columns, neighbours, near-duplicates and map of the tab Images, without a server."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.review.asked import answer, make_app
from tests.review.test_session import K, N, make_session
from torch.nn import functional as F

from qurate.active.answers import AnswerLog
from qurate.active.pool import Pool
from qurate.errors import DataError
from qurate.review import gallery
from qurate.review.gallery import Gallery, PictureCache
from qurate.review.session import CHOICES, QueryOptions, Session
from qurate.runs.suggestions import Inquiry


def make_gallery(folder: Path, features: torch.Tensor, examples: torch.Tensor | None = None) -> Gallery:
    """Of images `photos/0.png` and so on with these embeddings."""
    count = len(features)
    probabilities = torch.randn(count, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    inquiry = Inquiry(
        tuple(f"photos/{i}.png" for i in range(count)), ("a", "b", "c"), Pool(features, probabilities), {}
    )
    session = Session(inquiry, AnswerLog(folder / "labels.csv"), QueryOptions(1, "margin", 0.0, 0))
    return Gallery(session, examples, () if examples is None else range(5, 5 + len(examples)))


def groups_of(count: int, per_group: int, noise: float) -> torch.Tensor:
    """Embeddings of groups of like images, one group after another."""
    rng = torch.Generator().manual_seed(1)
    middles = torch.randn(math.ceil(count / per_group), 16, generator=rng).repeat_interleave(per_group, dim=0)[:count]
    return middles + noise * torch.randn(count, 16, generator=rng)


def test_the_columns_say_what_the_model_says_and_are_json(tmp_path: Path) -> None:
    known = torch.linspace(0, 1, N)
    known[3] = math.nan
    session = make_session(tmp_path, known=known)
    session.inquiry = replace(session.inquiry, flagged=2, learned={"5.png": "label", "gone.png": "none"})
    rows = json.loads(json.dumps(Gallery(session).rows(), allow_nan=False))
    assert (rows["folder"], rows["file"][:2]) == ("", ["0.png", "1.png"])
    assert all(len(rows[name]) == N for name in ("file", "label", "probability", "known", "pseudo"))
    assert rows["label"] == session.inquiry.predicted
    assert rows["known"][3] is None
    assert [label >= 0 for label in rows["pseudo"]] == [i < 20 for i in range(N)]
    assert (rows["flagged"], rows["learned"]) == ([N - 2, N - 1], [5])


@pytest.mark.parametrize(
    ("files", "folder"),
    [
        (["a/bc/1.png", "a/bd/2.png"], "a/"),
        (["abc1.png", "abc2.png"], ""),
        (["/x/1.png"], "/x/"),
        (["C:\\x\\1.png", "C:\\x\\2.png"], "C:\\x\\"),
        (["1.png", "/x/2.png"], ""),
    ],
)
def test_the_common_folder_is_whole(files: list[str], folder: str) -> None:
    assert gallery._common_folder(files) == folder


def test_answers_are_given_for_many_images_at_once_and_taken_back_as_one(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    shown = Gallery(session)
    act = session.answer([{"images": [3, 1], "answer": "label", "label": 2}, {"images": [7], "answer": "none"}])
    assert shown.answers() == {"answers": [[3, "label", "c"], [1, "label", "c"], [7, "none", ""]]}
    assert session.log.undo(act)
    assert shown.answers() == {"answers": []}
    for wrong in ([3, N], [3, True], [3, "1"], [[1]], []):
        with pytest.raises(DataError):
            session.answer([{"images": wrong, "answer": "none"}])
    assert shown.answers() == {"answers": []}


def test_an_image_comes_with_its_likeliest_classes(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    choices = Gallery(session).likeness(4)["choices"]
    shares = [choice["probability"] for choice in choices]
    assert len(shares) == CHOICES < K
    assert shares == sorted(shares, reverse=True)
    assert choices[0]["label"] == session.inquiry.predicted[4]
    pool = replace(session.inquiry.pool, probabilities=session.inquiry.pool.probabilities[:, :10])
    session.inquiry = replace(session.inquiry, pool=pool, classes=session.inquiry.classes[:10])
    choices = Gallery(session).likeness(4)["choices"]
    assert [choice["label"] for choice in choices] == list(range(10)), "a key always means the same class"


def test_nearest_images_are_those_of_largest_cosine_by_a_plain_loop(tmp_path: Path) -> None:
    features, examples = groups_of(30, 5, 0.5), torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    shown = make_gallery(tmp_path, features, examples)
    shown._session.answer([{"images": [2, 28], "answer": "label", "label": 1}, {"image": 9, "answer": "none"}])

    def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
        return float(one @ other / (one.norm() * other.norm()))

    for image in (2, 11):
        found = shown.likeness(image)
        by_hand = sorted((i for i in range(30) if i != image), key=lambda i: -cosine(features[i], features[image]))
        assert [one["image"] for one in found["alike"]] == by_hand[: gallery.ALIKE]
        rows = {("example", 5 + i): cosine(examples[i], features[image]) for i in range(4)}
        rows |= {("image", i): cosine(features[i], features[image]) for i in (2, 28) if i != image}
        labeled = [next((key, one[key]) for key in ("example", "image") if key in one) for one in found["labeled"]]
        assert labeled == sorted(rows, key=lambda key: -rows[key])
        assert [one["cosine"] for one in found["labeled"]] == pytest.approx(sorted(rows.values(), reverse=True))
        assert all(one["label"] == "b" for one in found["labeled"] if "image" in one)


@pytest.mark.parametrize("most", [50_000, 25])
def test_near_duplicates_are_found_once_the_most_alike_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also where there are so many images that only those of near clusters are compared."""
    monkeypatch.setattr("qurate.neighbors.MOST_EXACT", most)
    monkeypatch.setattr("qurate.neighbors.CLUSTER_ROWS", 2)
    features = groups_of(60, 3, 0.02)
    found = make_gallery(tmp_path, features).duplicates()
    pairs = list(zip(found["first"], found["second"], strict=True))
    units = F.normalize(features)
    assert len(set(pairs)) == len(pairs)
    assert all(i < j for i, j in pairs)
    assert found["cosine"] == sorted(found["cosine"], reverse=True)
    assert found["cosine"] == pytest.approx([float(units[i] @ units[j]) for i, j in pairs], abs=1e-4)
    wanted = {(i, j) for i in range(60) for j in range(i) if float(units[i] @ units[j]) >= gallery.LEAST_COSINE}
    wanted = {(j, i) for i, j in wanted}
    assert len(wanted) >= 60
    assert len(wanted - set(pairs)) <= (0 if most == 50_000 else 6)  # a group may be cut where a cluster ends


def test_like_images_lie_together_on_the_map_also_those_that_are_no_anchors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "MOST_ANCHORS", 60)
    found = make_gallery(tmp_path, groups_of(120, 30, 0.1)).map()
    places = np.stack([found["x"], found["y"]], axis=1)
    assert places.shape == (120, 2)
    assert places.min() >= 0
    assert places.max() <= 1
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (distances.argmin(axis=1) // 30 == np.arange(120) // 30).mean() > 0.95


@pytest.mark.parametrize("count", [1, 2, 40])
def test_few_or_equal_images_have_neighbours_a_map_and_duplicates(tmp_path: Path, count: int) -> None:
    shown = make_gallery(tmp_path, torch.ones(count, 4))
    assert len(shown.map()["x"]) == count
    assert all(math.isfinite(value) for value in shown.map()["x"])
    assert len(shown.likeness(0)["alike"]) == min(count - 1, gallery.ALIKE)
    assert bool(shown.duplicates()["first"]) == (count > 1)


def test_flagged_images_are_shown_and_can_be_answered_but_nobody_is_asked_about_them(tmp_path: Path) -> None:
    plain = make_session(tmp_path, count=N)
    flagged = Session(replace(plain.inquiry, flagged=6), plain.log, plain.options)
    assert {question.image for question in flagged.questions} == set(range(N - 6))
    assert len(flagged._random_order) == N - 6
    flagged.answer([{"image": N - 1, "answer": "label", "label": 0}])
    assert flagged.summary()["answered"] == 1


def test_the_cache_of_pictures_is_bounded_and_forgets_what_was_not_used() -> None:
    cache, made = PictureCache(100), []

    def get(key: int, size: int = 30) -> bytes:
        def make() -> bytes:
            made.append(key)
            return bytes([key]) * size

        return cache.get(key, make)

    for key in (1, 2, 3, 1, 4, 1, 2):
        assert get(key) == bytes([key]) * 30
    assert made == [1, 2, 3, 4, 2]  # 2 was forgotten for 4, and 1 was used since
    assert cache._bytes <= 100
    assert len(get(9, 1000)) == 1000
    assert cache._bytes == 0


def test_the_server_answers_in_compressed_json_and_refuses_strange_numbers(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    def read(path: str) -> dict[str, Any]:
        status, body = answer(app, path=path)
        assert status == 200
        found: dict[str, Any] = json.loads(gzip.decompress(body))
        return found

    assert len(read("rows")["file"]) == N
    assert "trusted" not in read("rows"), "the page takes that for the classes of pseudo-labels"
    assert read("answered") == {"answers": []}
    assert len(read(f"likeness?image={N - 1}")["alike"]) == gallery.ALIKE
    assert len(read("map")["x"]) == N
    assert read("duplicates")["least"] == gallery.LEAST_COSINE
    for strange in (str(N), "-1", "1.0", "٣", "", "9" * 5000):
        assert answer(app, path=f"likeness?image={strange}")[0] == 400
    many = json.dumps({"answers": [{"images": list(range(N)), "answer": "none"}]}).encode()
    assert answer(app, "POST", "answers", many)[0] == 200
    assert len(read("answered")["answers"]) == N
