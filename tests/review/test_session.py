"""Questions, answers and what they imply, without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qurate.active.answers import AnswerLog, estimate_accuracy
from qurate.active.pool import Pool
from qurate.errors import DataError
from qurate.review.session import CHOICES, LabelIssue, QueryOptions, Session
from qurate.runs.continue_from import LEAST_PER_CLASS
from qurate.runs.suggestions import Inquiry

N, K = 40, 12


def make_session(
    folder: Path, count: int = 10, share: float = 0.3, strategy: str = "margin", known: Tensor | None = None
) -> Session:
    rng = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(N, K, generator=rng)).softmax(dim=1)
    trusted = torch.where(torch.arange(N) < 20, probabilities.argmax(dim=1), -1)
    pool = Pool(torch.randn(N, 5, generator=rng), probabilities, trusted)
    files, classes = tuple(f"{i}.png" for i in range(N)), tuple("abcdefghijkl")
    inquiry = Inquiry(files, classes, pool, {}, known=known, border=0.0 if known is None else 0.1)
    return Session(inquiry, AnswerLog(folder / "labels.csv"), QueryOptions(count, strategy, share, 0))


def answer_all(session: Session) -> list[int]:
    seen = []
    while (question := session.next_question("tab")) is not None:
        seen.append(question["image"])
        session.answer([{"image": question["image"], "answer": "label", "label": question["choices"][0]["label"]}])
    return seen


def test_all_questions_come_once_and_more_are_others(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    first = answer_all(session)
    assert first == [question.image for question in session.questions]
    assert len(set(first)) == 10
    assert session.ask_more() == 10
    assert not set(answer_all(session)) & set(first)
    assert session.summary()["answered"] == 20
    while session.ask_more():
        answer_all(session)
    assert session.summary()["answered"] == N


def test_a_question_has_the_likeliest_classes_first(tmp_path: Path) -> None:
    question = make_session(tmp_path).next_question("tab")
    assert question is not None
    shares = [choice["probability"] for choice in question["choices"]]
    assert len(shares) == CHOICES
    assert shares == sorted(shares, reverse=True)


def test_what_was_put_off_comes_last_and_two_tabs_get_different_questions(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    order = [question.image for question in session.questions]
    first, second = session.next_question("one"), session.next_question("two")
    assert first is not None
    assert second is not None
    assert (first["image"], second["image"]) == (order[0], order[1])
    again = session.next_question("one", later=[order[0]])
    assert again is not None
    assert again["image"] == order[2]
    for image in order[1:]:
        session.answer([{"image": image, "answer": "none"}])
    last = session.next_question("two", later=[order[0]])
    assert last is not None
    assert last["image"] == order[0]


def test_a_new_session_goes_on_where_another_was_killed(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    done = [question.image for question in session.questions[:4]]
    session.answer([{"image": image, "answer": "none"} for image in done])
    after = make_session(tmp_path)
    assert after.summary()["answered"] == 4
    assert not set(done) & {question.image for question in after.questions}


def test_rejected_pseudo_labels_are_asked_about_first_and_leave_the_grid(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    label = session.trusted_classes()[0]["label"]
    images = [one["image"] for one in session.trusted_images(label, 50)["images"]]
    given = [{"image": i, "answer": "label", "label": label} for i in images[1:]]
    act = session.answer([{"image": images[0], "answer": "wrong"}, *given])
    assert session.trusted_images(label, 50)["images"] == []
    assert session.trusted_classes()[0]["open"] == 0
    question = session.next_question("tab")
    assert question is not None
    assert question["image"] == images[0]
    assert session.log.undo(act)
    assert len(session.trusted_images(label, 50)["images"]) == len(images)


def test_what_is_called_wrong_is_the_pseudo_label_whatever_the_model_says_now(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    assert session.inquiry.pool.trusted is not None
    said, trusted = session.inquiry.predicted[3], (session.inquiry.predicted[3] + 1) % K
    session.inquiry.pool.trusted[3] = trusted
    session.answer([{"image": 3, "answer": "wrong"}, {"image": 30, "answer": "wrong"}])
    names = session.inquiry.classes
    assert [row.predicted for row in session.log.rows()] == [names[trusted], names[session.inquiry.predicted[30]]]
    question = session.next_question("tab")
    assert question is not None
    assert question["why"] == f"Somebody said that it is not {names[trusted]}. What is it?"
    predicted = {"3.png": names[said], "30.png": names[session.inquiry.predicted[30]]}
    answers = session.log.current()
    assert estimate_accuracy(["30.png"], answers, predicted)[:2] == (1, 0)
    assert estimate_accuracy(["3.png", "30.png"], answers, predicted)[:2] == (0, 0), "nobody spoke of what it says now"


def test_the_random_part_of_the_questions_is_what_the_estimate_counts(tmp_path: Path) -> None:
    session = make_session(tmp_path, count=N, share=0.3)
    honest = [question.image for question in session.questions if question.query_strategy == "random"]
    assert len(honest) == 12
    others = [question.image for question in session.questions if question.query_strategy != "random"]
    session.answer([{"image": image, "answer": "none"} for image in others[:8]])
    assert session.estimate().images == 0, "what a query strategy chose tells nothing"
    for place, image in enumerate(honest):
        predicted = session.inquiry.predicted[image]
        session.answer([{"image": image, "answer": "label", "label": predicted if place % 3 else (predicted + 1) % K}])
    found = session.estimate()
    assert (found.images >= 12, found.right) == (True, 8)


def test_what_the_model_has_learned_from_is_neither_counted_nor_asked_again(tmp_path: Path) -> None:
    session = make_session(tmp_path, count=N, share=1.0)
    order = [question.image for question in session.questions]
    names = [session.inquiry.files[image] for image in order]
    kinds = [("label", session.inquiry.predicted[order[0]]), ("wrong", None), ("none", None)]
    session.answer([{"image": i, "answer": kind, "label": k} for i, (kind, k) in zip(order, kinds, strict=False)])
    assert session.summary()["answered"] == 3
    told = {name: kind for name, (kind, _) in zip(names, kinds, strict=False)}
    after = Session(replace(session.inquiry, learned=told), session.log, session.options)
    assert after.summary()["answered"] == 0
    assert after.estimate().images == 0, "a model is no judge of what it was told"
    asked = {question.image for question in after.questions}
    assert not asked & {order[0], order[2]}
    first = after.next_question("tab")
    assert first is not None
    assert first["image"] == order[1], "nobody has said yet what it is"
    after.answer([{"image": i, "answer": "label", "label": after.inquiry.predicted[i]} for i in (order[1], order[3])])
    assert after.summary()["answered"] == 2
    assert after.estimate().images == 1, "the sample is drawn from what the model was told nothing of"


def test_a_class_that_a_person_adds_is_an_answer_like_any_other(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    act = session.answer([{"image": 0, "answer": "label", "name": "  <b>mug "}])
    session.answer([{"image": i, "answer": "label", "name": "<b>mug"} for i in (1, 2)])
    session.answer([{"image": 3, "answer": "label", "name": "a"}])
    rows = AnswerLog(tmp_path / "labels.csv").rows()
    assert [(row.answer, row.label) for row in rows] == [("label", "<b>mug")] * 3 + [("label", "a")]
    assert session.summary()["added"] == [{"name": "<b>mug", "images": 3}]
    assert session.summary()["needed"] == LEAST_PER_CLASS == 3
    assert session.summary()["answered"] == 4
    assert make_session(tmp_path).added_classes() == {"<b>mug": 3}, "also after a restart"
    assert not {0, 1, 2} & {question.image for question in make_session(tmp_path).questions}
    assert session.log.undo(act)
    assert session.added_classes() == {"<b>mug": 2}


def test_an_image_of_a_new_class_is_of_no_class_for_the_accuracy_of_the_model(tmp_path: Path) -> None:
    session = make_session(tmp_path, count=N, share=1.0)
    first, second = (question.image for question in session.questions[:2])
    session.answer([{"image": first, "answer": "label", "name": "mug"}])
    session.answer([{"image": second, "answer": "label", "label": session.inquiry.predicted[second]}])
    assert session.estimate()[:3] == (1, 1, 1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("A", "is the class 'a' but for upper and lower case"),
        ("MUG", "is the class 'mug' but for upper and lower case"),
        ("two\nlines", "one line of text"),
        ("\x1b[31m", "one line of text"),
        ("turned \u202e around", "one line of text"),
        ("half \ud800", "one line of text"),
        ("é" * 128, "at most 255 bytes, got 256"),
        (" ", "must have a letter"),
        ("None", "the answer about an image of no class"),
        ("../up", "one for a folder"),
        ("a/b", "one for a folder"),
        (7, "the number of a class"),
        (None, "the number of a class"),
    ],
)
def test_a_name_that_no_class_can_have_is_refused_and_nothing_saved(tmp_path: Path, name: object, says: str) -> None:
    session = make_session(tmp_path)
    session.answer([{"image": 0, "answer": "label", "name": "mug"}])
    with pytest.raises(DataError, match=says):
        session.answer([{"image": 1, "answer": "none"}, {"image": 2, "answer": "label", "name": name}])
    assert session.summary()["answered"] == 1


def test_one_question_in_five_is_about_what_is_between_known_and_unknown(tmp_path: Path) -> None:
    known = torch.linspace(0.005, 0.98, N)
    session = make_session(tmp_path, count=20, share=0.2, known=known)
    strategies = [question.query_strategy for question in session.questions]
    assert (strategies.count("border"), strategies.count("random"), len(strategies)) == (4, 4, 20)
    drawn = {question.image for question in session.questions if question.query_strategy == "random"}
    nearest = sorted(set(range(N)) - drawn, key=lambda i: abs(float(known[i]) - 0.1))[:4]
    asked = [question for question in session.questions if question.query_strategy == "border"]
    assert [question.image for question in asked] == nearest
    assert asked[0].why.startswith("It is between what fits your classes and what fits none: ")
    assert max(i for i, strategy in enumerate(strategies) if strategy == "border") > 10, "they are spread"
    session.answer([{"image": question.image, "answer": "none"} for question in session.questions])
    assert {row.asked for row in session.log.rows()} == {"border", "random", "margin"}
    assert session.ask_more() == 20
    assert len({question.image for question in session.questions}) == N


def test_where_nothing_is_flagged_the_worst_are_asked_about_and_without_a_score_nothing(tmp_path: Path) -> None:
    session = make_session(tmp_path / "none", count=20)
    assert "border" not in {question.query_strategy for question in session.questions}
    inquiry = replace(session.inquiry, known=torch.linspace(0.01, 0.99, N).flip(0))
    asked = inquiry.draw(10, "margin", random_share=0.0, seed=0, border_share=0.2)
    found = [question for question in asked if question.query_strategy == "border"]
    assert [question.image for question in found] == [N - 1, N - 2]
    assert found[0].why.startswith("It is among those that fit your classes worst: 1.0 in 100")
    assert {one.query_strategy for one in inquiry.draw(10, "margin", random_share=1.0, seed=0, border_share=0.2)} == {
        "random"
    }


@pytest.mark.parametrize("given", [[], [{"image": N, "answer": "none"}], [{"image": 0, "answer": "label"}]])
def test_nonsense_is_refused(tmp_path: Path, given: list[dict[str, object]]) -> None:
    with pytest.raises(DataError):
        make_session(tmp_path).answer(given)


def test_who_answers_is_kept_and_different_answers_are_listed(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    session.answer([{"image": 3, "answer": "label", "label": 0}], "  Zoë ")
    session.answer([{"image": 3, "answer": "none"}], "")
    assert [row.by for row in session.log.rows()] == ["Zoë", ""]
    assert session.summary()["disagreements"] == [
        {
            "image": 3,
            "file": "3.png",
            "said": [{"by": "Zoë", "label": "a"}, {"by": "", "label": "none"}],
            "counts": "none",
        }
    ]
    session.answer([{"image": 3, "answer": "wrong"}], "Ann")
    assert session.summary()["disagreements"][0]["counts"] == f"not {session.log.current()['3.png'].predicted}"
    for name in ("x" * 61, "two\nlines", "\x1b", 7, None):
        with pytest.raises(DataError, match="name of who answers"):
            session.answer([{"image": 4, "answer": "none"}], name)
    assert session.summary()["answered"] == 1


def test_a_reload_keeps_the_question_until_it_is_answered(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    third = session.questions[2].image
    shown = session.next_question("tab", (), third)
    assert shown is not None
    assert shown["image"] == third
    session.answer([{"image": third, "answer": "none"}])
    after = session.next_question("tab", (), third)
    assert after is not None
    assert after["image"] == session.questions[0].image


def test_few_classes_are_all_offered_and_a_key_keeps_its_meaning(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    pool = replace(session.inquiry.pool, probabilities=session.inquiry.pool.probabilities[:, :10])
    few = Session(replace(session.inquiry, pool=pool, classes=tuple("abcdefghij")), session.log, session.options)
    question = few.next_question("tab")
    assert question is not None
    assert [choice["label"] for choice in question["choices"]] == list(range(10))
    assert [choice["probability"] for choice in question["choices"]] == pool.probabilities[question["image"]].tolist()


def test_a_server_that_starts_again_goes_on_with_what_is_left_of_the_questions(tmp_path: Path) -> None:
    first = make_session(tmp_path, count=10, share=0.3)
    for question in first.questions[:4]:
        first.answer([{"image": question.image, "answer": "none"}])
    again = make_session(tmp_path, count=10, share=0.3)
    assert len(again.questions) == 6
    drawn = [
        {one.image for one in part if one.query_strategy == "random"} for part in (first.questions[4:], again.questions)
    ]
    assert drawn[0] == drawn[1] != set()
    again.answer([{"image": 19, "answer": "none"}])  # nobody asked about it
    for question in again.questions:
        again.answer([{"image": question.image, "answer": "none"}])
    assert len(make_session(tmp_path, count=10, share=0.3).questions) == 10


def test_the_summary_says_what_the_answers_are_worth(tmp_path: Path) -> None:
    session = make_session(tmp_path, count=N, share=1.0)
    first, second, third = (question.image for question in session.questions[:3])
    right = session.inquiry.predicted[first]
    session.answer([{"image": first, "answer": "label", "label": right}])
    session.answer([{"image": second, "answer": "label", "label": (session.inquiry.predicted[second] + 1) % K}])
    session.answer([{"image": third, "answer": "none"}])
    found = session.summary()
    assert [found[name] for name in ("answered", "labeled", "corrected", "random", "none")] == [3, 2, 1, 2, 1]


def test_a_doubted_label_is_corrected_by_an_answer_about_its_file(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    session.issues = [
        LabelIssue("source/a/1.png", "source", "a", "b", 0.9),
        LabelIssue("x.png", "labeled", "c", "d", 0.8),
    ]
    before = session.summary()
    session.answer([{"issue": 0, "answer": "label", "name": "b"}], "Ann")
    act = session.answer([{"issue": 1, "answer": "none"}])
    rows = session.log.current()
    assert [(rows[file].answer, rows[file].label) for file in ("source/a/1.png", "x.png")] == [
        ("label", "b"),
        ("none", ""),
    ]
    assert rows["source/a/1.png"].by == "Ann"
    assert [issue["said"] for issue in session.label_issues()] == ["b", "none"]
    session.log.undo(act)
    assert [issue["said"] for issue in session.label_issues()] == ["b", ""]
    assert (before["relabeled"], session.summary()["relabeled"]) == (0, 1)
    session.answer([{"issue": 1, "answer": "label", "name": "c"}])
    assert session.summary()["relabeled"] == 1, "the label is right"
    assert session.summary()["answered"] == before["answered"], "they tell nothing of the accuracy on unlabelled images"


@pytest.mark.parametrize(
    "given", [{"issue": 2, "answer": "none"}, {"issue": "0", "answer": "none"}, {"issue": 0, "answer": "wrong"}]
)
def test_an_answer_about_a_label_must_make_sense(tmp_path: Path, given: dict[str, object]) -> None:
    session = make_session(tmp_path)
    session.issues = [LabelIssue("a.png", "source", "a", "b", 0.9)]
    with pytest.raises(DataError, match="an answer about a label must have its number"):
        session.answer([given])
    assert session.log.current() == {}
