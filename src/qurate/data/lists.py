"""Domains from written lists: a text file of `path class` lines, or a CSV table."""

from __future__ import annotations

from pathlib import Path

from qurate.data.domains import Domain, domain_of
from qurate.data.list_files import list_named, list_table


def read_list(path: Path | str, root: Path | str, name: str | None = None) -> Domain:
    """A domain from a text file with one `path class` on each line.

    The class is the last word of the line, so paths may contain spaces. It is a name or an integer
    (-1 = unlabelled). Integers are named after the images' folders if each has exactly one folder name and
    the reverse; otherwise the integer itself is the name.

    Args:
        path: The list, UTF-8. Blank lines are ignored.
        root: The folder that the listed paths are relative to.
        name: What messages call the domain; the list's name if None.

    Raises:
        DataError: If the list or a listed file is missing, or a line has no class.
    """
    return domain_of(list_named(path, root, name))


def read_table(
    path: Path | str,
    root: Path | str,
    path_column: str | None = None,
    label_column: str = "label",
    name: str | None = None,
) -> Domain:
    """A domain from a CSV table with a column of paths and a column of class names.

    Args:
        path: The table, UTF-8, comma-separated, with a header line.
        root: The folder that the paths are relative to.
        path_column: Column of the paths; 'path' if None, or 'file' as in the tables that qurate writes.
        label_column: Column of the class names; empty (or -1 if all are integers) = unlabelled.
        name: What messages call the domain; the table's name if None.

    Raises:
        DataError: If the table, a column or a listed file is missing.
    """
    return domain_of(list_table(path, root, path_column, label_column, name))
