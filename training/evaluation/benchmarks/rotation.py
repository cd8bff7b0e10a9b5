"""Benchmark `rotation`: match photographs with rotated and with scaled copies of themselves.

The images in the given folders are relit once, with noise, blur and compression as of another
camera, then rotated in steps of 15 degrees and scaled in half octaves: an untrained network matches
copies in the same light as well as a trained one. Keypoints are detected anew in each copy; matches
within 3 px of the truth are correct.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from matchserve.types import Float64, Image, UInt8
from training.data.images import list_images, read_image
from training.data.photos.relight import relight
from training.evaluation.predictions import ImageSet, predict
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    digest_files,
)
from training.metrics.image_pairs import most_correct, transfer_error
from training.metrics.metric import (
    CEILING,
    CEILING_ROTATED,
    CEILING_SCALED,
    CORRECT,
    CORRECT_AT_ANGLE,
    CORRECT_AT_SCALE,
    CORRECT_ROTATED,
    CORRECT_SCALED,
    LOWEST_ROTATED,
)

ANGLES_DEG = tuple(range(0, 360, 15))
OCTAVES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
CORRECT_PX = 3.0
IMAGES = 6
LIGHT = 1.0  # strength of `relight`: as the level "hard" of synthetic views
MAX_SIDE = 800


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Count correct matches at every angle and scale."""
    images, truth = _views(data, options)
    results = {}
    for model in models:
        predictions = predict(model, images, options)
        samples: dict[str, list[float]] = {CORRECT.name: [], CEILING.name: []}
        for pair in images.pairs:
            error = transfer_error(truth[pair], *predictions.points(pair))
            samples[CORRECT.name].append(float((error <= CORRECT_PX).sum()))
            left, right = (predictions.keypoints[name].xy for name in pair)
            ceiling = most_correct(truth[pair], left, right, CORRECT_PX)
            samples[CEILING.name].append(float(ceiling))
        results[model.name] = _result(samples, images, model.stamp)
    protocol = {
        **options.protocol("max_keypoints", "ratio", "limit"),
        "matcher": "mutual nearest neighbour",
        "correct_px": CORRECT_PX,
        "max_side": MAX_SIDE,
        "light": LIGHT,
    }
    return BenchmarkResult("rotation", protocol, images.digest, results)


def similarity(size: tuple[int, int], angle_deg: float, octaves: float) -> Float64:
    """Return the homography that rotates (clockwise as seen) and scales an image onto its canvas.

    The canvas is that of `canvas_size`; the centre of the image maps to its centre.
    """
    width, height = size
    scale = 2.0**octaves
    cosine, sine = scale * np.cos(np.radians(angle_deg)), scale * np.sin(np.radians(angle_deg))
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    turn = np.array([[cosine, -sine], [sine, cosine]])
    canvas = (np.array(canvas_size(size, angle_deg, octaves)) - 1) / 2
    matrix = np.eye(3)
    matrix[:2, :2] = turn
    matrix[:2, 2] = canvas - turn @ centre
    return matrix


def canvas_size(size: tuple[int, int], angle_deg: float, octaves: float) -> tuple[int, int]:
    """Return the width and height that hold the whole rotated and scaled image."""
    width, height = size
    c, s = abs(np.cos(np.radians(angle_deg))), abs(np.sin(np.radians(angle_deg)))
    scale = 2.0**octaves
    return (
        max(32, int(np.ceil(scale * (c * width + s * height)))),
        max(32, int(np.ceil(scale * (s * width + c * height)))),
    )


def transformed(path: Path, angle_deg: float, octaves: float) -> Image:
    """Read, relight, rotate and scale an image; the corners are filled with its mean grey value."""
    grey = _relit(path)
    size = (grey.shape[1], grey.shape[0])
    if octaves < 0:
        grey = np.asarray(cv2.GaussianBlur(grey, (0, 0), 0.5 * np.sqrt(4.0**-octaves - 1)))
    canvas = canvas_size(size, angle_deg, octaves)
    out = cv2.warpPerspective(
        grey,
        similarity(size, angle_deg, octaves),
        canvas,
        flags=cv2.INTER_CUBIC,
        borderValue=float(grey.mean()),
    )
    return Image(np.asarray(out, np.uint8), canvas)


def _relit(path: Path) -> UInt8:
    """Return the image in other light: the same in every copy and every run."""
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    return relight(np.asarray(_read(path)), rng, strength=LIGHT)


def _as_image(path: Path) -> Image:
    return read_image(path, max_side=MAX_SIDE)


def _read(path: Path) -> np.ndarray:
    return read_image(path, max_side=MAX_SIDE).grey


def _views(data: list[Path], options: Options) -> tuple[ImageSet, dict[tuple[str, str], Float64]]:
    listed = list(list_images(data).items())
    # Spread evenly over the list: neighbours in it often show the same place.
    step = max(1, len(listed) // (options.limit or IMAGES))
    chosen = listed[::step][: options.limit or IMAGES]
    changes = [(float(angle), 0.0) for angle in ANGLES_DEG]
    changes += [(0.0, octaves) for octaves in OCTAVES if octaves]
    loaders, pairs, truth = {}, [], {}
    for name, path in chosen:
        grey = _read(path)
        size = (grey.shape[1], grey.shape[0])
        loaders[name] = partial(_as_image, path)
        for angle, octaves in changes:
            other = f"{name}@{angle:g},{octaves:g}"
            loaders[other] = partial(transformed, path, angle, octaves)
            pairs.append((name, other))
            truth[name, other] = similarity(size, angle, octaves)
    # Cached keypoints of copies in other light must not be used.
    digest = f"{digest_files(path for _, path in chosen)}-light-{LIGHT:g}"
    return ImageSet(loaders, pairs, digest), truth


def _result(samples: dict[str, list[float]], images: ImageSet, stamp: str) -> ModelResult:
    """Return the means over all rotations and scales, and those of each angle and scale."""
    at = [other.rpartition("@")[2].split(",") for _, other in images.pairs]
    angle = np.array([float(a) for a, _ in at])
    octave = np.array([float(o) for _, o in at])
    correct, ceiling = np.array(samples[CORRECT.name]), np.array(samples[CEILING.name])
    by_angle = [float(correct[(angle == a) & (octave == 0)].mean()) for a in ANGLES_DEG]
    by_octave = [float(correct[(octave == o) & (angle == 0)].mean()) for o in OCTAVES]
    rotated = (octave == 0) & (angle != 0)
    figures = {
        CORRECT_ROTATED.name: float(correct[rotated].mean()),
        LOWEST_ROTATED.name: min(by_angle[1:]),
        CEILING_ROTATED.name: float(ceiling[rotated].mean()),
        CORRECT_SCALED.name: float(correct[octave != 0].mean()),
        CEILING_SCALED.name: float(ceiling[octave != 0].mean()),
    }
    for degrees, value in zip(ANGLES_DEG, by_angle, strict=True):
        figures[CORRECT_AT_ANGLE.of(degrees)] = value
    for octaves, value in zip(OCTAVES, by_octave, strict=True):
        figures[CORRECT_AT_SCALE.of(f"{octaves:+g}")] = value
    curves = {
        "correct matches by angle (degrees)": {"x": [float(a) for a in ANGLES_DEG], "y": by_angle},
        "correct matches by scale (octaves)": {"x": list(OCTAVES), "y": by_octave},
    }
    units = tuple(other for _, other in images.pairs)
    groups = tuple(one for one, _ in images.pairs)
    return ModelResult(figures, units, groups, samples, curves, stamp)
