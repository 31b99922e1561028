"""Label Studio: tasks with predictions to import there, and the labels of an export from there. Loads no torch.

Formats: labelstud.io/guide/predictions (import) and labelstud.io/guide/export (JSON and JSON_MIN).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from qurate.data.class_names import compose_name
from qurate.errors import DataError
from qurate.runtime.paths import shorten

FILE, IMAGE, LABEL = "file", "image", "label"
"""Names within a task: the image as predictions.csv names it, where it is shown from, and the question."""
SERVED = "/data/local-files/?d="
"""Where Label Studio serves files of a folder on its machine."""
_MANY = 20
"""Classes above which they are a list to search, not buttons. Our choice."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Chosen(NamedTuple):
    """A choice that a person made there.

    Args:
        file: The image, as predictions.csv names it.
        label: The class, or 'none'.
        time: When, as the export says; may be empty.
        task: The number of the task.
    """

    file: str
    label: str
    time: str
    task: str


def labeling_config(choices: Sequence[str]) -> str:
    """The labelling interface: an image, and one choice.

    Raises:
        DataError: If a name cannot be written in XML.
    """
    if strange := [name for name in choices if _NOT_XML.search(name)]:
        raise DataError(f"Label Studio cannot have a class with control characters, got {strange[0]!a}. Rename it.")
    layout = ' layout="select"' if len(choices) > _MANY else ""
    rows = [f'    <Choice value="{_escape(name)}"/>\n' for name in choices]
    return (
        f'<View>\n  <Image name="{IMAGE}" value="${IMAGE}" zoom="true"/>\n'
        f'  <Choices name="{LABEL}" toName="{IMAGE}" choice="single"{layout}>\n{"".join(rows)}  </Choices>\n</View>\n'
    )


def _escape(name: str) -> str:
    """A name within quotes in XML, where line breaks and tabs would become spaces."""
    return re.sub("[\t\n\r]", lambda found: f"&#{ord(found[0])};", html.escape(name))


def make_task(file: str, served: str) -> dict[str, Any]:
    """A task without predictions.

    Args:
        file: The image, as predictions.csv names it.
        served: Its path below the folder that Label Studio serves files from.
    """
    return {"data": {IMAGE: SERVED + quote(served), FILE: file}}


def choose(label: str) -> list[dict[str, Any]]:
    """The result of a prediction or annotation."""
    return [{"from_name": LABEL, "to_name": IMAGE, "type": "choices", "value": {"choices": [label]}}]


def is_export(text: str) -> bool:
    """Whether a text is JSON, as no CSV table is."""
    return text.lstrip()[:1] in ("[", "{")


def read_export(path: Path, text: str) -> list[Chosen]:
    """The choices of an export as JSON or JSON_MIN; skipped tasks and those without a choice have none.

    Where an annotation is the ground truth of its task, only that counts.

    Raises:
        DataError: If it is no such export, or a task has several choices in one annotation.
    """
    try:
        tasks = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{path}: must be a list of tasks, as Label Studio exports them as JSON or JSON_MIN.")
    found: list[Chosen] = []
    for number, task in enumerate(tasks, 1):
        where = f"{path}: task {task.get('id', number)}"
        data = task.get("data", task)  # JSON_MIN has no level of its own for it
        file = data.get(FILE) if isinstance(data, dict) else None
        if not isinstance(file, str) or not file:
            raise DataError(
                f"{where} does not say which image it is about. Its data must have '{FILE}', as in the tasks that "
                "'qurate export --format label-studio' writes."
            )
        for choices, time in _annotations(task):
            if len(choices) > 1:
                raise DataError(f"{where} must have one choice, got {', '.join(map(repr, choices[:5]))}.")
            if choices and (label := compose_name(choices[0].strip())):
                found.append(Chosen(file, label, time, shorten(task.get("id", number))))
    return found


def _annotations(task: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """The choices of each annotation of a task, and its time."""
    given = task.get("annotations")
    if given is None and "data" not in task:  # JSON_MIN: a row for each annotation
        value = task.get(LABEL)
        several = value if isinstance(value, list) else [value]
        yield [name for one in several for name in _names(one)], _time(task)
        return
    sound = [one for one in (given if isinstance(given, list) else []) if isinstance(one, dict)]
    sound = [one for one in sound if not one.get("was_cancelled")]
    for annotation in [one for one in sound if one.get("ground_truth")] or sound:
        results = annotation.get("result")
        results = [one for one in (results if isinstance(results, list) else []) if isinstance(one, dict)]
        values = [one.get("value") for one in results if one.get("from_name") == LABEL]
        yield [name for value in values for name in _names(value)], _time(annotation)


def _names(value: object) -> list[str]:
    """Class names in a value: a name, or a table with 'choices'."""
    if isinstance(value, str):
        return [value]
    choices = value.get("choices") if isinstance(value, dict) else None
    return [name for name in choices if isinstance(name, str)] if isinstance(choices, list) else []


def _time(of: Mapping[str, Any]) -> str:
    time = of.get("updated_at") or of.get("created_at")
    return time if isinstance(time, str) else ""
