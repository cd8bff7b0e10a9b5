"""Keypoints of a learned detector: the highest peaks of its score, with orientations."""

from __future__ import annotations

import numpy as np

from matchserve.types import Float64, Image, Keypoints
from matchserve.vision.directions import all_directions
from matchserve.vision.keypoints import Check, DetectOptions, Region, go_on
from matchserve.vision.score_peaks import Pyramid, ScoreMap, score_peaks
from matchserve.vision.selection import is_best_nearby
from matchserve.vision.texture import is_textured


def detect_learned(
    score: ScoreMap,
    pyramid: Pyramid,
    image: Image,
    options: DetectOptions,
    mask: Region | None = None,
    check: Check = go_on,
) -> Keypoints:
    """Find the keypoints of the highest score, best first, in pixels of the image as sent.

    The options of the DoG detector alone (thresholds and `selection`) do not apply. With
    `duplicates`, every orientation of a position counts, as it does there.
    """
    rows = score_peaks(score, pyramid, image.grey, check)
    rows = rows[is_textured(image.grey, rows[:, :2], rows[:, 2])]
    # The fit of a place may leave the image by a fraction of a pixel.
    xy = np.clip(image.to_sent(rows[:, :2]), 0, np.array(image.size) - 1)
    if mask is not None:
        allowed = mask.allows(xy, image.size)
        rows, xy = rows[allowed], xy[allowed]
    best = _order(rows, image.grey.shape)[: options.max_keypoints]
    pixel = np.float32(image.pixel)
    found = Keypoints(
        xy[best].astype(np.float32),
        rows[best, 2].astype(np.float32) * pixel,
        np.zeros(len(best), np.float32),
        rows[best, 3].astype(np.float32),
    )
    return found if options.upright else _oriented(found, image, options, check)


def _order(rows: Float64, shape: tuple[int, ...]) -> np.ndarray:
    """Return the rows by score; those that give way to a better one nearby come last."""
    gives_way = ~is_best_nearby(rows[:, :2], rows[:, 3], shape)
    return np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0], -rows[:, 3], gives_way))


def _oriented(found: Keypoints, image: Image, options: DetectOptions, check: Check) -> Keypoints:
    """Add the orientation of each keypoint, and further ones as rows of their own."""
    share = 1.0 if options.duplicates else options.further_orientations
    most = int(share * options.max_keypoints)
    sigma = found.sigma / np.float32(image.pixel)
    rows, angle = all_directions(image, found.xy, sigma, most, check)
    rows, angle = rows[: len(found) + most], angle[: len(found) + most]
    # Further orientations follow the first one of their position.
    order = np.argsort(rows, kind="stable")
    if options.duplicates:
        order = order[: options.max_keypoints]
    rows = rows[order]
    return Keypoints(found.xy[rows], found.sigma[rows], angle[order], found.score[rows])
