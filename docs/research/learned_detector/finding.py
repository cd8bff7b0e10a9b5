"""Find keypoints with a trained detector: peaks of its scores over places and scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from matchserve.types import Float64, Image, Keypoints
from matchserve.vision.given_points import GivenPoints, place
from matchserve.vision.keypoints import DetectOptions, Region
from matchserve.vision.selection import is_best_nearby
from training.detector.losses import peaks
from training.detector.network import ScoreNetwork

_LEAST_SIDE = 40
_REACH = 24  # pixels that a score depends on
_DOUBLED_PIXELS = 400_000
"""Smaller images are enlarged for a finer level, as SIFT does."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """The levels of an image: `per_octave` of them, sigma in pixels of a level."""

    per_octave: int = 2
    sigma: float = 2.4
    keeps_finest: bool = True


def find(
    net: ScoreNetwork,
    pyramid: Pyramid,
    image: Image,
    options: DetectOptions | None = None,
    mask: Region | None = None,
) -> Keypoints:
    """Return the keypoints of the highest score, as `matchserve.vision.keypoints.detect` does."""
    options = options or DetectOptions()
    rows = find_rows(net, pyramid, image)
    xy = image.to_sent(rows[:, :2])
    if mask is not None:
        allowed = mask.allows(xy, image.size)
        rows, xy = rows[allowed], xy[allowed]
    gives_way = ~is_best_nearby(rows[:, :2], rows[:, 3], image.grey.shape)
    order = np.lexsort((rows[:, 0], rows[:, 1], -rows[:, 3], gives_way))[: options.max_keypoints]
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    last = np.array(image.size) - 1
    given = GivenPoints(
        np.clip(xy[order], 0, last).astype(np.float32), (rows[order, 2] / scale).astype(np.float32)
    )
    placed = place(given, image, is_upright=options.upright)
    return Keypoints(placed.xy, placed.sigma, placed.angle, rows[order, 3].astype(np.float32))


def find_rows(net: ScoreNetwork, pyramid: Pyramid, image: Image) -> Float64:
    """Return x, y, sigma and score of all peaks, in pixels of the working image."""
    scores, sizes = _scores(net, pyramid, np.asarray(image.grey))
    found = []
    width, height = image.grey.shape[::-1]
    for level, score in enumerate(scores):
        row, column = np.nonzero(peaks(torch.from_numpy(score)).numpy())
        x, y = _refined(score, column, row)
        ratio = np.array([width, height]) / sizes[level]
        xy = (np.column_stack([x, y]) + 0.5) * ratio - 0.5
        centre = score[row, column]
        beside = [
            _highest_near(scores[k], (xy + 0.5) * sizes[k] / [width, height] - 0.5)
            if 0 <= k < len(scores)
            else None
            for k in (level - 1, level + 1)
        ]
        before, after = (centre - 1.0 if each is None else each for each in beside)
        keep = (centre >= before) & (centre >= after)
        curve = np.minimum(before - 2 * centre + after, -1e-6)
        shift = np.clip(0.5 * (before - after) / curve, -0.5, 0.5)
        if beside[0] is None or beside[1] is None:
            shift = np.zeros_like(shift)
        step = math.sqrt(float(np.prod(ratio)))
        sigma = pyramid.sigma * step * 2 ** (shift / pyramid.per_octave)
        found.append(np.column_stack([xy, sigma, np.exp(np.minimum(centre, 20))])[keep])
    return np.concatenate(found)


def _scores(
    net: ScoreNetwork, pyramid: Pyramid, grey: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the score map of each level, the finest first, and their sizes (width, height)."""
    height, width = grey.shape
    first = -pyramid.per_octave if grey.size < _DOUBLED_PIXELS and pyramid.keeps_finest else 0
    scores, sizes = [], []
    number, level = first, grey.astype(np.float32)
    while True:
        factor = 2 ** (-number / pyramid.per_octave)
        size = np.array([round(factor * width), round(factor * height)])
        if size.min() < _LEAST_SIDE:
            return scores, sizes
        if number > 0:
            # From the level before: the blur of the larger pixels, minus that which is there.
            more = 0.5 * math.sqrt(2 ** (2 / pyramid.per_octave) - 1)
            level = cv2.GaussianBlur(level, (0, 0), more)
        source = grey.astype(np.float32) if number < 0 else level
        if tuple(size) != source.shape[::-1]:
            source = cv2.resize(source, size.tolist(), interpolation=cv2.INTER_LINEAR)
        if number >= 0:
            level = source
        around = np.pad(np.asarray(source), _REACH, mode="reflect")
        with torch.inference_mode():
            score = net(torch.from_numpy(around)[None, None])[0, 0].numpy()
        scores.append(score[_REACH:-_REACH, _REACH:-_REACH])
        sizes.append(size)
        number += 1


def _refined(score: np.ndarray, column: np.ndarray, row: np.ndarray) -> tuple[Float64, Float64]:
    """Return the places of the maxima of quadratics through 3 x 3 scores."""
    around = np.stack(
        [score[row + dy, column + dx] for dy in (-1, 0, 1) for dx in (-1, 0, 1)], 1
    ).astype(np.float64)
    a, b, c, d, e, f, g, h, i = around.T
    gx, gy = (c + f + i - a - d - g) / 6, (g + h + i - a - b - c) / 6
    xx = (a + c + d + f + g + i - 2 * (b + e + h)) / 3
    yy = (a + b + c + g + h + i - 2 * (d + e + f)) / 3
    xy = (a - c - g + i) / 4
    determinant = xx * yy - xy**2
    fits = (determinant > 1e-9) & (xx < 0)
    safe = np.where(fits, determinant, 1.0)
    dx = np.where(fits, (xy * gy - yy * gx) / safe, 0.0)
    dy = np.where(fits, (xy * gx - xx * gy) / safe, 0.0)
    return column + np.clip(dx, -0.5, 0.5), row + np.clip(dy, -0.5, 0.5)


def _highest_near(score: np.ndarray, xy: Float64) -> np.ndarray:
    """Return the highest score in 3 x 3 pixels around each place."""
    highest = cv2.dilate(score, np.ones((3, 3), np.uint8))
    column, row = np.clip(np.rint(xy), 0, np.array(score.shape[::-1]) - 1).astype(int).T
    return np.asarray(highest[row, column])
