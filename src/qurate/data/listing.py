"""Image files of a domain as they are found on disk, before they become samples: folders. Loads no torch."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from qurate.data.class_names import compose_name
from qurate.embedding.digests import HashedFile
from qurate.errors import DataError
from qurate.runtime.paths import IMAGE_SUFFIXES, as_path, is_file, is_folder, list_some, shorten
from qurate.runtime.tables import is_text


class DataWarning(UserWarning):
    """Data that was left out or cut short; the message counts and names it."""


HIDDEN, NO_IMAGE, REPEATED, UNNAMED = "hidden", "not an image file", "named more than once", "no class is given"
"""Reasons for which a file is skipped that has no fault."""


@dataclass(frozen=True)
class Skipped:
    """A file that was found but is no sample, and why."""

    path: Path
    reason: str

    @property
    def is_broken(self) -> bool:
        """Whether it is an image that cannot be used."""
        return self.reason not in (HIDDEN, NO_IMAGE, REPEATED, UNNAMED)


@dataclass(frozen=True)
class Listing:
    """Image files of one domain.

    Args:
        name: What messages call it.
        paths: N files.
        labels: Class index of each; -1 where unlabelled.
        classes: Class names; a label is an index into them. Empty if nothing is labelled.
        skipped: Files that were found beside them but are no samples.
    """

    name: str
    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def without(self, unreadable: Mapping[Path, str]) -> Listing:
        """The listing without its unreadable files, which move to `skipped`; a warning counts and names them.

        Args:
            unreadable: Files, of this listing or not, and why they cannot be read.

        Raises:
            DataError: If no file can be read.
        """
        broken = [Skipped(path, unreadable[path]) for path in self.paths if path in unreadable]
        if not broken:
            return self
        found = f"{len(broken)} of {len(self)} images of '{self.name}' cannot be read"
        named = list_some(skip.path for skip in broken)
        if len(broken) == len(self):
            raise DataError(f"{found}: {named}. Replace the files; at least one readable image is needed.")
        warnings.warn(f"{found} and are left out: {named}.", DataWarning, stacklevel=3)
        sound = [i for i, path in enumerate(self.paths) if path not in unreadable]
        return self._keep(sound, broken)

    def without_unnamed(self) -> Listing:
        """The listing without the files whose class is not given, which nobody has labelled yet; they are `skipped`.

        Where no file has a class it stays as it is: what is refused later says so.
        """
        named = [i for i, label in enumerate(self.labels) if label >= 0]
        if not named or len(named) == len(self):
            return self
        unnamed = [Skipped(path, UNNAMED) for path, label in zip(self.paths, self.labels, strict=True) if label < 0]
        return self._keep(named, unnamed)

    def _keep(self, chosen: Sequence[int], skipped: Sequence[Skipped]) -> Listing:
        paths, labels = tuple(self.paths[i] for i in chosen), tuple(self.labels[i] for i in chosen)
        return replace(self, paths=paths, labels=labels, skipped=(*self.skipped, *skipped))


def join_listings(listings: Sequence[Listing]) -> Listing:
    """All images of several domains with labels into the union of their classes, in the order in which they come.

    Raises:
        DataError: If an image is in two of them.
    """
    if len(listings) == 1:
        return listings[0]
    classes = tuple(dict.fromkeys(name for listing in listings for name in listing.classes))
    place = {name: i for i, name in enumerate(classes)}
    paths = tuple(path for listing in listings for path in listing.paths)
    if twice := [path for path, times in Counter(paths).items() if times > 1]:
        raise DataError(
            f"`source`: {list_some(twice, 3)} {'is' if len(twice) == 1 else 'are'} in two of the sources. Each image "
            "must be in one of them."
        )
    labels = tuple(
        place[listing.classes[label]] if label >= 0 else -1 for listing in listings for label in listing.labels
    )
    skipped = tuple(skip for listing in listings for skip in listing.skipped)
    return Listing(" + ".join(listing.name for listing in listings), paths, labels, classes, skipped)


def describe_sources(sources: Mapping[str, Sequence[str]], classes: Sequence[str]) -> list[str]:
    """A sentence on each of several sources: its images, how many per class, and which classes it lacks.

    Args:
        sources: The class of each image, by the name of the source.
        classes: All of the run, or of the sources together.
    """
    said = []
    for name, labels in sources.items():
        counts = Counter(labels)
        lacks = [each for each in classes if not counts[each]]
        without = f", none of {list_some(lacks, 5)}" if lacks else ""
        said.append(f"Source '{name}': {len(labels)} images, {describe_counts(counts)}{without}.")
    return said


def describe_counts(counts: Mapping[str, int]) -> str:
    """Images per class, as '8 to 40 in each of 3 classes'; 'all in one class' where there is no other."""
    if len(counts) < 2:
        return "all in one class" if counts else "none with a class"
    return f"{describe_range(counts.values())} in each of {len(counts)} classes"


def describe_range(numbers: Collection[int]) -> str:
    """'40', or '8 to 40' where they differ."""
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def find_new(unlabeled: Listing, labeled: Listing, contents: Mapping[Path, HashedFile]) -> list[int]:
    """Positions of the unlabelled images that are not the same as a labelled one, by content.

    Raises:
        DataError: If there are fewer than two.
    """
    known = {contents[path].digest for path in labeled.paths}
    kept = [i for i, path in enumerate(unlabeled.paths) if contents[path].digest not in known]
    if len(kept) < 2:
        raise DataError(
            f"unlabeled ('{unlabeled.name}') must hold at least two images that labeled ('{labeled.name}') does not, "
            f"got {len(kept)} among {len(unlabeled)}. Point it at the unlabelled ones; adaptation learns from many."
        )
    return kept


def list_class_folders(path: Path | str, name: str | None = None) -> Listing:
    """The images of a folder of class folders; see `qurate.read_folder`."""
    root, files = list_folder(path)
    folders = [child.name for child in root.iterdir() if child.is_dir()]
    classes = sorted({compose_name(folder) for folder in folders if not folder.startswith(".")})
    if not classes:
        raise DataError(
            f"{root} must hold one folder for each class, got none. Sort the images into class folders, or give the "
            "folder that holds those."
        )
    if strange := [name for name in classes if not is_text(name)]:
        raise DataError(
            f"{root}: class folders must have names in UTF-8, got {list_some(map(ascii, strange), 3)}"
            f"{_locale_hint(strange)}. Rename them."
        )
    images, skipped = _scan(root, files, in_class_folders=True)
    labels = tuple(classes.index(compose_name(image.relative_to(root).parts[0])) for image in images)
    return Listing(name or root.resolve().name, tuple(images), labels, tuple(classes), skipped)


def list_any_folder(path: Path | str, name: str | None = None) -> Listing:
    """The images in or below a folder, without labels; see `qurate.read_unlabeled_folder`."""
    root, files = list_folder(path)
    images, skipped = _scan(root, files, in_class_folders=False)
    return Listing(name or root.resolve().name, tuple(images), (-1,) * len(images), (), skipped)


def _locale_hint(names: Sequence[str]) -> str:
    """Whether it is only the locale that keeps names from being read."""
    try:
        b"".join(map(os.fsencode, names)).decode()
    except UnicodeError:
        return ""
    encoding = sys.getfilesystemencoding()
    return f", which are read as {encoding} because of the locale; set PYTHONUTF8=1, or a locale such as C.UTF-8"


def list_folder(path: Path | str) -> tuple[Path, list[Path]]:
    """The folder, and all files below it in an order that is the same on every machine."""
    root = as_path(path, "path", "a folder")
    if not is_folder(root):
        came = "a file" if is_file(root) else "does not exist"
        raise DataError(f"path must be an existing folder, got {shorten(root)} ({came}). Check the path.")
    try:
        files = list(_walk(root))
    except OSError as error:
        raise DataError(f"{root} cannot be listed ({error}). Check who may read it.") from error
    return root, sorted(files, key=lambda file: [compose_name(part) for part in file.relative_to(root).parts])


def _scan(root: Path, files: Sequence[Path], *, in_class_folders: bool) -> tuple[list[Path], tuple[Skipped, ...]]:
    """The images among the files of a folder, and what is left out."""
    images, skipped, broken = [], [], []
    for file in files:
        parts = file.relative_to(root).parts
        if any(part.startswith(".") for part in parts):
            skipped.append(Skipped(file, HIDDEN))
        elif file.suffix.lower() not in IMAGE_SUFFIXES:
            skipped.append(Skipped(file, NO_IMAGE))
        elif in_class_folders and len(parts) == 1:
            skipped.append(Skipped(file, "image outside the class folders"))
        elif reason := _why_broken(file):
            broken.append(Skipped(file, reason))
        else:
            images.append(file)
    if broken and images:
        warnings.warn(
            f"{root}: {len(broken)} of {len(broken) + len(images)} images are broken and left out: "
            f"{list_some(b.path.relative_to(root) for b in broken)}. Replace or remove them.",
            DataWarning,
            stacklevel=4,
        )
    left_out = (*skipped, *broken)
    if not images:
        reasons = f": {list_some((f'{skip.path.name}: {skip.reason}' for skip in left_out), 3)}" if left_out else ""
        raise DataError(
            f"{root} must hold at least one readable image ({', '.join(sorted(IMAGE_SUFFIXES))}), "
            f"got none among {len(left_out)} files{reasons}."
        )
    return images, left_out


def _walk(root: Path) -> Iterator[Path]:
    """Every file below, through links to folders too, but not round in a circle."""
    folders: list[tuple[Path, tuple[str, ...]]] = [(root, (os.path.realpath(root),))]
    while folders:  # no recursion, for folders may be deep
        folder, real = folders.pop()
        for child in folder.iterdir():
            if not child.is_dir():
                yield child
                continue
            target = os.path.realpath(child) if child.is_symlink() else f"{real[-1]}{os.sep}{child.name}"
            if target not in real:
                folders.append((child, (*real, target)))


def _why_broken(file: Path) -> str | None:
    """The reason if the file's head is no image's; damage deeper inside shows on decoding."""
    if not file.is_file():
        return "broken link or no regular file"
    try:
        with Image.open(file):
            return None
    except Exception as error:  # PIL's format readers raise whatever their parsers meet
        return f"cannot be opened as an image ({type(error).__name__})"
