"""Benchmark `homography`: match image 1 of HPatches-style sequences with images 2 to 6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from matchserve.types import Float64
from matchserve.vision.geometry import VerifyOptions, verify
from training.data.images import read_image
from training.errors import DataError
from training.evaluation.pipeline import Kinds, PairMatches, pipeline_protocol, variants
from training.evaluation.predictions import ImageSet, Predictions
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    digest_files,
)
from training.metrics.image_pairs import (
    corner_error,
    error_auc,
    most_correct,
    seen_in_both,
    transfer_error,
)
from training.metrics.metric import (
    CEILING,
    CEILING_SHARE,
    CORNER_ERROR,
    CORRECT,
    HOMOGRAPHY_AUC,
    MATCHES,
    MATCHING_SCORE,
    MMA,
)

PIXELS = (0.5, *range(1, 11))
AUC_LIMITS = (1, 3, 5, 10)
CORRECT_PX = 3.0
_IMAGE_SUFFIXES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Images, and the true homography of each pair of them."""

    images: ImageSet
    homographies: dict[tuple[str, str], Float64]


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Measure MMA, correct matches, their share of the ceiling, and homography AUC."""
    sequences = read_sequences(data, options.pattern)
    results = {}
    kinds: Kinds = dict.fromkeys(sequences.images.pairs, "homography")
    for each in variants(models, sequences.images, options, kinds):
        results[each.name] = score(each.predictions, each.found, sequences, options, each.stamp)
    protocol = {
        **options.protocol("max_keypoints", "ratio", "threshold_px", "pattern", "seed"),
        **pipeline_protocol(options, "OpenCV USAC MAGSAC homography"),
        "correct_px": CORRECT_PX,
    }
    return BenchmarkResult("homography", protocol, sequences.images.digest, results)


def read_sequences(directories: list[Path], pattern: str = "*") -> Sequences:
    """Find folders with images 1 .. 6 and files H_1_2 .. H_1_6.

    Raises:
        DataError: no sequence was found, or a file is missing or not a matrix.
    """
    folders = [f for d in directories for f in _sequence_folders(d) if f.match(pattern)]
    if not folders:
        raise DataError(f"no sequence with 1.png and H_1_2 matches {pattern!r}")
    images, pairs, files, homographies = {}, [], [], {}
    for folder in folders:
        first = f"{folder.name}/1"
        images[first] = partial(read_image, _image_file(folder, 1))
        files.append(_image_file(folder, 1))
        for number in range(2, 7):
            matrix = folder / f"H_1_{number}"
            if not matrix.is_file():
                continue
            name = f"{folder.name}/{number}"
            images[name] = partial(read_image, _image_file(folder, number))
            files += [_image_file(folder, number), matrix]
            pairs.append((first, name))
            homographies[first, name] = _read_matrix(matrix)
    return Sequences(ImageSet(images, pairs, digest_files(files)), homographies)


def score(
    predictions: Predictions,
    found: Mapping[tuple[str, str], PairMatches],
    sequences: Sequences,
    options: Options,
    stamp: str = "",
) -> ModelResult:
    """Return the metrics of one model, most of them means over pairs."""
    pairs = sequences.images.pairs
    rows = [_score_pair(predictions, found[pair], pair, sequences, options) for pair in pairs]
    samples = {name: [row[name] for row in rows] for name in rows[0]}
    figures = {name: float(np.mean(values)) for name, values in samples.items()}
    del figures[CORNER_ERROR.name]
    # The share of all possible matches, not the mean of the shares of pairs: pairs with few
    # possible matches then have little weight.
    figures[CEILING_SHARE.name] = figures[CORRECT.name] / max(figures[CEILING.name], 1e-9)
    areas = error_auc(samples[CORNER_ERROR.name], AUC_LIMITS)
    for limit, area in zip(AUC_LIMITS, areas, strict=True):
        figures[HOMOGRAPHY_AUC.of(limit)] = area
    mma = [figures[MMA.of(px)] for px in PIXELS]
    return ModelResult(
        figures,
        tuple(other for _, other in pairs),
        tuple(other.split("/")[0] for _, other in pairs),
        samples,
        {"MMA": {"x": [float(px) for px in PIXELS], "y": mma}},
        stamp,
    )


def _score_pair(
    predictions: Predictions,
    found: PairMatches,
    pair: tuple[str, str],
    sequences: Sequences,
    options: Options,
) -> dict[str, float]:
    truth = sequences.homographies[pair]
    left, right = found.points0, found.points1
    error = transfer_error(truth, left[found.returned], right[found.returned])
    sizes = (predictions.sizes[pair[0]], predictions.sizes[pair[1]])
    detected = (predictions.keypoints[pair[0]].xy, predictions.keypoints[pair[1]].xy)
    ceiling = most_correct(truth, *detected, CORRECT_PX)
    seen = seen_in_both(truth, *detected, *sizes)
    rule = VerifyOptions(kind="homography", threshold_px=options.threshold_px, seed=options.seed)
    estimate = verify(left, right, sizes, rule, found.confidence)
    correct = float((error <= CORRECT_PX).sum())
    # A refined point can be correct where its keypoint was not.
    ceiling = max(ceiling, int(correct))
    return {
        **{MMA.of(px): float((error <= px).mean()) if len(error) else 0.0 for px in PIXELS},
        MATCHES.name: float(len(error)),
        CORRECT.name: correct,
        CEILING.name: float(ceiling),
        CEILING_SHARE.name: correct / max(ceiling, 1),
        MATCHING_SCORE.name: correct / max(seen, 1.0),
        CORNER_ERROR.name: corner_error(estimate.matrix, truth, sizes[0]),
    }


def _sequence_folders(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise DataError(f"{directory}: not a directory")
    candidates = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())]
    return [folder for folder in candidates if (folder / "H_1_2").is_file()]


def _image_file(folder: Path, number: int) -> Path:
    for suffix in _IMAGE_SUFFIXES:
        if (folder / f"{number}{suffix}").is_file():
            return folder / f"{number}{suffix}"
    raise DataError(f"{folder}: no image {number} ({', '.join(_IMAGE_SUFFIXES)})")


def _read_matrix(path: Path) -> Float64:
    try:
        matrix = np.loadtxt(path, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a 3 x 3 matrix, {error}") from error
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise DataError(f"{path}: expected a 3 x 3 matrix, found {matrix.shape}")
    return np.asarray(matrix)
