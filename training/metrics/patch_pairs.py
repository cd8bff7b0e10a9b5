"""Metrics on pairs of patches: FPR95, precision and recall, average precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Bool, Float32, Float64


@dataclass(frozen=True, slots=True, eq=False)
class PrecisionRecall:
    """A precision-recall curve that starts at recall 0, precision 1, and the area under it."""

    precision: Float64
    recall: Float64
    average_precision: float


def row_distance(left: NDArray[Any], right: NDArray[Any]) -> Float32:
    """Return the distance of each row of `left` to the same row of `right`.

    Euclidean for float descriptors, Hamming for packed bits (uint8).
    """
    if left.dtype == np.uint8:
        return np.asarray(np.bitwise_count(left ^ right).sum(axis=1), np.float32)
    return np.asarray(np.linalg.norm(left - right, axis=1), np.float32)


def fpr95(distances: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the share of non-matching pairs accepted at 95 % recall, by HardNet's rule.

    `distances` (N,): smaller is more similar. `labels` (N,): true for matching pairs. Pairs of
    equal distance are ranked in random order, always the same for the same input: lists begin with
    the matching pairs, so that ranking ties as given would favour coarse distances such as
    Hamming's.
    """
    matching = _with_both_labels(distances, labels)
    shuffled = np.random.default_rng(0).permutation(len(matching))
    ordered = matching[shuffled[np.argsort(distances[shuffled], kind="stable")]]
    wanted = 0.95 * ordered.sum()
    cut = int(np.argmax(np.cumsum(ordered) >= wanted))
    return float((~ordered[:cut]).sum() / (~ordered).sum())


def fpr95_hynet(distances: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return FPR95 by HyNet's rule: one positive more, and pairs at the threshold are accepted."""
    matching = _with_both_labels(distances, labels)
    positive = np.sort(distances[matching])
    index = min(int(np.ceil(len(positive) * 0.95)), len(positive) - 1)
    return float((distances[~matching] <= positive[index]).mean())


def precision_recall(
    scores: NDArray[Any], labels: NDArray[Any], positives: int | None = None
) -> PrecisionRecall:
    """Return the curve of `labels` ranked by decreasing `scores`, as the HPatches scripts do.

    `positives` is the number of positives that exist, if some are not in the list. Entries with a
    score of minus infinity are dropped. The area is computed by the trapezoid rule over recall.
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
    """Return the area under `precision_recall`."""
    return precision_recall(scores, labels, positives).average_precision


def _with_both_labels(distances: NDArray[Any], labels: NDArray[Any]) -> Bool:
    matching: NDArray[np.bool_] = np.asarray(labels).astype(bool)
    if matching.shape != distances.shape or matching.all() or not matching.any():
        raise InvalidParameter(
            "expected as many labels as distances, with matching and non-matching pairs"
        )
    return matching
