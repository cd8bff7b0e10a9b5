"""Benchmark `pose`: relative pose of pairs with known cameras, AUC@5/10/20 and mAA@10 degrees."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from matchserve.types import Float64
from matchserve.vision.geometry import VerifyOptions, verify
from training.data.images import read_image
from training.evaluation.cameras import View, find_scenes, relative_pose
from training.evaluation.peer import pose_by_usac
from training.evaluation.pipeline import PairMatches, pipeline_protocol, variants
from training.evaluation.predictions import ImageSet, Predictions
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    digest_files,
    stamp_of,
)
from training.metrics.image_pairs import (
    direction_error_deg,
    epipolar_ok,
    error_auc,
    mean_average_accuracy,
    rotation_error_deg,
)
from training.metrics.metric import (
    CORRECT,
    INLIERS,
    MATCHES,
    POSE_AUC,
    POSE_ERROR,
    POSE_MAA,
    PRECISION,
    in_group,
)

AUC_LIMITS = (1, 5, 10, 20)
MAA_LIMIT = 10
MAX_AXIS_ANGLE_DEG = 60.0
CORRECT_PX = 2.0


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Estimate the relative pose of every pair with every model."""
    scenes = find_scenes(data)
    views = {f"{s}/{name}": v for s, scene in scenes.items() for name, v in scene.items()}
    images = _image_set(scenes, views, options)
    results = {}
    for each in variants(models, images, options):
        results[each.name] = score(each.predictions, each.found, images, views, options, each.stamp)
    protocol = {
        **options.protocol("max_keypoints", "ratio", "threshold_px", "seed", "limit"),
        **pipeline_protocol(options, "PoseLib relative pose, known intrinsics"),
        "pairs": f"viewing directions within {MAX_AXIS_ANGLE_DEG:g} degrees",
        "correct_px": CORRECT_PX,
    }
    return BenchmarkResult("pose", protocol, images.digest, results)


def score(
    predictions: Predictions,
    found: Mapping[tuple[str, str], PairMatches],
    images: ImageSet,
    views: Mapping[str, View],
    options: Options,
    stamp: str = "",
) -> ModelResult:
    """Return the metrics of one model over all pairs, and AUC@10 and inliers of each scene."""
    rows = [_score_pair(predictions, found[pair], pair, views, options) for pair in images.pairs]
    samples = {name: [row[name] for row in rows] for name in rows[0]}
    groups = tuple(one.split("/")[0] for one, _ in images.pairs)
    errors = samples[POSE_ERROR.name]
    figures = {
        POSE_AUC.of(limit): area
        for limit, area in zip(AUC_LIMITS, error_auc(errors, AUC_LIMITS), strict=True)
    }
    figures[POSE_MAA.of(MAA_LIMIT)] = mean_average_accuracy(errors, MAA_LIMIT)
    for metric in (MATCHES, CORRECT, PRECISION, INLIERS):
        figures[metric.name] = float(np.mean(samples[metric.name]))
    for group in dict.fromkeys(groups):
        own = [row for row, g in enumerate(groups) if g == group]
        figures[in_group(group, POSE_AUC.of(10))] = error_auc([errors[row] for row in own], [10])[0]
        inliers = float(np.mean([samples[INLIERS.name][row] for row in own]))
        figures[in_group(group, INLIERS.name)] = inliers
    # What each pair contributes to AUC@10 and mAA@10, so that `compare` can resample pairs.
    samples[POSE_AUC.of(10)] = [max(0.0, 1 - error / 10) for error in errors]
    samples[POSE_MAA.of(MAA_LIMIT)] = [mean_average_accuracy([e], MAA_LIMIT) for e in errors]
    units = tuple(f"{one}-{other.split('/')[1]}" for one, other in images.pairs)
    limits = np.linspace(0, 20, 41)
    recall = [float(np.mean(np.array(errors) <= limit)) for limit in limits]
    return ModelResult(
        figures, units, groups, samples, {"recall": {"x": limits.tolist(), "y": recall}}, stamp
    )


def _score_pair(
    predictions: Predictions,
    found: PairMatches,
    pair: tuple[str, str],
    views: Mapping[str, View],
    options: Options,
) -> dict[str, float]:
    one, other = views[pair[0]], views[pair[1]]
    left, right = one.undistort(found.points0), other.undistort(found.points1)
    rotation, translation = relative_pose(one, other)
    rule = VerifyOptions(
        kind="pose",
        threshold_px=options.threshold_px,
        seed=options.seed,
        cameras=(one.camera, other.camera),
    )
    sizes = (predictions.sizes[pair[0]], predictions.sizes[pair[1]])
    if found.is_peer:
        pose, inliers = pose_by_usac(
            (left, right), (one.camera, other.camera), options.threshold_px
        )
    else:
        estimate = verify(left, right, sizes, rule, found.confidence)
        pose, inliers = estimate.pose, estimate.inliers
    error = 180.0
    if pose is not None:
        error = max(
            rotation_error_deg(pose[:, :3], rotation), direction_error_deg(pose[:, 3], translation)
        )
    correct = epipolar_ok(
        _essential(rotation, translation),
        _rays(one, left),
        _rays(other, right),
        (one.camera.fx + other.camera.fx) / 2,
        CORRECT_PX,
    )[found.returned]
    return {
        POSE_ERROR.name: error,
        MATCHES.name: float(found.returned.sum()),
        CORRECT.name: float(correct.sum()),
        PRECISION.name: float(correct.mean()) if len(correct) else 0.0,
        INLIERS.name: float(inliers[found.returned].sum()),
    }


def _image_set(
    scenes: Mapping[str, Mapping[str, View]], views: Mapping[str, View], options: Options
) -> ImageSet:
    pairs = []
    nearest = np.cos(np.radians(MAX_AXIS_ANGLE_DEG))
    for scene, scene_views in scenes.items():
        for one, other in itertools.combinations(scene_views, 2):
            if scene_views[one].axis @ scene_views[other].axis >= nearest:
                pairs.append((f"{scene}/{one}", f"{scene}/{other}"))
    if options.limit is not None and len(pairs) > options.limit:
        chosen = np.random.default_rng(options.seed).permutation(len(pairs))[: options.limit]
        pairs = [pairs[number] for number in sorted(chosen)]
    used = {name for pair in pairs for name in pair}
    loaders = {name: partial(read_image, v.path) for name, v in views.items() if name in used}
    poses = {
        name: np.column_stack([v.rotation, v.translation]).round(6).tolist()
        for name, v in views.items()
    }
    digest = stamp_of(files=digest_files(views[name].path for name in sorted(used)), poses=poses)
    return ImageSet(loaders, pairs, digest)


def _essential(rotation: Float64, translation: Float64) -> Float64:
    x, y, z = translation / max(float(np.linalg.norm(translation)), 1e-12)
    return np.asarray(np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation)


def _rays(view: View, xy: Float64) -> Float64:
    camera = view.camera
    return np.asarray((xy - [camera.cx, camera.cy]) / [camera.fx, camera.fy])
