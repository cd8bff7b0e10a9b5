"""What speaks for a match, as numbers: the inputs of the networks that judge matches.

The first network sees descriptors and neighbours of all putative matches. Its judgement says
which matches are worth refining, and how much each counts as a neighbour. The second network sees
the same cues again, the agreement with neighbours weighted by the first judgement, and what the
refinement found. Every cue but those of the refinement is the same when the images are swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matchserve.types import Float32, Keypoints
from matchserve.vision.agreement import (
    TOLERANCES,
    Index,
    Neighbourhood,
    consensus,
    neighbourhood,
    similarities,
)
from matchserve.vision.alignment import stretch
from matchserve.vision.matching import Putative
from matchserve.vision.refine import Refinement

_PER_TOLERANCE = tuple(
    f"{name}_{limit:g}" for name in ("least_agreement", "most_agreement") for limit in TOLERANCES
)
FIRST_CUES = (
    "distance",
    "log_ratio_low",
    "log_ratio_high",
    "log_sigma",
    "log_scale_change",
    *_PER_TOLERANCE,
    "consensus",
    "log_matches",
    "mean_agreement",
)
SECOND_CUES = (
    *FIRST_CUES,
    "first_logit",
    *(f"weighted_{name}" for name in _PER_TOLERANCE),
    "least_neighbour_weight",
    "most_neighbour_weight",
    "weighted_consensus",
    "log_weight",
    "mean_weight",
    "is_refined",
    "correlation",
    "shift",
    "log_stretch",
    "log_area_change",
)
_MAX_LOGIT = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class FirstCues:
    """Cues (M, F) of putative matches before any refinement, and what the second cues reuse."""

    rows: Float32
    keypoints: tuple[Keypoints, Keypoints]
    maps: Float32
    neighbours: Index


def first_cues(putative: Putative, keypoints: tuple[Keypoints, Keypoints]) -> FirstCues:
    """Measure descriptors, scales and neighbours of matched keypoints, row i with row i."""
    one, other = keypoints
    count = len(putative.matches)
    maps = similarities(one, other)
    near = neighbourhood((one.xy, other.xy), maps)
    agreement = _both_ways(np.log1p(near.sums(np.ones(count, np.float32))))
    ratio = np.log(np.maximum(putative.ratio, 1e-3))
    change = np.log2(other.sigma / one.sigma)
    rows = [
        # From 0 for equal descriptors to 1 for opposite ones, for float and binary alike.
        np.sqrt(np.maximum(1 - putative.matches.score, 0)),
        ratio.min(axis=1),
        ratio.max(axis=1),
        np.log2(np.sqrt(one.sigma * other.sigma)),
        np.abs(change),
        *agreement.T,
        consensus(other.angle - one.angle, change, np.ones(count, np.float32)),
        np.full(count, np.log1p(count)),
        np.full(count, agreement[:, 1].mean() if count else 0.0),
    ]
    return FirstCues(np.stack(rows, axis=1).astype(np.float32), keypoints, maps, near.index)


def second_cues(first: FirstCues, judged: Float32, refinement: Refinement | None) -> Float32:
    """Add to the first cues what the first judgement `judged` (M,) and the refinement say."""
    one, other = first.keypoints
    count = len(judged)
    maps, xy1 = first.maps, other.xy
    if refinement is not None:
        maps, xy1 = refinement.affine, refinement.xy1
    # The refinement moves points too little to change their neighbours.
    near = neighbourhood((one.xy, xy1), maps, first.neighbours)
    agreement = _both_ways(np.log1p(near.sums(judged)))
    weight = _neighbour_weight(near, judged)
    change = np.log2(other.sigma / one.sigma)
    rows = [
        *first.rows.T,
        np.clip(_logit(judged), -_MAX_LOGIT, _MAX_LOGIT),
        *agreement.T,
        weight.min(axis=1),
        weight.max(axis=1),
        consensus(other.angle - one.angle, change, judged),
        np.full(count, np.log1p(judged.sum())),
        np.full(count, judged.mean() if count else 0.0),
        *_refinement_cues(refinement, count),
    ]
    return np.stack(rows, axis=1).astype(np.float32)


def _refinement_cues(refinement: Refinement | None, count: int) -> list[Float32]:
    if refinement is None:
        return [np.zeros(count, np.float32)] * 5
    done = refinement.is_refined
    longest, shortest = stretch(refinement.affine)
    ratio = np.log2(np.maximum(longest, 1e-6) / np.maximum(shortest, 1e-6))
    return [
        done.astype(np.float32),
        refinement.correlation,
        np.minimum(refinement.shift, 6.0),
        np.where(done, np.minimum(ratio, 4.0), 0.0),
        np.where(done, np.abs(refinement.area_change), 0.0),
    ]


def _both_ways(sums: Float32) -> Float32:
    """Agreement in both images (M, 2T) as the lesser and the greater of the two, (M, 2T)."""
    halves = sums.reshape(len(sums), 2, sums.shape[1] // 2)
    return np.concatenate([halves.min(axis=1), halves.max(axis=1)], axis=1)


def _neighbour_weight(near: Neighbourhood, judged: Float32) -> Float32:
    """Sum of the judgements of the neighbours in each image, (M, 2), as logarithm."""
    count = near.index.shape[1] // 2
    if count == 0:
        return np.zeros((len(judged), 2), np.float32)
    sums = judged[near.index].reshape(len(judged), 2, count).sum(axis=2)
    return np.asarray(np.log1p(sums), np.float32)


def _logit(probability: Float32) -> Float32:
    inside = np.clip(probability, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)), np.float32)
