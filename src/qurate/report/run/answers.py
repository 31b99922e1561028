"""What people's answers changed, in plain words."""

from __future__ import annotations

from qurate.report.numbers import count, percent
from qurate.report.run.record import Corrections, RunAnswers

CONFUSIONS = 10
"""Rows of the table of what was taken for what."""


def answers_in_words(found: RunAnswers) -> tuple[str, ...]:
    """What was answered, what it says of the model that was asked, and what it changed; one sentence or two each."""
    said = [_kinds(found), _before(found), _chance(found), _now(found)]
    if found.corrections is not None:
        said += [_trusted(found.corrections), _changed(found.corrections)]
    return tuple(sentence for sentence in said if sentence)


def _kinds(found: RunAnswers) -> str:
    parts = []
    if found.labeled:
        parts.append(f"{found.labeled:,} got a class and joined the labelled images")
    if found.none:
        parts.append(f"{found.none:,} {_are(found.none)} of no class")
    if found.wrong:
        parts.append(f"{found.wrong:,} {_are(found.wrong)} not what the model took {_it(found.wrong)} for")
    text = f"People answered about {count(found.total, 'image')}: {', '.join(parts)}."
    if left := found.none + found.wrong:
        text += f" The {left:,} without a class left the unlabelled images and {_are(left)} not learned from."
    if found.earlier:
        text += f" {count(found.earlier, 'answer')} besides, from which the previous run had learned, still hold."
    return text


def _before(found: RunAnswers) -> str:
    if not found.judged:
        return ""
    known = "" if found.judged == found.total else " of which that is known"
    share = _share(found.right, found.judged)
    text = f"The model that was asked had been right on {share} images{known} ({percent(found.right / found.judged)})."
    if chosen := found.judged - found.random:
        text += (
            f" {chosen:,} of them {'was' if chosen == 1 else 'were'} not drawn at random, so that is not its accuracy."
        )
    return text


def _chance(found: RunAnswers) -> str:
    if not found.random:
        return "None of them was drawn at random, so they do not tell how often that model is right on all images."
    share = f"{_share(found.random_right, found.random)} ({percent(found.random_right / found.random)})"
    ends = percent(found.random_low), percent(found.random_high)
    return (
        f"On those that were drawn at random it had been right on {share}, 95 % interval {ends[0]} to {ends[1]}. If "
        "they are of one batch of questions, and all of it was answered, that is an honest estimate of its accuracy on "
        "all unlabelled images. Later batches are drawn from what is left, which is easier."
    )


def _now(found: RunAnswers) -> str:
    if not found.labeled:
        return ""
    return (
        f"The new model gives the class that it was told to {found.right_now:,} of {found.labeled:,}. It has learned "
        "from these images, so that is no accuracy."
    )


def _trusted(found: Corrections) -> str:
    left = len(found.left)
    return (
        f"Of the {count(found.positives, 'pseudo-label')} that the previous run trusted, people confirmed "
        f"{found.confirmed:,} and rejected {left:,}. The confirmed ones are labels now; the rejected ones are trusted "
        "no longer."
    )


def _changed(found: Corrections) -> str:
    if not found.open:
        return ""
    share = _share(found.changed, found.open)
    return f"The prediction changed for {share} images without an answer ({percent(found.changed / found.open)})."


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _it(number: int) -> str:
    return "it" if number == 1 else "them"
