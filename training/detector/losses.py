"""What a pair of score maps is judged by: that both are highest at the same places.

`place_loss` is that of Key.Net (Barroso-Laguna et al. 2019): in windows of several sizes, the soft
maximum of one map is compared with the highest place of the other one. `choice_loss` is the
expected share of keypoints that both images choose and that show one point, the more exactly the
better. Places are those of a quadratic fit, as in `matchserve.vision.score_peaks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional

from matchserve.types import Bool, Float64
from training.detector.network import BORDER
from training.metrics.image_pairs import apply_homography

PEAK_SIDE = 5
"""A keypoint is the highest score in a square of this side."""
WINDOWS = ((8, 1.0), (16, 0.5), (24, 0.25), (40, 0.1))
"""Sides, in pixels, and weights of the windows of the place loss; a step moves them by up to 7."""
_SHARPNESS = 8.0
_MOST_IMPORTANT = 1e4
_LEAST_WINDOWS, _LEAST_KEYPOINTS = 2, 20
_TEMPERATURE = 0.15  # in standard deviations of the scores of an image


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """The homography from one image to the other, and which pixels of both are known (H, W)."""

    homography: Float64
    known: tuple[Bool, Bool]

    def reversed(self) -> Relation:
        """Return the relation from the other image to this one."""
        return Relation(np.asarray(np.linalg.inv(self.homography)), self.known[::-1])


@dataclass(frozen=True, slots=True, eq=False)
class Warped:
    """The score map of the other image seen in this one (H, W), and where it is seen."""

    score: Tensor
    is_seen: Tensor


def warp(score: Tensor, relation: Relation) -> Warped:
    """Sample the other score map at the places of this one."""
    xy, is_seen = _places(relation)
    last = np.array(score.shape[::-1]) - 1
    grid = torch.from_numpy(np.clip(2 * xy / last - 1, -2, 2)).to(score.dtype)
    sampled = functional.grid_sample(score[None, None], grid[None], align_corners=True)
    return Warped(sampled[0, 0], torch.from_numpy(is_seen))


def place_loss(
    score: Tensor, other: Warped, windows: Sequence[tuple[int, float]], offset: int
) -> Tensor:
    """Compare the soft maximum of each window with the highest place of the other map.

    `windows` are their sides, in pixels, and weights; `offset` is the first row and column.
    """
    loss = score.new_zeros(())
    for side, weight in windows:
        mine, theirs, seen = (
            _windows(each, side, offset)
            for each in (score, other.score, other.is_seen.to(score.dtype))
        )
        is_whole = seen.amin(1) > 0
        if int(is_whole.sum()) < _LEAST_WINDOWS:
            continue
        mine, theirs = mine[is_whole], theirs[is_whole]
        places = torch.stack(torch.meshgrid(*[torch.arange(side)] * 2, indexing="ij"), -1)
        places = places.view(-1, 2).to(score.dtype)
        soft = torch.softmax(_SHARPNESS * mine, 1) @ places
        distance = (soft - places[theirs.argmax(1)]).square().sum(1)
        # Windows with high scores count more: so scores are learned to be high where places agree.
        importance = (mine.amax(1) + theirs.amax(1)).exp().clamp_max(_MOST_IMPORTANT)
        loss = loss + weight * (importance * distance).sum() / importance.sum() / side
    return loss


def choice_loss(
    scores: Tensor, relation: Relation, share: float, radius_px: float, exact_px: float
) -> Tensor:
    """Return the negative share of keypoints that both images choose, of those seen in both.

    Each image chooses a `share` of its keypoints. Two keypoints (pixels) within `radius_px` show
    one point, which counts less if their refined places are apart: exp(-d^2 / (2 exact_px^2)).
    """
    places, found = [], []
    for score, to_other in zip(scores, (relation, relation.reversed()), strict=True):
        is_seen = torch.from_numpy(_places(to_other)[1])
        rows = (peaks(score.detach()) & is_seen).nonzero()
        places.append(rows)
        found.append(rows.numpy()[:, ::-1].astype(np.float64))
    if min(len(each) for each in places) < _LEAST_KEYPOINTS:
        return scores.new_zeros(())
    same = torch.from_numpy(correspondences(relation.homography, found[0], found[1], radius_px))
    chances = [
        chance_chosen(score[rows[:, 0], rows[:, 1]], share)
        for score, rows in zip(scores, places, strict=True)
    ]
    one, other = (refined(scores[k], places[k][same[:, k]]) for k in (0, 1))
    distance = (_moved(one, relation.homography) - other).square().sum(1)
    exactness = (-distance / (2 * exact_px**2)).exp()
    both = chances[0][same[:, 0]] * chances[1][same[:, 1]] * exactness
    return -both.sum() / (share * min(len(each) for each in places))


def peaks(score: Tensor) -> Tensor:
    """Return where the scores (H, W) are the highest around, away from the border."""
    highest = functional.max_pool2d(score[None, None], PEAK_SIDE, 1, PEAK_SIDE // 2)[0, 0]
    height, width = score.shape
    return (score == highest) & torch.from_numpy(_inside((height, width)))


def refined(score: Tensor, places: Tensor) -> Tensor:
    """Return the places (N, 2), as x and y, of quadratics fitted to 3 x 3 scores.

    `places` are rows and columns (N, 2) of maxima inside of the map.
    """
    row, column = places.T
    a, b, c, d, e, f, g, h, i = (
        score[row + down, column + right] for down in (-1, 0, 1) for right in (-1, 0, 1)
    )
    gx, gy = (c + f + i - a - d - g) / 6, (g + h + i - a - b - c) / 6
    xx = (a + c + d + f + g + i - 2 * (b + e + h)) / 3
    yy = (a + b + c + g + h + i - 2 * (d + e + f)) / 3
    xy = (a - c - g + i) / 4
    determinant = xx * yy - xy**2
    fits = (determinant > 1e-9) & (xx < 0)
    safe = torch.where(fits, determinant, 1.0)
    right = torch.where(fits, (xy * gy - yy * gx) / safe, 0.0).clamp(-0.5, 0.5)
    down = torch.where(fits, (xy * gx - xx * gy) / safe, 0.0).clamp(-0.5, 0.5)
    return torch.stack([column + right, row + down], 1)


def chance_chosen(score: Tensor, share: float) -> Tensor:
    """Return the chance of each candidate (N,) to be chosen; the mean chance is `share`.

    The scores are divided by their standard deviation: otherwise larger scores of the same order,
    which choose the same keypoints, would be learned.
    """
    score = score / score.std().clamp_min(1e-6)
    fixed = score.detach() / _TEMPERATURE
    low, high = fixed.min() - 20, fixed.max() + 20
    for _ in range(40):
        middle = (low + high) / 2
        if float(torch.sigmoid(fixed - middle).mean()) > share:
            low = middle
        else:
            high = middle
    slope = torch.sigmoid(fixed - low) * torch.sigmoid(low - fixed)
    # The threshold moves with the scores so that the mean stays: its derivative is implicit.
    moves = (slope / slope.sum() * (score - score.detach()) / _TEMPERATURE).sum()
    return torch.sigmoid(score / _TEMPERATURE - low - moves)


def correspondences(
    homography: Float64, xy0: Float64, xy1: Float64, radius_px: float
) -> NDArray[np.int64]:
    """Return the rows (M, 2) of points that are mutually nearest and within `radius_px`."""
    moved = apply_homography(homography, xy0)
    distance, forward = cKDTree(xy1).query(moved)
    _, backward = cKDTree(moved).query(xy1)
    rows = np.arange(len(moved))
    rows = rows[(backward[forward] == rows) & (distance <= radius_px)]
    return np.column_stack([rows, forward[rows]]).astype(np.int64)


def _places(relation: Relation) -> tuple[Float64, Bool]:
    """Return the places (H, W, 2) in the other image, as x and y, and which are known there."""
    mine, theirs = relation.known
    height, width = mine.shape
    rows, columns = np.mgrid[:height, :width]
    there = np.stack([columns, rows, np.ones_like(rows)], -1) @ relation.homography.T
    is_before = there[..., 2] > 0
    xy = there[..., :2] / np.where(is_before, there[..., 2], 1.0)[..., None]
    last = np.array([width - 1, height - 1])
    is_seen = ((xy >= BORDER) & (xy <= last - BORDER)).all(-1) & is_before
    nearest = np.clip(np.rint(xy), 0, last).astype(np.int64)
    is_seen &= theirs[nearest[..., 1], nearest[..., 0]] & mine & _inside((height, width))
    return xy, is_seen


def _moved(xy: Tensor, homography: Float64) -> Tensor:
    matrix = torch.from_numpy(homography).to(xy.dtype)
    there = torch.cat([xy, torch.ones_like(xy[:, :1])], 1) @ matrix.T
    return there[:, :2] / there[:, 2:]


def _inside(shape: tuple[int, int]) -> Bool:
    inside = np.zeros(shape, np.bool_)
    inside[BORDER:-BORDER, BORDER:-BORDER] = True
    return inside


def _windows(values: Tensor, side: int, offset: int) -> Tensor:
    cut = values[offset:, offset:]
    cut = cut[: cut.shape[0] // side * side, : cut.shape[1] // side * side]
    return functional.unfold(cut[None, None], side, stride=side)[0].T
