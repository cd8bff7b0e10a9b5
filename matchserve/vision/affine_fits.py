"""Robust fits of a similarity (rotation, scale and shift) or an affine map to matched points.

Two matches determine a similarity and three an affine map, so both are found among far more wrong
matches than a homography, which needs four. Samples are drawn among the most confident matches
first (PROSAC, Chum and Matas 2005) and scored by truncated squared errors (MSAC, Torr and
Zisserman 2000); the best of them are refined by least squares over their inliers.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float32, Float64
from matchserve.vision.estimators import (
    MAX_ITERATIONS,
    SUCCESS_PROBABILITY,
    Fit,
    FitOptions,
    nothing,
)

SAMPLE_SIZE = {"similarity": 2, "affine": 3}

# Maps that enlarge or shrink more than this are chance: keypoints do not repeat over such scales.
MAX_SCALE = 20.0
# A sample of closer points would amplify the error of their places.
_LEAST_DISTANCE_PX = 8.0
# Matches up to this multiple of the threshold count for the score: few scenes are exactly a
# similarity of their image. Chosen on held-out pairs (docs/research/models.md).
_REACH = 5 / 3
# Samples that are scored at once, few enough for the processor's cache.
_BLOCK = 256
# The best samples that are refined, and how often each is.
_REFINED_SAMPLES = 20
_REFINEMENTS = 5


def fit_affine(
    kind: str, p0: Float64, p1: Float64, options: FitOptions, confidence: Float32 | None
) -> Fit:
    """Fit a similarity or an affine map to points (M, 2) each."""
    order = np.arange(len(p0)) if confidence is None else np.argsort(-confidence, kind="stable")
    centre0, centre1 = p0.mean(axis=0), p1.mean(axis=0)
    first, second = p0[order] - centre0, p1[order] - centre1
    is_sorted, reach_px = confidence is not None, _REACH * options.threshold_px
    samples = draw_samples(len(p0), SAMPLE_SIZE[kind], options.seed, is_sorted=is_sorted)
    # Absurd coordinates overflow: their errors are infinite, or not a number, and no inliers.
    with np.errstate(over="ignore", invalid="ignore"):
        maps = _best_maps(kind, first, second, samples, reach_px)
        if not len(maps):
            return nothing(len(p0))
        refined = [_refined(kind, each, first, second, reach_px) for each in maps]
        best, _ = max(refined, key=lambda item: item[1])
        errors = _squared_errors(best[None], first, second)[0]
    inliers = np.zeros(len(p0), np.bool_)
    inliers[order] = errors <= options.threshold_px**2
    matrix = np.vstack([best, [0.0, 0.0, 1.0]])
    matrix[:2, 2] += centre1 - best[:, :2] @ centre0
    return Fit(matrix, inliers)


def draw_samples(count: int, size: int, seed: int, *, is_sorted: bool) -> NDArray[np.intp]:
    """Return samples (K, size) of `count` matches; all of them if these are few.

    With matches sorted by confidence, the first half are all samples of the most confident ones.
    In the second half, sample k consists of match n and of matches before it, where n grows with k
    as it does in all samples, sorted by their last match. Some of these have a match twice.
    """
    if math.comb(count, size) <= MAX_ITERATIONS:
        return _all_samples(count, size)
    rng = np.random.default_rng(seed)
    if not is_sorted:
        return rng.integers(0, count, (MAX_ITERATIONS, size), np.intp)
    subsets = np.array([math.comb(n, size) for n in range(count + 1)], np.float64)
    sure = _all_samples(int(np.searchsorted(subsets, MAX_ITERATIONS / 2)), size)
    left = MAX_ITERATIONS - len(sure)
    share = np.arange(1, left + 1) / left
    last = np.minimum(np.searchsorted(subsets / subsets[-1], share) - 1, count - 1)
    before = (rng.random((left, size - 1)) * last[:, None]).astype(np.intp)
    return np.vstack([sure, np.column_stack([last, before])])


def _all_samples(count: int, size: int) -> NDArray[np.intp]:
    """Return all samples (K, size) of `count` matches, those of the first matches first."""
    chosen = itertools.combinations(range(count), size)
    samples = np.array(sorted(chosen, key=lambda sample: sample[-1]), np.intp)
    return samples.reshape(-1, size)


def _best_maps(
    kind: str, p0: Float64, p1: Float64, samples: NDArray[np.intp], reach_px: float
) -> Float64:
    """Return the maps (K, 2, 3) of the best samples; no more are tried once one is good enough."""
    maps: list[Float64] = []
    scores: list[Float32] = []
    needed, best = float(len(samples)), 0.0
    for start in range(0, len(samples), _BLOCK):
        if start >= needed:
            break
        block = samples[start : start + _BLOCK]
        solved = _maps_of(kind, p0[block], p1[block])
        if not len(solved):
            continue
        score = _score(_squared_errors(solved, p0, p1), reach_px)
        maps.append(solved)
        scores.append(score)
        best = max(best, float(score.max()))
        needed = _needed_samples(best / len(p0), SAMPLE_SIZE[kind])
    if not maps:
        return np.zeros((0, 2, 3))
    order = np.argsort(-np.concatenate(scores), kind="stable")[:_REFINED_SAMPLES]
    return np.concatenate(maps)[order]


def _needed_samples(inlier_share: float, size: int) -> float:
    """Return after how many uniform samples one without a wrong match is nearly certain."""
    right = inlier_share**size
    if right >= 1:
        return 1.0
    return math.inf if right < 1e-9 else math.log1p(-SUCCESS_PROBABILITY) / math.log1p(-right)


def _maps_of(kind: str, p0: Float64, p1: Float64) -> Float64:
    """Return the maps (K, 2, 3) of samples of points (N, S, 2), without the degenerate ones."""
    spread = ((p0 - np.roll(p0, 1, axis=1)) ** 2).sum(axis=2).min(axis=1)
    usable = spread >= _LEAST_DISTANCE_PX**2
    p0, p1 = p0[usable], p1[usable]
    ones = np.ones(p0.shape[:2])
    maps = _similarities(p0, p1, ones) if kind == "similarity" else _affine_maps(p0, p1, ones)
    linear = maps[:, :, :2]
    area = np.abs(linear[:, 0, 0] * linear[:, 1, 1] - linear[:, 0, 1] * linear[:, 1, 0])
    # Also not a number where the points of a sample are on one line.
    return maps[(area > MAX_SCALE**-2) & (area < MAX_SCALE**2)]


def _similarities(p0: Float64, p1: Float64, weights: Float64) -> Float64:
    """Return the similarities (N, 2, 3) of least squares of points (N, S, 2), weights (N, S)."""
    # In the complex plane a similarity is z -> a z + b.
    z0, z1 = p0[..., 0] + 1j * p0[..., 1], p1[..., 0] + 1j * p1[..., 1]
    total = weights.sum(axis=1)
    mean0, mean1 = (weights * z0).sum(axis=1) / total, (weights * z1).sum(axis=1) / total
    d0, d1 = z0 - mean0[:, None], z1 - mean1[:, None]
    a = (weights * d0.conj() * d1).sum(axis=1) / (weights * np.abs(d0) ** 2).sum(axis=1)
    b = mean1 - a * mean0
    return np.stack([a.real, -a.imag, b.real, a.imag, a.real, b.imag], axis=1).reshape(-1, 2, 3)


def _affine_maps(p0: Float64, p1: Float64, weights: Float64) -> Float64:
    """Return the affine maps (N, 2, 3) of least squares of points (N, S, 2), weights (N, S)."""
    total = weights.sum(axis=1)[:, None]
    mean0 = (weights[..., None] * p0).sum(axis=1) / total
    mean1 = (weights[..., None] * p1).sum(axis=1) / total
    d0, d1 = p0 - mean0[:, None], p1 - mean1[:, None]
    moments = np.einsum("ns,nsi,nsj->nij", weights, d0, d0)
    mixed = np.einsum("ns,nsi,nsj->nij", weights, d1, d0)
    linear = mixed @ _inverse(moments)
    return np.concatenate([linear, mean1[..., None] - linear @ mean0[..., None]], axis=2)


def _inverse(moments: Float64) -> Float64:
    """Return the inverse of symmetric matrices (N, 2, 2); not a number of nearly singular ones."""
    xx, xy, yy = moments[:, 0, 0], moments[:, 0, 1], moments[:, 1, 1]
    determinant = xx * yy - xy * xy
    determinant = np.where(determinant > 1e-6 * (xx + yy) ** 2, determinant, np.nan)
    adjugate = np.stack([yy, -xy, -xy, xx], axis=1).reshape(-1, 2, 2)
    return np.asarray(adjugate / determinant[:, None, None])


def _squared_errors(maps: Float64, p0: Float64, p1: Float64) -> Float32:
    """Return the squared distance, (K, M), of mapped points of image 0 to those of image 1."""
    # float32 halves the time, and is exact enough for centred coordinates.
    points = np.vstack([p0.T, np.ones(len(p0))]).astype(np.float32)
    errors = (maps.reshape(-1, 3).astype(np.float32) @ points).reshape(-1, 2, len(p0))
    errors -= p1.T.astype(np.float32)
    np.square(errors, out=errors)
    return np.asarray(errors[:, 0] + errors[:, 1])


def _score(squared_errors: Float32, reach_px: float) -> Float32:
    """Return how well the matches agree, (K,): 1 for each one without error, 0 beyond."""
    limit = reach_px**2
    return np.asarray(squared_errors.shape[1] - np.fmin(squared_errors, limit).sum(axis=1) / limit)


def _refined(
    kind: str, start: Float64, p0: Float64, p1: Float64, reach_px: float
) -> tuple[Float64, float]:
    """Fit a map (2, 3) to its inliers, again while the score grows; return it with its score."""
    fit = _similarities if kind == "similarity" else _affine_maps
    best = start
    errors = _squared_errors(best[None], p0, p1)
    score = float(_score(errors, reach_px)[0])
    for _ in range(_REFINEMENTS):
        weights = (errors <= reach_px**2).astype(np.float64)
        if weights.sum() <= SAMPLE_SIZE[kind]:
            break
        fitted = fit(p0[None], p1[None], weights)
        errors = _squared_errors(fitted, p0, p1)
        reached = float(_score(errors, reach_px)[0])
        if not reached > score:
            break
        best, score = fitted[0], reached
    return best, score
