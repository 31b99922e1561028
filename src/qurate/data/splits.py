"""A split: source, the few labelled target samples, the many unlabelled ones, and validation.

The true labels of the unlabelled part are sealed here, where the split is made, and are kept nowhere else.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from qurate.data.domains import Domain, domain_of, match_classes
from qurate.data.images import ImageFiles
from qurate.data.list_files import ListedFile, list_repeated, move_rows, parse_list
from qurate.data.listing import DataWarning
from qurate.data.samples import DataError, Labeled, SealedLabels, Split, Unlabeled, check_integer, describe
from qurate.runtime.paths import list_some


def split_target(source: Domain, target: Domain, *, shots: int, seed: int, validation_shots: int = 0) -> Split:
    """Draw the labelled target samples, and validation, at random from each class.

    Each class is put in a random order once: labelled samples come from its beginning, validation from its
    end, the rest is unlabelled. So the n-shot set lies inside the (n+1)-shot set of the same seed, validation
    is the same for all shots, and all parts are disjoint. Files are drawn by name: their order in the domain
    does not matter.

    A class with too few samples is cut short with a warning. One sample stays unlabelled, validation takes at
    most half of the others, and at least one is labelled.

    Args:
        source: Labelled samples of at least two classes.
        target: Labelled samples of the same classes; its unlabelled ones join the unlabelled part.
        shots: Labelled target samples of each class, at least 1.
        seed: Seed of the draw, at least 0.
        validation_shots: Validation samples of each class.

    Raises:
        DataError: If classes differ between the domains or one has no sample.

    Example:
        >>> from qurate.data.domains import from_arrays
        >>> photos, sketches = (from_arrays(np.zeros((8, 5)), ["cat", "dog"] * 4, name=name) for name in ("a", "b"))
        >>> split = split_target(photos, sketches, shots=3, seed=0)
        >>> len(split.target_labeled), len(split.target_unlabeled)
        (6, 2)
    """
    for argument, value, least in (("shots", shots, 1), ("seed", seed, 0), ("validation_shots", validation_shots, 0)):
        check_integer(f"split_target: {argument}", value, least)
    _check_domains("split_target", source=source, target=target)
    if not target.classes:
        raise DataError(
            f"split_target: target ('{target.name}') must have labels to draw from, but all {len(target)} samples are "
            "unlabelled. Label a few of each class and use split_parts."
        )
    source, target = match_classes(source, target)
    _check_parts("split_target", source, target)
    labeled, validation, short = [], [], []
    for label, name in enumerate(source.classes):
        members = _shuffled_class(target, label, np.random.default_rng((seed, label)))
        n_validation = min(validation_shots, (len(members) - 1) // 2)  # whatever shots are
        n_labeled = max(1, min(shots, len(members) - n_validation - 1))
        labeled += members[:n_labeled]
        validation += members[len(members) - n_validation :]
        if n_labeled < shots or n_validation < validation_shots:
            short.append(f"{name} ({len(members)} samples: {n_labeled} labelled, {n_validation} for validation)")
    if short:
        warnings.warn(
            f"split_target: {len(short)} of {len(source.classes)} classes of '{target.name}' have too few samples "
            f"for {shots} shots and {validation_shots} for validation, and get fewer: {list_some(short, 20)}.",
            DataWarning,
            stacklevel=2,
        )
    rest = np.setdiff1d(np.arange(len(target)), labeled + validation)
    return Split(
        source.classes,
        _labeled(source),
        _labeled(target.keep(torch.tensor(labeled))),
        _sealed(target.keep(torch.from_numpy(rest))),
        _labeled(target.keep(torch.tensor(validation))) if validation else None,
    )


def split_parts(source: Domain, labeled: Domain, unlabeled: Domain, validation: Domain | None = None) -> Split:
    """A split from parts that are separate already, say in folders of their own.

    Args:
        source: Labelled samples of at least two classes; their order of classes is kept.
        labeled: Labelled target samples, at least one of each class.
        unlabeled: Target samples. Labels, if it has any, are sealed and serve evaluation only.
        validation: Labelled target samples for model selection; it may lack classes.

    Raises:
        DataError: If class names do not match or a part that needs labels lacks them.
    """
    _check_domains("split_parts", source=source, labeled=labeled, unlabeled=unlabeled)
    if validation is not None:
        _check_domains("split_parts", validation=validation)
    source, labeled = match_classes(source, labeled)
    _check_parts("split_parts", source, labeled)
    unlabeled = _into_classes(unlabeled, source, "unlabeled")
    _check_same_kind(source, unlabeled)
    if validation is not None:
        validation = _into_classes(validation, source, "validation")
        _check_same_kind(source, validation)
        _check_all_labeled(validation)
    return Split(
        source.classes,
        _labeled(source),
        _labeled(labeled),
        _sealed(unlabeled),
        None if validation is None else _labeled(validation),
    )


def read_mme_split(
    root: Path | str,
    source: str,
    target: str,
    shots: int,
    protocol: Literal["mme", "clean"] = "mme",
    lists: Path | str | None = None,
    folders: Mapping[str, str] | None = None,
) -> Split:
    """A split from the public list files of the MME reference code.

    Under `mme` the parts are exactly as listed: validation lies inside the unlabelled part, and in 1-shot
    partly inside the labelled one. Under `clean` a validation image that is labelled leaves validation, and
    the others leave the unlabelled part, so that all parts are disjoint.

    Args:
        root: The folder that the listed paths are relative to.
        source: A domain as the lists name it, such as `webcam`.
        target: Another one.
        shots: 1 or 3, the shots that lists were published for.
        protocol: `mme` to compare with the literature, `clean` for honest model selection.
        lists: The folder of the lists; `root/splits` if None.
        folders: Folders that are called otherwise on disk than in the lists, as `{"Real": "Real World"}`.

    Raises:
        DataError: If a list or a listed file is missing.

    Example:
        >>> read_mme_split("data/office31", "webcam", "amazon", shots=3)  # needs the images  # doctest: +SKIP
    """
    if protocol not in ("mme", "clean"):
        raise DataError(f"read_mme_split: protocol must be 'mme' or 'clean', got '{protocol}'.")
    for argument, value in {"root": root, "lists": root if lists is None else lists}.items():
        if not isinstance(value, str | os.PathLike):
            raise DataError(f"read_mme_split: {argument} must be the path of a folder, got {describe(value)}.")
    if source == target:
        raise DataError(f"read_mme_split: source and target must differ, got '{source}' for both.")
    parts = _read_mme_lists(Path(root) / "splits" if lists is None else Path(lists), source, target, shots)
    if protocol == "clean":
        source_rows, labeled, unlabeled, validation = parts
        taken = {row.path for row in labeled}
        validation = [row for row in validation if row.path not in taken]
        taken |= {row.path for row in validation}
        parts = [source_rows, labeled, [row for row in unlabeled if row.path not in taken], validation]
    rows = move_rows([row for part in parts for row in part], folders or {})
    where = f"read_mme_split: {source} to {target}, {shots} shots"
    domain = domain_of(list_repeated(rows, Path(root), name=where, where=where))
    _check_all_labeled(domain)
    ends = accumulate((len(part) for part in parts), initial=0)
    pieces = [domain.keep(torch.arange(start, end)) for start, end in pairwise(ends)]
    return Split(domain.classes, _labeled(pieces[0]), _labeled(pieces[1]), _sealed(pieces[2]), _labeled(pieces[3]))


def _read_mme_lists(folder: Path, source: str, target: str, shots: int) -> list[list[ListedFile]]:
    files = [
        folder / f"labeled_source_images_{source}.txt",
        folder / f"labeled_target_images_{target}_{shots}.txt",
        folder / f"unlabeled_target_images_{target}_{shots}.txt",
        folder / f"validation_target_images_{target}_3.txt",  # published once, used for every number of shots
    ]
    if missing := [file.name for file in files if not file.is_file()]:
        there = sorted(file.name for file in folder.glob("*_images_*.txt"))
        raise DataError(
            f"read_mme_split: {folder} must hold the lists of '{source}' and '{target}' for {shots} shots, but lacks "
            f"{list_some(missing)}. It has {list_some(there) or 'no lists'}. Check lists, source, target and shots."
        )
    return [parse_list(file) for file in files]


def _shuffled_class(target: Domain, label: int, generator: np.random.Generator) -> list[int]:
    members: list[int] = torch.nonzero(target.labels == label).flatten().tolist()
    if isinstance(target.inputs, ImageFiles):
        paths = target.inputs.paths
        members.sort(key=lambda i: paths[i].as_posix())
    return [members[i] for i in generator.permutation(len(members))]


def _labeled(domain: Domain) -> Labeled:
    return Labeled(domain.inputs, domain.labels)


def _sealed(domain: Domain) -> Unlabeled:
    known = bool((domain.labels >= 0).any())
    return Unlabeled(domain.inputs, SealedLabels(domain.labels) if known else None)


def _into_classes(part: Domain, source: Domain, argument: str) -> Domain:
    """The part with labels into the source's classes; it may lack some but has no others."""
    if strange := [name for name in part.classes if name not in source.classes]:
        raise DataError(
            f"{argument} ('{part.name}') may only have the source's classes "
            f"({list_some(source.classes)}), got also {list_some(strange)}. Rename or remove them, or read "
            "images of unknown class with read_unlabeled_folder."
        )
    table = torch.tensor([source.classes.index(name) for name in part.classes] + [-1])
    return Domain(part.name, part.inputs, table[part.labels], source.classes, part.skipped)


