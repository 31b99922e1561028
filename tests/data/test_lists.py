from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from qurate.data.domains import DataWarning, Domain, read_folder
from qurate.data.images import ImageFiles
from qurate.data.list_files import list_frame
from qurate.data.lists import read_list, read_table
from qurate.data.own_images import read_unlabeled
from qurate.data.samples import DataError
from qurate.runtime.tables import to_csv


def _images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(root / name)


def _list(root: Path, text: str, name: str = "list.txt") -> Path:
    (root / name).write_text(text, encoding="utf-8")
    return root / name


def _pairs(domain: Domain, root: Path) -> list[tuple[str, str | None]]:
    assert isinstance(domain.inputs, ImageFiles)
    paths = [path.relative_to(root).as_posix() for path in domain.inputs.paths]
    names = [None if label < 0 else domain.classes[label] for label in domain.labels.tolist()]
    return list(zip(paths, names, strict=True))


def test_a_list_keeps_its_order_and_allows_spaces(tmp_path: Path) -> None:
    _images(tmp_path, "b/ä ö 1.jpg", "a/x.jpg", "b/y.jpg")
    text = "\ufeffb/ä ö 1.jpg tiger\r\n\r\n  a/x.jpg\tcat  \n\nb/y.jpg   tiger\n\n"
    domain = read_list(_list(tmp_path, text), tmp_path)
    assert domain.name == "list"
    assert domain.classes == ("cat", "tiger")
    assert _pairs(domain, tmp_path) == [("b/ä ö 1.jpg", "tiger"), ("a/x.jpg", "cat"), ("b/y.jpg", "tiger")]


def test_integers_are_named_after_folders(tmp_path: Path) -> None:
    _images(tmp_path, "d/zebra/1.jpg", "d/ape/1.jpg", "d/ape/2.jpg", "d/u/3.jpg")
    text = "d/ape/1.jpg 10\nd/zebra/1.jpg 9\nd/ape/2.jpg 10\nd/u/3.jpg -1\n"
    domain = read_list(_list(tmp_path, text), tmp_path)
    assert domain.classes == ("zebra", "ape")
    assert domain.labels.tolist() == [1, 0, 1, -1]


