"""Figures of merit on pairs of patches: FPR95, precision-recall, average precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Float64


@dataclass(frozen=True, slots=True, eq=False)
class PrecisionRecall:
    """A precision-recall curve from (recall 0, precision 1) on, and the area under it."""

    precision: Float64
    recall: Float64
    average_precision: float


def fpr95(distances: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of negative pairs accepted where 95 % of the positive ones are (HardNet's rule).

    `distances` (N,) smaller is more alike; `labels` (N,) true for matching pairs. The sort is
    stable: among equal distances the given order decides.
    """
    matching = _both_kinds(distances, labels)
    ordered = matching[np.argsort(distances, kind="stable")]
    wanted = 0.95 * ordered.sum()
    cut = int(np.argmax(np.cumsum(ordered) >= wanted))
    return float((~ordered[:cut]).sum() / (~ordered).sum())


def fpr95_hynet(distances: NDArray[Any], labels: NDArray[Any]) -> float:
    """FPR95 by HyNet's rule: one positive further, ties of the threshold counted as accepted."""
    matching = _both_kinds(distances, labels)
    positive = np.sort(distances[matching])
    index = min(int(np.ceil(len(positive) * 0.95)), len(positive) - 1)
    return float((distances[~matching] <= positive[index]).mean())


def precision_recall(
    scores: NDArray[Any], labels: NDArray[Any], positives: int | None = None
) -> PrecisionRecall:
    """Return the curve of `labels` sorted by falling `scores`, as HPatches' python code does.

    `positives` counts the positives that exist, if more than those in the list. Scores of minus
    infinity are cut off. The area is the trapezoid rule over recall.
    """
    matching = np.asarray(labels).astype(bool)
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    order = order[np.asarray(scores)[order] > -np.inf]
    hits = matching[order]
    total = int(matching.sum()) if positives is None else positives
    if total < int(matching.sum()):
        raise InvalidParameter(f"{total} positives declared, {int(matching.sum())} given")
    true = np.concatenate([[0], np.cumsum(hits)]).astype(np.float64)
    false = np.concatenate([[0], np.cumsum(~hits)]).astype(np.float64)
    recall = true / max(total, 1e-10)
    precision = np.maximum(true, 1e-10) / np.maximum(true + false, 1e-10)
    area = float((np.diff(recall) * (precision[1:] + precision[:-1])).sum() / 2)
    return PrecisionRecall(precision, recall, area)


def average_precision(
    scores: NDArray[Any], labels: NDArray[Any], positives: int | None = None
) -> float:
    """Area under `precision_recall`."""
    return precision_recall(scores, labels, positives).average_precision


def _both_kinds(distances: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.bool_]:
    matching: NDArray[np.bool_] = np.asarray(labels).astype(bool)
    if matching.shape != distances.shape or matching.all() or not matching.any():
        raise InvalidParameter("expected equally many distances and labels, of both kinds")
    return matching
