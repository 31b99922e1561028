"""Labels of source and target that models contradict which had not learned them: label_issues.csv."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.calibration import fit_temperature
from qurate.data.own_images import paths_of
from qurate.embedding.embed import MOST_IN_MEMORY
from qurate.errors import RunError
from qurate.run_results import LABEL_ISSUES, RunRecord
from qurate.runs.continue_from import whole_path
from qurate.runs.files import ISSUES_FILE
from qurate.runs.result_tables import read_run_table
from qurate.runs.setup import Run
from qurate.runtime.randomness import generator
from qurate.selection.crossfit import HeldOut

RIDGE = 0.1
"""Weight of the penalty, as a share of the mean eigenvalue. Our choice: of 0.01 to 1, the best of two folders."""
MOST_LISTED = 200
"""Rows of label_issues.csv. Our choice: more than a person looks at at once; the next run lists the next."""
_SHARPEST = 100.0
"""Predictions lie between 0 and 1, about; they are multiplied by at most this."""


def draw_judged(images: int, seed: int) -> tuple[Tensor, list[str]]:
    """The source images whose labels are judged, as positions: all, or of very many some; and a note that says so."""
    if images <= MOST_IN_MEMORY:
        return torch.arange(images), []
    drawn = torch.randperm(images, generator=generator(seed, 32))[:MOST_IN_MEMORY].sort().values
    some = f"{len(drawn):,} of the {images:,} source images, drawn at random"
    return drawn, [f"Labels that may be wrong were looked for among {some}."]


def leave_one_out(embeddings: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Log-probabilities of each image by a linear model of all the others, (N, K).

    Ridge regression of the classes as 0 and 1 on embeddings of length 1. What the model of all other images predicts
    for an image follows from the model f of all (Allen, 1974), so that one decomposition serves all images:

        y_i - (y_i - f(x_i)) / (1 - h_i),  h_i = w_i (1 / sum_j w_j + (x_i - m)^T A^-1 (x_i - m))

    with A = sum_j w_j (x_j - m)(x_j - m)^T + penalty, m the weighted mean, and weights w such that classes count alike.
    The predictions are divided by the temperature under which the labels are most likely.

    Costs about 4 N D^2 operations and four arrays of N x D, whatever K is.

    Args:
        embeddings: (N, D).
        labels: (N,) int64.
        n_classes: K, at least 2.

    Returns:
        NaN in the rows of images that are alone in their class.
    """
    sizes = torch.bincount(labels, minlength=n_classes)
    weights = (len(labels) / (n_classes * sizes[labels])).float()
    total = weights.sum()
    points = F.normalize(embeddings.float(), dim=1)
    points = points - weights @ points / total
    named = F.one_hot(labels, n_classes).float()
    base = weights @ named / total
    weighted = points * weights[:, None]
    gram = (points.T @ weighted).double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + 1e-9)
    root = torch.linalg.cholesky(gram).float()
    predicted = points @ torch.cholesky_solve(weighted.T @ (named - base), root) + base
    within = torch.linalg.solve_triangular(root, points.T, upper=False).square().sum(dim=0)
    leverage = (weights * (1 / total + within)).clamp(max=1 - 1e-6)
    scores = named - (named - predicted) / (1 - leverage)[:, None]
    log_probs, judged = F.log_softmax(_SHARPEST * scores.double(), dim=1), sizes[labels] > 1
    if bool(judged.any()):
        log_probs = F.log_softmax(log_probs / fit_temperature(log_probs[judged], labels[judged]), dim=1)
    return log_probs.masked_fill(~judged[:, None], torch.nan).float()


