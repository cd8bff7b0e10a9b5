"""Benchmark `sfm`: reconstruct scenes with a model's features and measure the reconstruction.

If the cameras of a scene are known, its intrinsics are kept fixed, and the estimated camera centres
are compared with the true ones after the best similarity transform. Otherwise COLMAP guesses and
refines a focal length.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap
from numpy.typing import NDArray

from matchserve.collections.colmap import PIXEL_SHIFT, quiet
from matchserve.types import Float64
from training.data.images import read_image
from training.data.scenes.build import find_scenes as find_plain_scenes
from training.data.scenes.sfm import (
    SfmOptions,
    build_database,
    run_mapper,
)
from training.errors import DataError
from training.evaluation.cameras import View, find_scenes
from training.evaluation.pipeline import confidence_stamp
from training.evaluation.predictions import (
    ImageSet,
    as_keypoints,
    cached,
    describe_all,
    find_keypoints,
)
from training.evaluation.protocol import (
    BenchmarkResult,
    Model,
    ModelResult,
    Options,
    Pipeline,
    digest_files,
    matching_code,
    stamp_of,
)
from training.evaluation.refined_scene import match_scene
from training.metrics.metric import (
    CENTRE_ERROR,
    IMAGES,
    OBSERVATIONS,
    POINTS,
    REGISTERED,
    REPROJECTION,
    TRACK_LENGTH,
    in_group,
)

# The order of the array in cached reconstructions, then what is computed from the centres.
_STORED = (IMAGES, REGISTERED, POINTS, OBSERVATIONS, TRACK_LENGTH, REPROJECTION)
_METRICS = (*_STORED, CENTRE_ERROR)


_MATCHERS: dict[Pipeline, str] = {
    "raw": "mutual nearest neighbour",
    "default": "default of a collection, refined points made consistent over all matches",
}


def run(models: Iterable[Model], data: list[Path], options: Options) -> BenchmarkResult:
    """Reconstruct every scene with every model."""
    if options.pipeline not in _MATCHERS:
        raise DataError("the benchmark sfm measures one pipeline at a time: raw or default")
    scenes = _scenes(data)
    digests, results = {}, {}
    for model in models:
        figures: dict[str, float] = {}
        samples: dict[str, list[float]] = {metric.name: [] for metric in _METRICS}
        for name, (images, views) in scenes.items():
            digests[name] = images.digest
            measured = _reconstruct(model, name, images, views, options)
            for metric, value in measured.items():
                figures[in_group(name, metric)] = value
                samples[metric].append(value)
        units = tuple(scenes)
        results[model.name] = ModelResult(figures, units, units, samples, stamp=model.stamp)
    protocol = {
        **options.protocol("max_keypoints", "ratio", "seed"),
        "matcher": f"{_MATCHERS[options.pipeline]}, all pairs up to 15 images",
        "mapper": f"pycolmap {pycolmap.__version__} incremental, COLMAP's defaults",
        "centre_error": "root mean square after similarity alignment, in the unit of the truth",
    }
    return BenchmarkResult("sfm", protocol, stamp_of(**digests), results)


def align_similarity(source: Float64, target: Float64) -> tuple[float, Float64, Float64]:
    """Return the scale, rotation and translation that best map points `source` to `target`.

    Both are (N, 3); least squares by Umeyama's closed form.
    """
    middle_s, middle_t = source.mean(axis=0), target.mean(axis=0)
    centred_s, centred_t = source - middle_s, target - middle_t
    u, d, vt = np.linalg.svd(centred_t.T @ centred_s / len(source))
    sign = np.ones(3)
    sign[2] = np.sign(np.linalg.det(u) * np.linalg.det(vt))
    rotation = u @ np.diag(sign) @ vt
    variance = float((centred_s**2).sum() / len(source))
    scale = float((d * sign).sum() / max(variance, 1e-18))
    return scale, rotation, np.asarray(middle_t - scale * rotation @ middle_s)


def centre_error(centres: Mapping[str, Float64], views: Mapping[str, View]) -> float:
    """Return the RMS distance of camera centres after alignment; NaN for fewer than three."""
    names = sorted(set(centres) & set(views))
    if len(names) < 3:
        return float("nan")
    source = np.array([centres[name] for name in names])
    target = np.array([views[name].centre for name in names])
    scale, rotation, shift = align_similarity(source, target)
    gap = scale * source @ rotation.T + shift - target
    return float(np.sqrt((gap**2).sum(axis=1).mean()))


def _scenes(data: list[Path]) -> dict[str, tuple[ImageSet, dict[str, View]]]:
    """Find scenes with known cameras, or else plain folders of images."""
    try:
        known = find_scenes(data)
    except DataError:
        plain = find_plain_scenes(data)
        return {name: (_image_set(paths), {}) for name, paths in plain.items()}
    return {
        name: (_image_set({k: v.path for k, v in views.items()}), views)
        for name, views in known.items()
    }


def _image_set(paths: Mapping[str, Path]) -> ImageSet:
    loaders = {name: partial(read_image, path) for name, path in paths.items()}
    return ImageSet(loaders, [], digest_files(paths[name] for name in sorted(paths)))


def _reconstruct(
    model: Model, scene: str, images: ImageSet, views: Mapping[str, View], options: Options
) -> dict[str, float]:
    stamp = stamp_of(
        model=model.stamp,
        data=images.digest,
        known=bool(views),
        mapper=2,
        code=matching_code(),
        **_pipeline_stamp(model, options),
        **options.protocol("max_keypoints", "ratio", "seed"),
    )
    path = options.cache / f"sfm-{model.name}-{scene}-{stamp}.npz"
    folder = options.workspace / f"sfm-{model.name}-{scene}-{stamp}"
    kept = cached(path, lambda: _map_scene(model, images, views, folder, options))
    centres = dict(zip(kept["names"].tolist(), kept["centres"], strict=True))
    figures = {m.name: v for m, v in zip(_STORED, kept["figures"].tolist(), strict=True)}
    return {**figures, CENTRE_ERROR.name: centre_error(centres, views)}


def _pipeline_stamp(model: Model, options: Options) -> dict[str, str]:
    """Return what identifies the default pipeline; nothing for raw matches, as it always was."""
    if options.pipeline == "raw":
        return {}
    return {"pipeline": f"{options.pipeline} 4", "confidence": confidence_stamp(model)}


def _map_scene(
    model: Model,
    images: ImageSet,
    views: Mapping[str, View],
    folder: Path,
    options: Options,
) -> dict[str, NDArray[Any]]:
    quiet()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rule = SfmOptions(ratio=options.ratio, seed=options.seed, threads=options.threads or -1)
    matches = None
    if options.pipeline == "default":
        matched = match_scene(model, images, options, rule)
        features, matches = matched.features, matched.matches
    else:
        rows = find_keypoints(images, options)
        keypoints = {name: as_keypoints(rows[name][1:]) for name in images.images}
        features = describe_all(model, images.images, keypoints)
    cameras = {name: _known_camera(views[name], features[name].size) for name in views}
    build_database(folder / "database.db", features, rule, cameras or None, matches)
    model_3d = run_mapper(folder, rule, refine_intrinsics=not views, has_two_view_points=False)
    shutil.rmtree(folder, ignore_errors=True)
    return _summary(model_3d, len(images.images))


def _summary(model_3d: Any | None, images: int) -> dict[str, NDArray[Any]]:
    if model_3d is None:
        figures = [images, 0, 0, 0, 0.0, float("nan")]
        return {
            "names": np.zeros(0, "U1"),
            "centres": np.zeros((0, 3)),
            "figures": np.array(figures),
        }
    registered = [model_3d.image(i) for i in model_3d.reg_image_ids()]
    figures = [
        images,
        len(registered),
        model_3d.num_points3D(),
        model_3d.compute_num_observations(),
        model_3d.compute_mean_track_length(),
        model_3d.compute_mean_reprojection_error(),
    ]
    return {
        "names": np.array([image.name for image in registered]),
        "centres": np.array([image.projection_center() for image in registered]),
        "figures": np.array(figures, np.float64),
    }


def _known_camera(view: View, size: tuple[int, int]) -> Any:
    camera = view.camera
    colmap = pycolmap.Camera.create_from_model_id(
        0, pycolmap.CameraModelId.PINHOLE, camera.fx, *size
    )
    colmap.params = [camera.fx, camera.fy, camera.cx + PIXEL_SHIFT, camera.cy + PIXEL_SHIFT]
    colmap.has_prior_focal_length = True
    return colmap
