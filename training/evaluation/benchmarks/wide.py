"""Benchmark `wide`: image pairs with large viewpoint changes, or of other times and sensors.

Two kinds of folders are found below the data directories:

    {fundamental,homography}_NAME/{1,2}.*, points.txt    hand-made points, rows x1 y1 x2 y2
    .../NAME/{1,2}.*, H_1_2                              a registered pair

The geometry that is estimated is that of the folder's name; for a registered pair it is a
similarity if `H_1_2` is one, else a homography. Of the hand-made points, the share within 3 and
10 pixels of the estimated epipolar line or homography is measured; a pair is solved if more than
80 % are within 10 pixels. A registered pair is solved if the four corners of the first image are
mapped with a mean error of at most 5 pixels of the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from matchserve.types import Float64, VerifyKind
from matchserve.vision.geometry import VerifyOptions, verify
from training.data.images import numbered_image, read_image
from training.errors import DataError
from training.evaluation.pipeline import PairMatches, pipeline_protocol, variants
from training.evaluation.predictions import ImageSet, Loader, Predictions
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    digest_files,
)
from training.metrics.image_pairs import corner_error, transfer_error
from training.metrics.metric import (
    INLIERS,
    MATCHES,
    POINT_RECALL,
    SOLVED,
    SOLVED_COUNT,
    in_group,
)

LIMITS_PX = (3, 10)
SOLVED_SHARE = 0.8
REGISTERED_PX = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class WidePair:
    """A pair of image files, its group, and hand-made points (P, 4) or a homography (3, 3)."""

    images: tuple[str, str]
    group: str
    kind: VerifyKind
    truth: Float64


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Estimate the geometry of every pair with every model."""
    pairs, images = read_pairs(data, options.pattern)
    results = {}
    kinds = {pair.images: pair.kind for pair in pairs}
    for each in variants(models, images, options, kinds):
        results[each.name] = score(each.predictions, each.found, pairs, options, each.stamp)
    protocol = {
        **options.protocol("max_keypoints", "ratio", "threshold_px", "pattern", "seed"),
        **pipeline_protocol(options, "OpenCV USAC MAGSAC"),
        "solved": f"more than {SOLVED_SHARE:.0%} of the points within {LIMITS_PX[1]} px, or "
        f"corners within {REGISTERED_PX:g} px",
    }
    return BenchmarkResult("wide", protocol, images.digest, results)


def read_pairs(directories: list[Path], pattern: str = "*") -> tuple[list[WidePair], ImageSet]:
    """Find pairs with hand-made points or a homography.

    Raises:
        DataError: there is none, or a file is missing or not numbers.
    """
    pairs: list[WidePair] = []
    loaders: dict[str, Loader] = {}
    files: list[Path] = []
    for directory in directories:
        marks = sorted([*directory.rglob("points.txt"), *directory.rglob("H_1_2")])
        for mark in (m for m in marks if m.parent.match(pattern)):
            folder = mark.parent
            name = f"{directory.name}/{folder.relative_to(directory).as_posix()}"
            names = (f"{name}/1", f"{name}/2")
            paths = [numbered_image(folder, number) for number in (1, 2)]
            loaders |= {n: partial(read_image, p) for n, p in zip(names, paths, strict=True)}
            files += [*paths, mark]
            truth = _read_numbers(mark)
            group = directory.name if mark.name == "points.txt" else folder.parent.name
            pairs.append(WidePair(names, group, _kind(folder, truth), truth))
    if not pairs:
        raise DataError("no folder with points.txt or H_1_2 was found")
    images = ImageSet(loaders, [pair.images for pair in pairs], digest_files(files))
    return pairs, images


def _kind(folder: Path, truth: Float64) -> VerifyKind:
    """Return the geometry to estimate: that of the folder's name, or of a registered pair."""
    if truth.shape != (3, 3):
        return "fundamental" if folder.name.startswith("fundamental") else "homography"
    (a, b, _), (c, d, _), (e, f, _) = truth / truth[2, 2]
    scale = float(np.hypot(a, c))
    is_similar = np.allclose([a - d, b + c], 0, atol=1e-6 * scale) and e == f == 0
    return "similarity" if is_similar else "homography"


def score(
    predictions: Predictions,
    found: Mapping[tuple[str, str], PairMatches],
    pairs: list[WidePair],
    options: Options,
    stamp: str = "",
) -> ModelResult:
    """Return recall and solved pairs, of all pairs and of each group."""
    rows = [_score_pair(predictions, found[pair.images], pair, options) for pair in pairs]
    groups = tuple(pair.group for pair in pairs)
    figures: dict[str, float] = {}
    for group in dict.fromkeys(groups):
        own = [row for row, g in zip(rows, groups, strict=True) if g == group]
        for name in own[0]:
            values = [row[name] for row in own if np.isfinite(row[name])]
            if values:
                figures[in_group(group, name)] = float(np.mean(values))
        solved = float(sum(row[SOLVED.name] for row in own))
        figures[in_group(group, SOLVED_COUNT.name)] = solved
    samples = {name: [row[name] for row in rows] for name in rows[0]}
    units = tuple(pair.images[0].rsplit("/", 1)[0] for pair in pairs)
    return ModelResult(figures, units, groups, samples, stamp=stamp)


def _score_pair(
    predictions: Predictions, found: PairMatches, pair: WidePair, options: Options
) -> dict[str, float]:
    sizes = (predictions.sizes[pair.images[0]], predictions.sizes[pair.images[1]])
    rule = VerifyOptions(pair.kind, options.threshold_px, options.seed)
    estimate = verify(found.points0, found.points1, sizes, rule, found.confidence)
    counts = {
        MATCHES.name: float(found.returned.sum()),
        INLIERS.name: float(estimate.inliers[found.returned].sum()),
    }
    if pair.truth.shape == (3, 3):
        error = corner_error(estimate.matrix, pair.truth, sizes[0])
        recall = dict.fromkeys((POINT_RECALL.of(px) for px in LIMITS_PX), float("nan"))
        return {**recall, SOLVED.name: float(error <= REGISTERED_PX), **counts}
    distance = _point_errors(estimate.matrix, pair)
    recall = {POINT_RECALL.of(px): float((distance <= px).mean()) for px in LIMITS_PX}
    solved = float(recall[POINT_RECALL.of(LIMITS_PX[1])] > SOLVED_SHARE)
    return {**recall, SOLVED.name: solved, **counts}


def _point_errors(matrix: Float64 | None, pair: WidePair) -> Float64:
    """Distance of the hand-made points of image 2 to their epipolar lines or mapped points."""
    left, right = pair.truth[:, :2], pair.truth[:, 2:]
    if matrix is None:
        return np.full(len(left), np.inf)
    if pair.kind == "homography":
        return transfer_error(matrix, left, right)
    lines = np.c_[left, np.ones(len(left))] @ matrix.T
    distance = np.abs(np.einsum("nk,nk->n", lines, np.c_[right, np.ones(len(right))]))
    return np.asarray(distance / np.maximum(np.linalg.norm(lines[:, :2], axis=1), 1e-12))


def _read_numbers(path: Path) -> Float64:
    try:
        values = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected numbers, {error}") from error
    wanted = 4 if path.name == "points.txt" else 3
    if values.shape[1] != wanted or not np.isfinite(values).all():
        raise DataError(f"{path}: expected rows of {wanted} numbers")
    return np.asarray(values)