def find_label_issues(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Images whose label is contradicted, the least probable label first, as positions.

    Confident learning (Northcutt et al., 2021): the predicted class is not the label, and its probability is at least
    the mean that images labelled with that class have for it. It must also be at least one half (our choice): where
    classes are hard, that mean can be low.

    Args:
        log_probs: By models that had not learned from the image, (N, K); NaN where there are none.
        labels: (N,) int64.
    """
    probabilities = log_probs.double().exp().nan_to_num(0)
    judged = ~log_probs.isnan().any(dim=1)
    own = probabilities.gather(1, labels[:, None]).squeeze(1)
    sums, sizes = (
        torch.zeros(log_probs.shape[1], dtype=torch.float64).index_add_(0, labels[judged], each[judged])
        for each in (own, torch.ones_like(own))
    )
    sure, predicted = probabilities.max(dim=1)
    least = (sums / sizes)[predicted].clamp(min=0.5)  # NaN, which nothing reaches, for a class without images
    contradicts = judged & (predicted != labels) & (sure >= least)
    found = contradicts.nonzero().squeeze(1)
    return found[own[found].argsort(stable=True)]


def label_issue_table(
    files: Sequence[str],
    part: str,
    labels: Tensor,
    log_probs: Tensor,
    classes: Sequence[str],
    checked: Collection[str] = (),
) -> pd.DataFrame:
    """The contradicted labels of a part, with the columns `LABEL_ISSUES`.

    Args:
        files: The images, (N,).
        part: 'source' or 'labeled'.
        labels: (N,) int64.
        log_probs: By models that had not learned from the image, (N, K).
        classes: Their names.
        checked: Files whose labels people have confirmed or given; they are left out.
    """
    found = [i for i in find_label_issues(log_probs, labels).tolist() if files[i] not in checked]
    probabilities, predicted = log_probs[found].exp(), log_probs[found].argmax(dim=1)
    own = probabilities.gather(1, labels[found][:, None]).squeeze(1)
    columns = (
        [files[i] for i in found],
        [""] * len(found),
        [part] * len(found),
        [classes[k] for k in labels[found].tolist()],
        [classes[k] for k in predicted.tolist()],
        probabilities.gather(1, predicted[:, None]).squeeze(1).tolist(),
        own.tolist(),
    )
    return pd.DataFrame(dict(zip(LABEL_ISSUES, columns, strict=True)))


def rank_label_issues(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Contradicted labels of several parts in one table, the least probable label first; at most `MOST_LISTED`."""
    found = [table for table in tables if len(table)]
    if not found:
        return pd.DataFrame(columns=LABEL_ISSUES)
    ranked = pd.concat(found).sort_values("given_probability", kind="stable", ignore_index=True)
    return ranked.head(MOST_LISTED)


def add_label_issues(run: Run, record: RunRecord) -> RunRecord:
    """The record with the labels of source and target that a linear model contradicts, trained without the image."""
    if run.setup.folder is None:
        return record
    data = run.data
    shown = data.files if run.setup.train == "full" else data.split
    source, labeled = shown.source, shown.target_labeled
    of_source, note = draw_judged(len(source), run.setup.config.seed)
    embeddings = [run.embed_before(part.inputs).cpu() for part in (source, labeled)]
    labels = torch.cat([source.labels.cpu()[of_source], labeled.labels.cpu()])
    log_probs = leave_one_out(torch.cat([embeddings[0][of_source], embeddings[1]]), labels, data.split.n_classes)
    files = record.source["file"].tolist()  # none where the source is drawn
    tables = [
        label_issue_table(files, part, labels[rows], log_probs[rows], record.classes, checked_labels(run))
        for part, files, rows in (
            ("source", [files[i] for i in of_source.tolist()] if files else [], slice(len(of_source))),
            ("labeled", record.labeled["file"].tolist(), slice(len(of_source), None)),
        )
        if files
    ]
    return replace(record, label_issues=rank_label_issues(tables), notes=(*record.notes, *note))


def add_held_out_issues(run: Run, record: RunRecord, held_out: HeldOut) -> RunRecord:
    """The record with what the folds say of the labels of held-out images, in place of what the linear model said."""
    if run.setup.folder is None:
        return record
    files = [record.labeled["file"][i] for i in held_out.images.tolist()]
    table = label_issue_table(files, "labeled", held_out.labels, held_out.adapted, record.classes, checked_labels(run))
    others = record.label_issues[~record.label_issues["file"].isin(files)]
    return replace(record, label_issues=rank_label_issues([others, table]))


def checked_labels(run: Run) -> set[str]:
    """Labelled images whose labels people have confirmed or corrected, as the record names them."""
    answers, split = run.setup.answers, run.data.files
    said = set() if answers is None else {whole_path(row.file) for row in answers.current.values()}
    files = (str(path) for part in (split.source, split.target_labeled) for path in paths_of(part))
    return {file for file in files if whole_path(file) in said} if said else set()


def read_label_issues(folder: Path) -> pd.DataFrame:
    """The labels that a finished run doubts, the worst first.

    Returns:
        Columns as `LABEL_ISSUES`, the last two as numbers. An answer about such a file replaces its label in the next
        run that learns from the answers.

    Raises:
        RunError: If the table is missing or damaged.
    """
    table = read_run_table(folder, ISSUES_FILE, *LABEL_ISSUES)[LABEL_ISSUES]
    try:
        return table.assign(**{name: pd.to_numeric(table[name]) for name in LABEL_ISSUES[-2:]})
    except ValueError as error:
        raise RunError(f"{folder / ISSUES_FILE}: damaged ({error}). Adapt again.") from error
