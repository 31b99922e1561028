"""Tables read back exactly what was written, whatever the names are."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qurate.runtime.tables import TableError, is_text, read_csv, to_csv

NASTY = ["=1+1", "+a", "-b", "@c", "\tx", "\ry", "'", "''", "'=1", "'x", "a\rb", "a\nb", 'q"q', "a,b", "", "né", "-1"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(names=st.lists(st.one_of(st.sampled_from(NASTY), st.text()), min_size=1))
def test_text_reads_back_exactly(tmp_path: Path, names: list[str]) -> None:
    names = [name for name in names if is_text(name)]
    for table in (pd.DataFrame({"file": names}, dtype=object), pd.DataFrame({"file": names, "n": 1}, dtype=object)):
        (tmp_path / "t.csv").write_bytes(to_csv(table))
        assert read_csv(tmp_path / "t.csv")["file"].tolist() == names


def test_nothing_is_a_formula_and_numbers_stay(tmp_path: Path) -> None:
    table = pd.DataFrame({"file": ["=x", "-y"], "value": [-0.1, math.nan], "round": pd.array([1, None], dtype="Int64")})
    assert to_csv(table) == b"file,value,round\n'=x,-0.1,1\n'-y,,\n"
    assert to_csv(pd.DataFrame({"x": [1 / 3]}), "%.3g") == b"x\n0.333\n"


@pytest.mark.parametrize(("name", "begins"), [("=A1", "'=A1,b"), ("\ufeffa", '"\ufeffa",b')])
def test_column_names_are_text_too(tmp_path: Path, name: str, begins: str) -> None:
    """Found by fuzzing: a byte order mark at the beginning of the file would not be part of the name."""
    (tmp_path / "t.csv").write_bytes(to_csv(pd.DataFrame({name: [1], "b": [2]})))
    assert (tmp_path / "t.csv").read_text().startswith(begins)
    assert list(read_csv(tmp_path / "t.csv").columns) == [name, "b"]


def test_a_file_name_that_is_no_text_keeps_its_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    content = to_csv(pd.DataFrame({"file": [name]}))
    assert content == b"file\ncaf\xe9.jpg\n"
    (tmp_path / "t.csv").write_bytes(content)
    assert read_csv(tmp_path / "t.csv")["file"].tolist() == [name]
    assert (is_text(name), is_text("café.jpg")) == (False, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header line"),
        (b"\n\n", "no header line"),
        (b"a,b\n1,2\n1,2,3\n", "row 2 has 3 fields, and the header has 2"),
        (b"a,b\n1\n", "row 1 has 1 field, and"),
        (b'a,b\n"1,2\n', "not a CSV table"),
        ("a,b\n1,2\n".encode("utf-16"), "must be a UTF-8 text file, got UTF-16. Save it as UTF-8"),
        ("a,b\n1,2\n".encode("utf-32"), "got UTF-32"),
        ("a,b\n1,2\n".encode("utf-16-le"), "got UTF-16 or no text"),
        (b"file;label\na.png;cup\n", "columns must be separated by commas, got semicolons in 'file;label'"),
        (b"file\tlabel\na.png\tcup\n", "got tabs in"),
        (b"PK\3\4\x14\0", "got an archive or a spreadsheet. Unpack it, or save it as CSV"),
        (b"a,a\n1,2\n", "'a' more than once"),
        (b"a\n" + b"x" * 200_000, "not a CSV table"),
    ],
)
def test_what_is_no_table_says_where(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(TableError, match=said):
        read_csv(tmp_path / "t.csv")


def test_a_table_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be read"):
        read_csv(tmp_path)