def _check_domains(caller: str, **domains: object) -> None:
    for argument, domain in domains.items():
        if not isinstance(domain, Domain):
            raise DataError(
                f"{caller}: {argument} must be a Domain, as read_folder and from_arrays make, got {describe(domain)}."
            )


def _check_parts(caller: str, source: Domain, target: Domain) -> None:
    if len(source.classes) < 2:
        raise DataError(
            f"source ('{source.name}') must have at least two classes, got "
            f"{list_some(source.classes) or 'none'}. If class folders lie one level deeper, read that folder."
        )
    _check_all_labeled(source)
    if caller == "split_parts":
        _check_all_labeled(target)
    _check_same_kind(source, target)
    for domain in (source, target):
        sizes = domain.class_sizes().tolist()
        if empty := [name for name, size in zip(domain.classes, sizes, strict=True) if size == 0]:
            raise DataError(
                f"every class needs a labelled sample in '{domain.name}', but {len(empty)} have none: "
                f"{list_some(empty)}. Add samples, or remove the class from both domains."
            )


def _check_all_labeled(domain: Domain) -> None:
    if unlabeled := int((domain.labels < 0).sum()):
        raise DataError(
            f"all samples of '{domain.name}' must be labelled, but {unlabeled} of {len(domain)} are not. "
            "Label them or leave them out."
        )


def _check_same_kind(first: Domain, second: Domain) -> None:
    kinds = [
        f"tensors of shape {tuple(domain.inputs.shape[1:])}" if isinstance(domain.inputs, Tensor) else "image files"
        for domain in (first, second)
    ]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"inputs of all parts must be alike, got {kinds[0]} in '{first.name}' and {kinds[1]} in "
            f"'{second.name}'. Read or embed both in the same way."
        )
