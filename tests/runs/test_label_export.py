"""Labels of a run in the formats of other programs: against what those publish, and against them where installed."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image
from tests.runs.written import CLASSES, HOSTILE, rename_hostile, write_run

from qurate.active.answers import AnswerLog, read_answers
from qurate.data.own_images import read_labeled
from qurate.errors import ConfigError, QurateError, RunError
from qurate.runs.files import LabelFormat
from qurate.runs.label_export import MARK, export_labels, safe_name
from qurate.runs.model import AdaptedModel, load
from qurate.runtime.tables import read_csv, to_csv

FORMATS: Sequence[LabelFormat] = get_args(LabelFormat)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """18 predictions in turn of three classes; the first is flagged, and people answered about four."""
    return _prepare(write_run(tmp_path / "place"))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "place")
    rename_hostile(run)
    return _prepare(run)


def _prepare(run: Path) -> Path:
    table, classes = read_csv(run / "predictions.csv"), _classes(run)
    table["label"] = [classes[i % 3] for i in range(len(table))]
    table["known"] = [f"{i / 100}" for i in range(len(table))]
    table.loc[0, "problem"] = "fits none of the classes"
    (run / "predictions.csv").write_bytes(to_csv(table))
    said = (("label", "new"), ("none", ""), ("wrong", ""), ("label", classes[0]))
    files, predicted = list(table["file"]), list(table["label"])
    answers = [
        {"file": files[i], "answer": kind, "label": label, "predicted": predicted[i], "asked": ""}
        for i, (kind, label) in enumerate(said, 4)
    ]
    AnswerLog(run / "labels.csv").add(answers)
    return run


def _classes(run: Path) -> list[str]:
    return list(json.loads((run / "model.json").read_text(encoding="utf-8"))["classes"])


def _expected(run: Path) -> dict[str, tuple[str | None, bool, float]]:
    """Label (None where nobody knows it), whether a person said so, and probability, of each file."""
    table, classes = read_csv(run / "predictions.csv"), _classes(run)
    by_place: dict[int, str | None] = {4: "new", 5: "none", 6: None, 7: classes[0]}
    found: dict[str, tuple[str | None, bool, float]] = {}
    for i, (file, label, sure) in enumerate(zip(table["file"], table["label"], table["probability"], strict=True)):
        found[file] = (
            (by_place[i], True, float(sure)) if i in by_place else (label if i else "none", False, float(sure))
        )
    return found


def _tasks(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "tasks.json").read_text(encoding="utf-8")))


def _choice(result: Any) -> str:
    """The one choice of a result, which has the fields that Label Studio documents for <Choices>."""
    ((only),) = result
    assert (only["from_name"], only["to_name"], only["type"]) == ("label", "image", "choices")
    (choice,) = only["value"]["choices"]
    return str(choice)


@pytest.mark.parametrize("names", ["run", "hostile"])
def test_label_studio_gets_tasks_of_its_published_format(
    names: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """labelstud.io/guide/tasks and /guide/predictions: data, predictions (model_version, score, result)."""
    run = request.getfixturevalue(names)
    out = tmp_path / "out"
    export_labels(run, out, "label-studio")
    view = ET.parse(out / "interface.xml").getroot()
    image, choices = view.find("Image"), view.find("Choices")
    assert image is not None
    assert choices is not None
    assert (image.get("name"), image.get("value"), choices.get("name")) == ("image", "$image", "label")
    assert (choices.get("toName"), choices.get("choice")) == ("image", "single")
    offered = [choice.get("value") for choice in choices.findall("Choice")]
    assert offered == [*_classes(run), "new", "none"]
    expected = _expected(run)
    tasks = _tasks(out)
    assert [task["data"]["file"] for task in tasks] == list(expected)
    for task in tasks:
        assert set(task) <= {"data", "predictions", "annotations"}
        url = urlsplit(task["data"]["image"])
        (below,) = parse_qs(url.query)["d"]
        assert (url.path, url.fragment) == ("/data/local-files/", "")
        assert (out / below).samefile(task["data"]["file"])
        label, is_person, sure = expected[task["data"]["file"]]
        said = [(_choice(one["result"]), key) for key in ("predictions", "annotations") for one in task.get(key, [])]
        assert said == ([] if label is None else [(label, "annotations" if is_person else "predictions")])
        for one in task.get("predictions", []):
            assert one["model_version"] == "qurate run"
            assert one.get("score") == (None if label == "none" else sure)


def _as_exported(tasks: list[dict[str, Any]], choices: dict[str, list[str]]) -> list[dict[str, Any]]:
    """What Label Studio exports as JSON after a person chose (labelstud.io/guide/export, Label Studio JSON)."""
    found = []
    for number, task in enumerate(tasks, 1):
        annotations = [
            {
                "id": 100 + number,
                "completed_by": 1,
                "result": [
                    {
                        "id": "abc",
                        "from_name": "label",
                        "to_name": "image",
                        "type": "choices",
                        "origin": "manual",
                        "value": {"choices": [choice]},
                    }
                ],
                "was_cancelled": False,
                "ground_truth": False,
                "created_at": "2026-11-18T12:00:00.123456Z",
                "updated_at": "2026-11-18T12:34:56.123456Z",
                "lead_time": 3.2,
            }
            for choice in choices.get(task["data"]["file"], [])
        ]
        found.append({"id": number, "annotations": annotations, "drafts": [], "predictions": [], "meta": {}, **task})
        found[-1]["annotations"] = annotations
    return found


def _as_exported_min(tasks: list[dict[str, Any]], choices: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The same as JSON_MIN: data and choice on one level, a row for each annotation."""
    rows = []
    for number, task in enumerate(tasks, 1):
        for choice in choices.get(task["data"]["file"]) or [""]:
            about = {"annotator": 1, "annotation_id": 1, "updated_at": "2026-11-18T12:34:56.123456Z", "lead_time": 1.0}
            rows.append({**task["data"], "id": number, **({"label": choice} if choice else {}), **about})
    return rows


