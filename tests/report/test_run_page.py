"""The page: its parts, its words, and names and files that mean harm."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tests.report.run_pages import PARTS, Page, written
from tests.report.run_runs import HARMS, HELPS, UNCLEAR, finished_run

from qurate.calibration import Calibration
from qurate.report.run_figures import reliability_figure
from qurate.report.run_page import GALLERY, SIDE, write_run_page
from qurate.report.run_text import outcome
from qurate.run_results import BaselineComparison, FlaggedImages, Gain


def test_it_has_its_parts_in_order_and_its_landmarks(tmp_path: Path) -> None:
    page = written(finished_run(tmp_path), tmp_path)
    assert tuple(section["id"] for section in page.all("section")) == PARTS
    assert page.all("html") == [{"lang": "en"}]
    assert all(len(page.all(tag)) == 1 for tag in ("header", "main", "footer", "nav", "h1"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"].removeprefix("#") for link in page.all("a")} == set(PARTS)
    assert all(section["aria-labelledby"] in ids for section in page.all("section"))


def test_every_picture_says_what_it_shows(tmp_path: Path) -> None:
    page = written(finished_run(tmp_path), tmp_path)
    images = page.all("img")
    assert len(images) > GALLERY
    assert all(image["alt"].strip() and image["src"].startswith("data:image/jpeg;base64,") for image in images)
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert all(cell["scope"] in ("row", "col") for cell in page.all("th"))


def test_it_asks_nothing_of_the_network_and_runs_no_script(tmp_path: Path) -> None:
    page = written(finished_run(tmp_path, config={"weights": "https://example.org/w"}), tmp_path)
    assert re.findall(r"https?://\S+", page.html) == ["https://example.org/w&#34;"]
    assert page.all("script") == []
    assert all(a["src"].startswith("data:") for _, a in page.elements if "src" in a)
    assert all(a["href"].startswith(("#", "data:")) for _, a in page.elements if "href" in a)
    assert "url(" not in page.html
    assert "@import" not in page.html


@pytest.mark.parametrize(
    ("comparison", "tone", "words"),
    [
        (HELPS, "good", ["Adaptation helped", "74.2 %", "68.7 %", "124 labelled", "+5.1 points", "+1.6 and +9.4"]),
        (
            UNCLEAR,
            "open",
            [
                *("not clear", "only a gain of about 6.1 points", "k-fold"),
                *("To see one of 3 points, add about 18 more of each class, taken at random", "use the adapted model"),
                "differ on 11.8 % of the unlabelled images",
            ],
        ),
        (
            HARMS,
            "bad",
            ["Adaptation looks harmful here", "do not use", "folder baseline", "-3.1 points", "-6.4 and -0.6"],
        ),
        (None, "open", ["could not be measured", "too few labelled target images"]),
    ],
)
def test_the_outcome_is_said_at_the_top(
    tmp_path: Path, comparison: BaselineComparison | None, tone: str, words: list[str]
) -> None:
    page = written(finished_run(tmp_path, comparison=comparison), tmp_path)
    assert all(word in page.said("outcome") for word in words)
    assert page.all("section")[0]["class"] == f"outcome {tone}"
    assert len(page.all("svg", **{"class": "chart"})) == 1 + (comparison is not None)


def test_where_no_prediction_differs_nothing_is_called_unclear() -> None:
    same = outcome(dataclasses.replace(UNCLEAR, gain=Gain(0.0, 0.0, 0.0, math.inf), disagreement=0.0, moved=0.0))
    assert same.headline == "Adaptation changed no prediction"
    assert same.text[-1].startswith("Both models give every unlabelled image the same class")


def test_what_is_not_clear_says_what_to_do_meanwhile() -> None:
    lower = dataclasses.replace(UNCLEAR, gain=Gain(-0.02, -0.15, 0.11, math.inf), disagreement=0.33, more=None)
    (*_, advice) = outcome(lower).text
    assert "no gain can be seen" in advice
    assert "too small to be seen by labelling more" in advice
    assert "use plain training, in the folder baseline" in advice
    assert "differ on 33.0\N{NO-BREAK SPACE}% of the unlabelled images" in advice


def test_a_trusted_pseudo_label_says_why_in_words(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    row = record.positives.iloc[[0]].assign(label="pen", round=2, phi=-0.113, classifier_prob=0.98, center_prob=0.91)
    page = written(dataclasses.replace(record, positives=row), tmp_path)
    assert "1 pseudo-label was trusted" in page.said("chosen")
    name = Path(row["file"].iloc[0]).name
    assert page.said("chosen").endswith(f"pen 98 % sure neighbours: 91 % at the end: 55 % {name}")
    assert "phi" not in page.html.split('id="config"')[0]


@pytest.mark.parametrize(
    ("config", "in_full", "on_the_card"),
    [
        ({"selection": {"reward": {"center": "centers"}}}, "the centres of the classes agree", "class centres: 91 %"),
        (None, "the 10 target images nearest to it agree", "neighbours: 91 %"),
        ({"selection": None}, "the target images nearest to it agree", "neighbours: 91 %"),
        ({}, "the target images nearest to it agree", "neighbours: 91 %"),
    ],
)
def test_the_words_follow_what_the_label_was_checked_against(
    tmp_path: Path, config: dict[str, object] | None, in_full: str, on_the_card: str
) -> None:
    record = finished_run(tmp_path)
    rows = record.positives.iloc[[0]].assign(center_prob=0.91)
    asked = record.config if config is None else config
    said = written(dataclasses.replace(record, positives=rows, config=asked), tmp_path).said("chosen")
    assert in_full in said
    assert on_the_card in said


def test_why_nothing_was_compared_is_said_in_place_of_the_outcome(tmp_path: Path) -> None:
    why = "The comparison was switched off."
    said = written(finished_run(tmp_path, comparison=None, no_comparison=why), tmp_path).said("outcome")
    assert said.startswith(f"Whether adaptation helped was not measured {why} classes")


def test_the_words_of_the_paper_are_explained_where_they_first_appear(tmp_path: Path) -> None:
    page = written(finished_run(tmp_path), tmp_path)
    assert "plain training (S+T), which learns from the labelled images alone" in page.said("outcome")
    everything = " ".join(page.said(part) for part in PARTS if part != "about")  # the configuration
    assert "also called positives" in everything[: everything.index("positives.csv")]
    assert everything.count("positives") == 2  # both in that sentence


def test_the_gallery_starts_with_the_most_doubtful_and_is_bounded(tmp_path: Path) -> None:
    record = finished_run(tmp_path, classes=tuple(f"class {k}" for k in range(12)))
    page = written(record, tmp_path)
    assert len(record.positives) == 108
    assert "48 of them are shown here" in page.said("chosen")
    shown = [image["alt"].split(",")[0] for image in page.all("img") if "taken for" in image["alt"]]
    phi = record.positives["phi"].round(2)
    lowest = record.positives["file"][phi <= phi.nsmallest(GALLERY).max()]
    assert set(shown[:GALLERY]) <= {Path(file).name for file in lowest}
    assert len(shown) == 2 * GALLERY


def test_what_is_equally_sure_is_ordered_by_the_finished_model(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    positives = record.positives.assign(phi=0.999, classifier_prob=1.0, center_prob=1.0, label="mug")
    predictions = record.predictions.assign(label="mug", probability=0.9)
    for file, named, sure in zip(positives["file"].iloc[[7, 3]], ("pen", "mug"), (0.8, 0.6), strict=True):
        predictions.loc[predictions["file"] == file, ["label", "probability"]] = named, sure
    page = written(dataclasses.replace(record, positives=positives, predictions=predictions), tmp_path)
    shown = [image["alt"].split(",")[0] for image in page.all("img") if "taken for" in image["alt"]]
    assert shown[:2] == [Path(positives["file"].iloc[place]).name for place in (7, 3)]
    assert "neighbours: 100 % at the end: pen" in page.said("chosen")
    assert "neighbours: 100 % at the end: 60 %" in page.said("chosen")


def test_what_to_label_next_is_the_list_of_suggest_in_its_order(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    asked = record.predictions.sample(30, random_state=0).assign(runner_up="pen", predicted="mug")
    page = written(dataclasses.replace(record, suggested=asked), tmp_path)
    shown = [image["alt"].split(",")[0] for image in page.all("img") if "perhaps mug" in image["alt"]]
    assert shown == [Path(file).name for file in asked["file"][:GALLERY]]
    assert f"qurate suggest {tmp_path / 'run'} --count 24 --out to_label.csv" in page.text["next"]
    assert "no unlabelled images left" in written(record, tmp_path).said("next")


@pytest.mark.parametrize(
    ("comparison", "commands"),
    [
        (HELPS, ["predict RUN IMAGES --out predictions.csv", "export RUN --format onnx"]),
        (UNCLEAR, ["open RUN", "predict RUN IMAGES --out predictions.csv"]),
        (HARMS, ["open RUN", "predict RUN/baseline IMAGES --out predictions.csv"]),
        (None, ["open RUN", "predict RUN IMAGES --out predictions.csv"]),
    ],
)
def test_the_page_ends_with_the_commands_that_make_sense_now(
    comparison: BaselineComparison | None, commands: list[str], tmp_path: Path
) -> None:
    page = written(finished_run(tmp_path, comparison=comparison), tmp_path / "my folder")
    run = tmp_path / "my folder" / "run"
    said = [line for line in page.text["steps"].splitlines() if line.startswith("qurate ")]
    expected = [" ".join(["qurate", *command.split()]) for command in commands]
    assert [line.replace(f"'{run}'", "RUN").replace(f"'{run}/baseline'", "RUN/baseline") for line in said] == expected


def test_images_that_fit_no_class_are_worth_asking_about(tmp_path: Path) -> None:
    strange = FlaggedImages(3, 0.1, 20, 0.9)
    page = written(finished_run(tmp_path, comparison=HELPS, flagged=strange), tmp_path)
    assert f"qurate open {tmp_path / 'run'}" in page.text["steps"]


def test_the_table_counts_each_class(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    rows = page_rows(written(record, tmp_path))
    chosen = int((record.positives["label"] == "mug").sum())
    mean = record.predictions.query("label == 'mug'")["probability"].mean()
    assert rows["mug"] == ["4", "2", "12", str(chosen), f"{mean * 100:.1f} %"]


def page_rows(page: Page) -> dict[str, list[str]]:
    body = page.html.split('<table class="classes">')[1].split("</table>")[0].split("<tbody>")[1]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>") if "<th" in row]
    clean = [[re.sub(r"<[^>]+>", "", cell).replace("\u00a0", " ") for cell in row] for row in rows]
    return {row[0]: row[1:] for row in clean}


def test_a_class_without_images_or_predictions_is_told(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    lacking = dataclasses.replace(
        record,
        labeled=record.labeled.query("label != 'pen'"),
        predictions=record.predictions.query("label != 'pen'"),
        positives=record.positives.query("label != 'pen'"),
        embedding=record.embedding.query("label != 'pen' or part == 'source'"),
    )
    page = written(lacking, tmp_path)
    assert page_rows(page)["pen"] == ["4", "0", "0", "0", "never predicted"]
    assert page.all("span", role="img") == [
        {"class": "missing", "role": "img", "aria-label": "pen in the target: no such image"}
    ]


def test_a_run_that_chose_nothing_has_a_page(tmp_path: Path) -> None:
    full = finished_run(tmp_path)
    empty = dataclasses.replace(
        full,
        positives=full.positives.iloc[:0],
        rounds=full.rounds.iloc[:0],
        embedding=full.embedding.iloc[:0],
        predictions=full.predictions.iloc[:0],
        comparison=None,
        stopped="no selector: the base model is the result",
        notes=(),
    )
    page = written(empty, tmp_path)
    assert tuple(section["id"] for section in page.all("section")) == PARTS
    assert "No pseudo-labels were trusted" in page.said("chosen")
    assert "no rounds of selection (no selector" in page.said("rounds")
    assert "nothing to draw" in page.said("map")
    assert "no unlabelled images left" in page.said("next")
    assert page.all("svg") == []


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    classes = (evil, "a&b_'\"", "</section>{{ 7 * 7 }}")
    record = finished_run(
        tmp_path, classes=classes, title=evil, stopped=evil, notes=(evil,), config={evil: ["</pre>", evil]}
    )
    record.predictions.loc[0, "file"] = f"{tmp_path}/<img src=x onerror=alert(1)>.jpg"
    page = written(record, tmp_path)
    assert page.all("script") == []
    assert tuple(section["id"] for section in page.all("section")) == PARTS
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert evil in page.said("about")
    assert "{{ 7 * 7 }}" in page.said("classes")


def test_file_names_that_are_not_unicode_do_not_stop_it(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    asked = record.predictions.head(1).assign(file="caf\udce9.jpg", predicted="mug", runner_up="pen")
    record = dataclasses.replace(record, suggested=asked)
    assert "caf\\udce9.jpg" in written(record, tmp_path).said("next")


def test_an_unreadable_image_gives_words_in_its_place(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    doubtful = record.positives.sort_values("phi")["file"].iloc[0]
    Path(doubtful).write_text("not an image")
    page = written(record, tmp_path)
    name = Path(doubtful).name
    assert [a["aria-label"].split(", ")[0] for a in page.all("span", role="img")] == [name]
    assert "cannot be read" in page.said("chosen")


def test_predictions_of_unreadable_files_are_not_asked_about(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    record.predictions.loc[3, ["label", "probability"]] = [None, float("nan")]
    file = record.predictions.loc[3, "file"]
    record = dataclasses.replace(record, positives=record.positives[record.positives["file"] != file])
    assert str(file) not in written(record, tmp_path).said("next")


def test_a_page_stays_under_three_megabytes(tmp_path: Path) -> None:
    record = finished_run(tmp_path, classes=tuple(f"class {k}" for k in range(20)))
    noise = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    for file in {*record.predictions["file"], *record.source["file"], *record.labeled["file"]}:
        Path(file).write_bytes((tmp_path / "noise.png").read_bytes())
    write_run_page(record, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    for name in "ab":
        write_run_page(record, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


HELD_OUT = pd.DataFrame(
    {
        "file": ["a.png", "b.png", "c.png", "d.png"],
        "label": ["mug", "mug", "pen", "pen"],
        "predicted": ["mug", "pen", "pen", "desk_lamp"],
        "probability": [0.9, 0.5, 0.7, 0.35],
        "uncalibrated": [1.0, 0.97, 0.99, 0.9],
        "right": [True, False, True, False],
    }
)


@pytest.mark.parametrize(
    ("calibration", "held_out", "words"),
    [
        (
            Calibration(4.25, "held-out images", 4),
            HELD_OUT,
            ["4 labelled target images", "right on 50.0 %. It was 96.5 % sure of them", "is 61.2 % sure", "by 4.25"],
        ),
        (Calibration(3.0, "agreement with S+T"), None, ["could be held out", "by 3.00", "plain training (S+T) agrees"]),
        (
            Calibration(1.0, "agreement with S+T"),
            None,
            ["as they were trained", "not made lower", "(S+T) agrees"],
        ),
        (Calibration(), None, ["not calibrated", "usually too high"]),
    ],
)
def test_how_sure_the_model_may_be_is_said(
    tmp_path: Path, calibration: Calibration, held_out: pd.DataFrame | None, words: list[str]
) -> None:
    changes: dict[str, Any] = {} if held_out is None else {"held_out": held_out}
    page = written(finished_run(tmp_path, calibration=calibration, **changes), tmp_path)
    said = page.said("sure")
    assert all(word in said for word in words), said
    figures = [svg for svg in page.all("svg") if svg["aria-label"].startswith("How often the model is right")]
    assert len(figures) == (held_out is not None)


def test_the_diagram_has_a_dot_for_each_group(tmp_path: Path) -> None:
    figure = reliability_figure(HELD_OUT)
    assert figure is not None
    assert "35% sure, 0% right; 50% sure, 0% right; 70% sure, 100% right; 90% sure, 100% right." in figure
    assert (figure.count("<circle"), figure.count('class="new"')) == (5, 4)
    assert "98% sure, right on 50% of 4 images" not in figure
    assert "96% sure, right on 50% of 4 images" in figure
