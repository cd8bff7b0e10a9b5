"""Benchmark `tilts`: match photographs with views of them from 40 to 75 degrees aside.

The images in the given folders are rendered as flat posters that a camera sees at an angle, tilted
about a random axis and turned by a random angle. Each pair is matched as the service does, by
the images as sent alone (`views=1`) and with synthetic views; it is solved if the mean error of the
corners under the estimated homography is at most 5 pixels. The handcrafted baselines are left out:
what is compared is matching with and without synthetic views.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from matchserve.matcher import Matcher
from matchserve.models.handcrafted import NAMES as HANDCRAFTED
from matchserve.options import DEFAULT_OPTIONS, VIEWS_CHOICES
from matchserve.options import Options as MatcherOptions
from matchserve.types import Float64, UInt8
from matchserve.vision.geometry import VerifyOptions
from training.data.images import list_images, read_image
from training.data.parallel import progress
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    digest_files,
)
from training.metrics.image_pairs import corner_error
from training.metrics.metric import CPU_MS, INLIERS, SOLVED, SOLVED_AT_TILT, VIEWS_DESCRIBED

TILTS_DEG = (40, 50, 60, 70, 75)
SOLVED_PX = 5.0
MAX_SIDE = 1024
_FOCAL = 1.2
# Pixels of the rendering per pixel of the view and direction: more than the strongest reduction.
_OVERSAMPLING = 4


@dataclass(frozen=True, slots=True, eq=False)
class TiltedView:
    """A rendered view, and the homography from the photograph to it."""

    grey: UInt8
    homography: Float64


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Count solved pairs at every tilt."""
    listed = list(list_images(data).items())
    step = max(1, len(listed) // (options.limit or len(listed)))
    chosen = listed[::step][: options.limit]
    results = {}
    for model in models:
        if model.name in HANDCRAFTED:
            continue
        matcher = Matcher(model.descriptor)
        for name, rule in _rules(model, options):
            results[name] = _measured(matcher, chosen, rule, options.seed, model.stamp)
    protocol = {
        **options.protocol("max_keypoints", "ratio", "threshold_px", "seed", "limit"),
        "solved_px": SOLVED_PX,
        "max_side": MAX_SIDE,
    }
    return BenchmarkResult("tilts", protocol, digest_files(path for _, path in chosen), results)


def tilted(grey: UInt8, tilt_deg: float, axis_deg: float, turn_deg: float) -> TiltedView:
    """Render a photograph as a camera sees it that is tilted by `tilt_deg` to its normal.

    The camera looks at the centre, from where the photograph would be of the same size without
    the tilt. The canvas holds the whole photograph; the rest is its mean grey value.
    """
    rows, columns = grey.shape
    focal = _FOCAL * max(rows, columns)
    axis = np.radians(axis_deg)
    rotation = (
        cv2.Rodrigues(np.radians(tilt_deg) * np.array([np.cos(axis), np.sin(axis), 0.0]))[0]
        @ cv2.Rodrigues(np.array([0.0, 0.0, np.radians(turn_deg)]))[0]
    )
    plane = np.stack([rotation[:, 0], rotation[:, 1], [0.0, 0.0, focal]], axis=1)
    centred = np.array([[1, 0, -(columns - 1) / 2], [0, 1, -(rows - 1) / 2], [0, 0, 1]])
    homography = np.diag([focal, focal, 1.0]) @ plane @ centred
    corners = np.array(
        [[0, 0, 1], [columns - 1, 0, 1], [columns - 1, rows - 1, 1], [0, rows - 1, 1]]
    )
    mapped = corners @ homography.T
    mapped = mapped[:, :2] / mapped[:, 2:]
    low = mapped.min(axis=0)
    width, height = (int(v) for v in np.ceil(mapped.max(axis=0) - low + 1))
    homography = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]]) @ homography
    return TiltedView(
        _reduced(grey, homography, (width, height)), np.asarray(homography / homography[2, 2])
    )


def _reduced(grey: UInt8, homography: Float64, canvas: tuple[int, int]) -> UInt8:
    """Warp with more pixels than the canvas has, and average them: no aliasing."""
    scale = _OVERSAMPLING
    finer = np.array([[scale, 0, (scale - 1) / 2], [0, scale, (scale - 1) / 2], [0, 0, 1.0]])
    large = cv2.warpPerspective(
        grey,
        finer @ homography,
        (scale * canvas[0], scale * canvas[1]),
        flags=cv2.INTER_CUBIC,
        borderValue=float(grey.mean()),
    )
    return np.asarray(cv2.resize(large, canvas, interpolation=cv2.INTER_AREA), np.uint8)


def _rules(model: Model, options: Options) -> Iterator[tuple[str, MatcherOptions]]:
    """Yield the rows of the table for a model: without and with synthetic views."""
    plain = replace(
        DEFAULT_OPTIONS,
        detect=replace(DEFAULT_OPTIONS.detect, max_keypoints=options.max_keypoints),
        match=replace(DEFAULT_OPTIONS.match, ratio=options.ratio),
        verify=VerifyOptions("homography", options.threshold_px, options.seed),
    )
    for views in (1, *VIEWS_CHOICES):
        yield f"{model.name}, views={views}", replace(plain, views=views)


def _measured(
    matcher: Matcher, photos: list[tuple[str, Path]], rule: MatcherOptions, seed: int, stamp: str
) -> ModelResult:
    units, groups = [], []
    solved, inliers, views, cpu_ms = [], [], [], []
    for name, path in progress(photos, total=len(photos), label=f"views={rule.views}"):
        grey = np.asarray(read_image(path, max_side=MAX_SIDE).grey)
        for degrees in TILTS_DEG:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode()), degrees])
            view = tilted(grey, degrees, rng.uniform(0, 360), rng.uniform(-180, 180))
            start = time.process_time()
            found = matcher.match(grey, view.grey, rule)
            cpu_ms.append(1e3 * (time.process_time() - start))
            size = (grey.shape[1], grey.shape[0])
            error = corner_error(found.verification.matrix, view.homography, size)
            solved.append(float(error <= SOLVED_PX))
            inliers.append(float(found.inlier_count))
            views.append(float(found.views.described))
            units.append(f"{name}@{degrees}")
            groups.append(name)
    samples = {SOLVED.name: solved, INLIERS.name: inliers, VIEWS_DESCRIBED.name: views}
    figures = {
        SOLVED_AT_TILT.of(degrees): float(np.mean(solved[number :: len(TILTS_DEG)]))
        for number, degrees in enumerate(TILTS_DEG)
    }
    figures |= {key: float(np.mean(values)) for key, values in samples.items()}
    figures[CPU_MS.of("pair")] = float(np.mean(cpu_ms))
    curve = {"x": [float(d) for d in TILTS_DEG], "y": list(figures.values())[: len(TILTS_DEG)]}
    return ModelResult(
        figures, tuple(units), tuple(groups), samples, {"solved by tilt (degrees)": curve}, stamp
    )