@pytest.mark.parametrize("exported", [_as_exported, _as_exported_min])
def test_choices_in_label_studio_come_back_as_answers(exported: Any, hostile: Path, tmp_path: Path) -> None:
    export_labels(hostile, tmp_path / "out", "label-studio")
    tasks = _tasks(tmp_path / "out")
    files = [task["data"]["file"] for task in tasks]
    wanted = {files[0]: HOSTILE[3], files[3]: "none", files[17]: HOSTILE[0]}
    path = tmp_path / "project-1.json"
    path.write_text(json.dumps(exported(tasks, {file: [name] for file, name in wanted.items()})))
    found = read_answers(path).current
    assert {file: row.label for file, row in found.items()} == wanted
    assert {row.time for row in found.values()} == {"2026-11-18T12:34:56+00:00"}
    assert {row.answer for row in found.values()} == {"label"}


def test_skipped_tasks_do_not_count_and_the_ground_truth_counts_alone(run: Path, tmp_path: Path) -> None:
    export_labels(run, tmp_path / "out", "label-studio")
    tasks = _tasks(tmp_path / "out")
    files = [task["data"]["file"] for task in tasks]
    exported = _as_exported(tasks, {files[0]: ["blue"], files[1]: ["blue", "été"], files[2]: ["été", "été"]})
    exported[0]["annotations"][0]["was_cancelled"] = True
    exported[1]["annotations"][1]["ground_truth"] = True
    path = tmp_path / "export.json"
    path.write_text(json.dumps(exported))
    assert {file: row.label for file, row in read_answers(path).current.items()} == {files[1]: "été", files[2]: "été"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"id": 7, "data": {"image": "a"}, "annotations": []}]', "task 7 does not say which image"),
        ('[{"id": 7', "cannot be read as JSON"),
        ('{"id": 7}', "must be a list of tasks"),
        ("[1, 2]", "must be a list of tasks"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('[{"file": "a.png", "label": {"choices": ["a", "b"]}}]', "must have one choice, got 'a', 'b'"),
        ('[{"file": "a.png", "label": "a"}, {"file": "a.png", "label": "b"}]', "must have one label, got 2"),
        ('[{"file": "a.png"}]', "has none"),
    ],
)
def test_an_export_that_says_nothing_or_too_much_is_refused(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(content)
    with pytest.raises(QurateError, match=says):
        read_answers(path)


@pytest.mark.parametrize("names", ["run", "hostile"])
def test_fiftyone_gets_its_image_classification_dataset(
    names: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """docs.voxel51.com, FiftyOneImageClassificationDataset: data/<uuid>.<ext>, labels.json without 'classes'."""
    run = request.getfixturevalue(names)
    export_labels(run, tmp_path / "out", "fiftyone")
    about = json.loads((tmp_path / "out" / "labels.json").read_text(encoding="utf-8"))
    assert set(about) == {"labels"}, "with 'classes' the labels would have to be numbers"
    images = {os.path.splitext(path.name)[0]: path for path in (tmp_path / "out" / "data").iterdir()}  # noqa: PTH122
    assert images.keys() == about["labels"].keys()
    expected = _expected(run)
    for uuid, target in about["labels"].items():
        label, is_person, sure = next(row for file, row in expected.items() if images[uuid].samefile(file))
        if label is None:
            assert target is None
            continue
        assert set(target) == {"label", "confidence", "attributes"}
        assert target["label"] == label
        assert target["confidence"] == (None if is_person or label == "none" else sure)
        assert target["attributes"]["labeled_by"] == ("person" if is_person else "model")
        assert target["attributes"]["known"] is not None


@pytest.mark.parametrize("names", ["run", "hostile"])
def test_hugging_face_gets_an_image_folder_with_metadata(
    names: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """huggingface.co/docs/datasets/image_dataset: metadata.jsonl beside the images, file_name relative to it."""
    run = request.getfixturevalue(names)
    export_labels(run, tmp_path / "out", "imagefolder")
    folder = tmp_path / "out" / "train"
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert {row["file_name"] for row in rows} == {path.name for path in folder.iterdir()} - {"metadata.jsonl"}
    assert len({tuple(row) for row in rows}) == 1
    expected = _expected(run)
    assert {row["file"]: (row["label"], row["labeled_by"] == "person", row["probability"]) for row in rows} == expected
    assert all((folder / row["file_name"]).samefile(row["file"]) for row in rows)
    assert not [row for row in rows if not 0 <= row["known"] <= 1]


def test_predictions_are_sorted_into_folders_that_can_be_read_again(run: Path, tmp_path: Path) -> None:
    done = export_labels(run, tmp_path / "out", "folders")
    assert (done.images, done.fits_none, done.by_person) == (18, 2, 4)
    assert "1 image left out, called wrong by people" in done.notes[0]
    read = read_labeled(tmp_path / "out", "labeled")
    assert read.classes == tuple(sorted([*CLASSES, "new", "none"]))
    sorted_there = {str(path.resolve()): path.parent.name for path in (tmp_path / "out").rglob("*.png")}
    expected = {str(Path(file).resolve()): label for file, (label, _, _) in _expected(run).items() if label is not None}
    assert sorted_there == expected


def test_hostile_names_of_classes_stay_within_the_folder(hostile: Path, tmp_path: Path) -> None:
    about = json.loads((hostile / "model.json").read_text(encoding="utf-8"))
    classes = ["../../out of it", "..", "a\0\n"]
    old = dict(zip(about["classes"], classes, strict=True))
    (hostile / "model.json").write_text(json.dumps({**about, "classes": classes}))
    table = read_csv(hostile / "predictions.csv")
    (hostile / "predictions.csv").write_bytes(to_csv(table.assign(label=[old[name] for name in table["label"]])))
    shutil.rmtree(tmp_path / "beside", ignore_errors=True)
    (hostile / "labels.csv").unlink()
    done = export_labels(hostile, tmp_path / "beside" / "out", "folders")
    assert sorted(path.name for path in (tmp_path / "beside").iterdir()) == ["out"]
    folders = sorted(path.name for path in done.folder.iterdir())
    assert folders == [MARK, "_", "__.._out of it", "a__", "none"]
    assert len(list(done.folder.rglob("*.png"))) == 18
    assert "'..' is in '_'" in done.notes[0]


def test_a_class_called_none_keeps_its_folder(run: Path, tmp_path: Path) -> None:
    about = json.loads((run / "model.json").read_text(encoding="utf-8"))
    (run / "model.json").write_text(json.dumps({**about, "classes": ["None", "none", "été"]}))
    table = read_csv(run / "predictions.csv")
    names = {"blue": "None", "green tea": "none", "été": "été"}
    (run / "predictions.csv").write_bytes(to_csv(table.assign(label=[names[name] for name in table["label"]])))
    (run / "labels.csv").unlink()
    done = export_labels(run, tmp_path / "out", "folders")
    found = {path.name: len(list(path.iterdir())) for path in done.folder.iterdir() if path.is_dir()}
    assert found == {"None": 5, "none-2": 6, "été": 6, "none-3": 1}
    assert "Images of no class are in the folder 'none-3'" in " ".join(done.notes)
    export_labels(run, tmp_path / "tasks", "label-studio")
    assert "predictions" not in _tasks(tmp_path / "tasks")[0], "there is no word left for an image of no class"


def test_equal_names_of_files_and_classes_get_numbers() -> None:
    taken: set[str] = set()
    wanted = ["a", "A", "a", "a-2", ".hidden", " x. ", "", "ä" * 300, "\ud800", "con/aux"]
    names = [safe_name(name, taken) for name in wanted]
    assert names[:6] == ["a", "A-2", "a-3", "a-2-2", "_hidden", "_x"]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(len(name.encode()) <= 210 and name.strip(". ") for name in names)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("copy", [False, True])
def test_images_are_links_or_copies(format: LabelFormat, copy: bool, run: Path, tmp_path: Path) -> None:
    export_labels(run, tmp_path / "out", format, copy=copy)
    images = list((tmp_path / "out").rglob("*.png"))
    assert {path.is_symlink() for path in images} == {not copy}
    if copy:
        shutil.rmtree(run.parent / "unlabeled")
        for path in images:
            with Image.open(path) as image:
                image.load()


def test_images_are_copied_where_links_cannot_be_made(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    done = export_labels(run, tmp_path / "out", "imagefolder")
    assert done.notes[-1] == "The images are copies, for no links can be made there."
    assert not [path for path in done.folder.rglob("*") if path.is_symlink()]


def test_only_an_export_is_replaced_and_only_by_force(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_labels(run, out, "folders")
    with pytest.raises(RunError, match=r"exists. Choose another `out`, or pass `force=True`"):
        export_labels(run, out, "fiftyone")
    assert not (out / "data").exists()
    export_labels(run, out, "fiftyone", force=True)
    assert sorted(path.name for path in out.iterdir()) == [MARK, "data", "labels.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "place"], "nothing is left beside it"
    mine = tmp_path / "mine"
    mine.mkdir()
    export_labels(run, mine, "folders")  # an empty folder is no loss
    (mine / MARK).unlink()
    with pytest.raises(RunError, match="not empty, and no export of qurate"):
        export_labels(run, mine, "folders", force=True)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(RunError, match=r"must be a folder, got .*link \(a link\)"):
        export_labels(run, tmp_path / "link", "folders", force=True)


def test_what_fails_in_the_middle_leaves_what_was_there(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_labels(run, out, "folders")
    before = sorted(out.rglob("*"))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(RunError, match="No space left on device"):
        export_labels(run, out, "folders", copy=True, force=True)
    assert sorted(out.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "place"]


def test_images_that_are_gone_or_have_no_label_are_left_out_with_a_word(run: Path, tmp_path: Path) -> None:
    table = read_csv(run / "predictions.csv")
    table.loc[1, ["label", "probability", "problem"]] = ["", "", "cannot be decoded"]
    (run / "predictions.csv").write_bytes(to_csv(table))
    Path(table["file"].tolist()[2]).unlink()
    done = export_labels(run, tmp_path / "out", "imagefolder")
    assert done.images == 16
    assert [note.partition(":")[0] for note in done.notes] == [
        "1 image left out, no longer there",
        "1 image left out, unreadable",
    ]
    shutil.rmtree(run.parent / "unlabeled")
    with pytest.raises(RunError, match="run from the folder that the run was started in"):
        export_labels(run, tmp_path / "other", "folders")


def test_a_name_that_is_no_text_is_left_out_of_files_of_text(run: Path, tmp_path: Path) -> None:
    table = read_csv(run / "predictions.csv")
    strange = os.fsdecode(b"\xff.png")
    moved = Path(table["file"].tolist()[1]).rename(run.parent / "unlabeled" / strange)
    table.loc[1, "file"] = str(moved)
    (run / "predictions.csv").write_bytes(to_csv(table))
    assert export_labels(run, tmp_path / "a", "folders").images == 18
    done = export_labels(run, tmp_path / "b", "label-studio")
    assert done.images == 17
    assert "no valid text" in done.notes[0]


def test_a_model_exports_the_labels_of_its_run(run: Path, tmp_path: Path) -> None:
    model = load(run)
    assert model.export(tmp_path / "out", format="imagefolder") == tmp_path / "out"
    assert (tmp_path / "out" / "train" / "metadata.jsonl").is_file()
    alone = AdaptedModel(model.network, model.config, model.classes)
    with pytest.raises(ConfigError, match="was not written as one"):
        alone.export(tmp_path / "other", format="folders")
    with pytest.raises(RunError, match="`format` must be one of label-studio, fiftyone, imagefolder, folders"):
        model.export(tmp_path / "other", format="tflite")  # type: ignore[arg-type]


def test_hugging_face_datasets_reads_it(hostile: Path, tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets", reason="the published format is tested above")
    export_labels(hostile, tmp_path / "out", "imagefolder")
    read = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {row["file"]: row["label"] for row in read["train"]} == {f: row[0] for f, row in _expected(hostile).items()}
    assert read["train"][0]["image"].size == (24, 24)


def test_label_studio_accepts_the_tasks(hostile: Path, tmp_path: Path) -> None:
    reason = "the published format is tested above"
    interface: Any = pytest.importorskip("label_studio_sdk.label_interface", reason=reason).LabelInterface
    export_labels(hostile, tmp_path / "out", "label-studio")
    read = interface((tmp_path / "out" / "interface.xml").read_text(encoding="utf-8"))
    read.validate()
    for task in _tasks(tmp_path / "out"):
        assert read.validate_task({"data": task["data"]})
        assert all(read.validate_prediction(one) for one in task.get("predictions", []))


def test_fiftyone_reads_it(hostile: Path, tmp_path: Path) -> None:
    importers: Any = pytest.importorskip("fiftyone.utils.data.importers", reason="the published format is tested above")
    export_labels(hostile, tmp_path / "out", "fiftyone")
    with importers.FiftyOneImageClassificationDatasetImporter(dataset_dir=str(tmp_path / "out")) as read:
        labels = {str(Path(path).resolve()): label for path, _, label in read}
    expected = {str(Path(file).resolve()): row[0] for file, row in _expected(hostile).items()}
    assert {path: label and label.label for path, label in labels.items()} == expected


def test_plain_training_beside_a_run_has_the_answers_of_the_run(run: Path, tmp_path: Path) -> None:
    baseline = run / "baseline"
    baseline.mkdir()
    for name in ("model.json", "model.safetensors", "predictions.csv"):
        shutil.copy(run / name, baseline / name)
    assert export_labels(baseline, tmp_path / "out", "folders").by_person == 4