@pytest.mark.parametrize(
    "text",
    [
        "a/1.jpg 2\na/2.jpg 10\n",  # one folder, two classes
        "a/1.jpg 2\nb/1.jpg 2\na/2.jpg 10\n",  # and one class in two folders
        "1.jpg 2\nb/1.jpg 10\n",  # no folder
    ],
)
def test_integers_stay_where_folders_are_no_names(tmp_path: Path, text: str) -> None:
    _images(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg", "1.jpg")
    assert read_list(_list(tmp_path, text), tmp_path).classes == ("2", "10")


def test_numbers_among_names_are_names(tmp_path: Path) -> None:
    _images(tmp_path, "x/1.jpg", "x/2.jpg")
    assert read_list(_list(tmp_path, "x/1.jpg 7\nx/2.jpg seven\n"), tmp_path).classes == ("7", "seven")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/x.jpg 1\n\na/y.jpg\n", r"list.txt, line 3: a line must be 'path class'.*got 'a/y.jpg'"),
        ("a/x y.jpg\n", r"line 1: .*got 'a/x y.jpg'"),
        ("a/x.jpg 0\na/x.jpg 1\n", "must have one class, got '0' in line 1 and '1' in line 2"),
        ("a/x.jpg -2\n", "at least 0, got -2"),
        ("a/x.jpg 0\nb/gone.jpg 1\n", r"1 of 2 listed files do not exist: '.*gone.jpg \(line 2\)'"),
        ("\n\n", "names no samples"),
    ],
)
def test_a_bad_list_says_where(tmp_path: Path, text: str, message: str) -> None:
    _images(tmp_path, "a/x.jpg")
    with pytest.raises(DataError, match=message):
        read_list(_list(tmp_path, text), tmp_path)


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.txt: cannot be read \(No such file"):
        read_list(tmp_path / "gone.txt", tmp_path)
    (tmp_path / "latin.txt").write_bytes("ä 1".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt: 1 of 1 listed files do not exist.*Is it saved as UTF-8\?"):
        read_list(tmp_path / "latin.txt", tmp_path)
    (tmp_path / "latin.txt").write_bytes("a.jpg ä".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt: not a UTF-8 text file, as line 1 shows"):
        read_list(tmp_path / "latin.txt", tmp_path)


def test_repeated_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    _images(tmp_path, "a/x.jpg", "b/y.jpg")
    text = "a/x.jpg 0\nb/y.jpg 1\na/x.jpg 0\n"
    with pytest.warns(DataWarning, match="names 1 samples again.*line 3 repeats line 1"):
        domain = read_list(_list(tmp_path, text), tmp_path)
    assert len(domain) == 2
    assert [(skip.path, skip.reason) for skip in domain.skipped] == [(tmp_path / "a/x.jpg", "named more than once")]


def test_a_file_is_the_same_by_every_spelling_of_its_path(tmp_path: Path) -> None:
    _images(tmp_path, "a/x.jpg", "b/y.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "z.jpg").symlink_to(tmp_path / "a" / "x.jpg")
    for other in ("./a/x.jpg", "b/../a/x.jpg", str(tmp_path / "a" / "x.jpg"), "link/x.jpg", "z.jpg"):
        with pytest.raises(DataError, match="must have one class, got '0' in line 1 and '1' in line 2"):
            read_list(_list(tmp_path, f"a/x.jpg 0\n{other} 1\n"), tmp_path)
        table = _list(tmp_path, f"path\na/x.jpg\n{other}\nb/y.jpg\n", "t.csv")
        with pytest.warns(DataWarning, match="row 2 repeats row 1"):
            domain = read_unlabeled(table, "unlabeled")
        assert len(domain) == 2


@pytest.mark.parametrize("word", ["9" * 5000, "x" * 5000])
def test_very_long_words_are_names_or_files_that_are_not_there(tmp_path: Path, word: str) -> None:
    _images(tmp_path, "a/x.jpg", "b/y.jpg")
    assert read_list(_list(tmp_path, f"a/x.jpg {word}\nb/y.jpg 1\n"), tmp_path).classes == ("1", word)
    with pytest.raises(DataError, match=r"1 of 1 listed files do not exist") as found:
        read_list(_list(tmp_path, f"{word} 1\n"), tmp_path)
    assert len(str(found.value)) < 1000


def test_a_table_is_read_as_strings(tmp_path: Path) -> None:
    _images(tmp_path, "a, b.jpg", "c.jpg", "d.jpg", "e.jpg")
    text = 'path,other,label\n"a, b.jpg",1,NA\nc.jpg,2,007\nd.jpg,,\ne.jpg,4, NA \n'
    domain = read_table(_list(tmp_path, text, "t.csv"), tmp_path)
    assert domain.classes == ("007", "NA")
    assert _pairs(domain, tmp_path) == [("a, b.jpg", "NA"), ("c.jpg", "007"), ("d.jpg", None), ("e.jpg", "NA")]


def test_integer_labels_of_a_table_are_ordered_by_value(tmp_path: Path) -> None:
    _images(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    table = _list(tmp_path, "file,kind\na.jpg,10\nb.jpg,9\nc.jpg,-1\n", "t.csv")
    domain = read_table(table, tmp_path, path_column="file", label_column="kind")
    assert domain.classes == ("9", "10")
    assert domain.labels.tolist() == [1, 0, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\nx.jpg,1\n", "t.csv must have a column 'path' with the paths, got 'name', 'label'"),
        ("path,kind\nx.jpg,1\n", "must have a column 'label' with the classes, got 'path', 'kind'"),
        ("path,label\nx.jpg,1\n,2\n", "no path in 'row 2'"),
        ("path,label\nx.jpg,1\ngone.jpg,2\n", r"gone.jpg \(row 2\)"),
        ("path,label\n", "names no samples"),
        ("path,label\nx.jpg,1\nx.jpg,1,2\n", "row 2 has 3 fields"),
        ("", "no header line"),
    ],
)
def test_a_bad_table_says_where(tmp_path: Path, text: str, message: str) -> None:
    _images(tmp_path, "x.jpg")
    with pytest.raises(DataError, match=message):
        read_table(_list(tmp_path, text, "t.csv"), tmp_path)


def test_the_tables_that_qurate_writes_are_read(tmp_path: Path) -> None:
    _images(tmp_path, "a.jpg", "b.jpg")
    table = _list(tmp_path, "file,label,probability\na.jpg,cat,0.9\nb.jpg,dog,0.8\n", "t.csv")
    assert _pairs(read_table(table, tmp_path), tmp_path) == [("a.jpg", "cat"), ("b.jpg", "dog")]
    assert _pairs(read_unlabeled(table, "unlabeled"), tmp_path) == [("a.jpg", None), ("b.jpg", None)]


def test_names_that_are_hard_to_write_are_read_back(tmp_path: Path) -> None:
    names = ["=1.jpg", "-a.jpg", "'b.jpg", " c.jpg", "d\re.jpg", "f,g.jpg"]
    _images(tmp_path, *names)
    (tmp_path / "t.csv").write_bytes(to_csv(pd.DataFrame({"file": names, "label": ["@x", "'", "+", "-", "=", "'="]})))
    found = _pairs(read_table(tmp_path / "t.csv", tmp_path), tmp_path)
    assert found == list(zip(names, ["@x", "'", "+", "-", "=", "'="], strict=True))


def test_an_unlabelled_list_takes_each_file_once_whatever_class_it_names(tmp_path: Path) -> None:
    _images(tmp_path, "a b.jpg", "c.jpg")
    with pytest.warns(DataWarning, match="names 1 samples again.*line 3 repeats line 1"):
        domain = read_unlabeled(_list(tmp_path, "a b.jpg\nc.jpg 3\na b.jpg cat\n"), "unlabeled")
    assert _pairs(domain, tmp_path) == [("a b.jpg", None), ("c.jpg", None)]


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.csv: cannot be read"):
        read_table(tmp_path / "gone.csv", tmp_path)


def test_the_office31_list_agrees_with_the_folders(office31: Path) -> None:
    listed = read_list(office31 / "splits" / "labeled_source_images_dslr.txt", office31)
    folder = read_folder(office31 / "dslr" / "images")
    assert listed.classes == folder.classes
    assert sorted(_pairs(listed, office31)) == sorted(_pairs(folder, office31))


def test_numbers_in_a_table_in_memory_are_whole_beside_an_empty_cell(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.jpg" for name in "abc"]
    for file in files:
        Image.new("RGB", (8, 8)).save(file)
    domain = list_frame(pd.DataFrame({"file": files, "label": [1, 10, None]}), "given")
    assert domain.classes == ("1", "10")
