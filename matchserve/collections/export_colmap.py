"""Export to COLMAP's `database.db`: cameras, keypoints, matches and verified geometries.

The geometries are those of the collection, so COLMAP does not have to verify the matches again.
Pairs without a verified geometry are left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from matchserve.collections.cameras import CameraRule, ImageCamera, camera_of, group_cameras
from matchserve.collections.collection import Collection
from matchserve.collections.colmap import (
    guessed_camera,
    shifted_fundamental,
    shifted_homography,
    write_image,
)
from matchserve.collections.colmap_verification import two_view_geometry
from matchserve.collections.ledger import ImageRow
from matchserve.collections.progress import Meter, Step
from matchserve.collections.shards import PairResult
from matchserve.libraries import import_pycolmap
from matchserve.sealed import raise_if_full
from matchserve.types import POINT_MAPS, Bool, Features
from matchserve.vision.consistency import agree


def export_colmap(
    collection: Collection, path: Path, *, camera: CameraRule = "auto", is_refined: bool = False
) -> Iterator[Step]:
    """Write the database, completely or not at all.

    With `is_refined`, keypoints are written where the refined points of `Collection.refine` agree,
    and matches that do not agree are no inliers.

    Raises:
        ProviderUnavailable: pycolmap is not installed.
        InvalidParameter: one camera is requested for images of different sizes.
        StorageFull: there is no room on the disk.
    """
    pycolmap = import_pycolmap()
    images = [row for row in collection.images() if row.state == "described"]
    pairs = len(collection.pairs())
    meter = Meter("export", len(images) + pairs)
    yield meter.step()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with (
            pycolmap.Database.open(temporary) as database,
            pycolmap.DatabaseTransaction(database),
        ):
            features = {row.name: collection.features(row) for row in images}
            agreeing: dict[tuple[str, str], Bool] = {}
            if is_refined:
                features, agreeing = _moved(features, collection)
            ids = _write_images(database, features, images, camera)
            yield meter.step(len(images))
            for name0, name1, result in collection.results():
                kept = agreeing.get((name0, name1))
                _write_pair(database, (ids[name0], ids[name1]), result, kept)
                yield meter.step(1)
        _flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise_if_full(error, path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _write_images(
    database: Any, features: dict[str, Features], images: list[ImageRow], rule: CameraRule
) -> dict[str, int]:
    cameras = [ImageCamera(row.name, features[row.name].size, row.facts) for row in images]
    groups = group_cameras(cameras, rule)
    numbers = [database.write_camera(guessed_camera(g.size, g.focal_px)) for g in groups]
    group_of = camera_of(groups)
    ids = {}
    for row in images:
        camera_id = numbers[group_of[row.name]]
        ids[row.name] = write_image(database, row.name, camera_id, features[row.name].keypoints)
        if row.facts is not None and row.facts.position is not None:
            _write_position(database, ids[row.name], row.facts.position)
    return ids


def _moved(
    features: dict[str, Features], collection: Collection
) -> tuple[dict[str, Features], dict[tuple[str, str], Bool]]:
    """Return features whose keypoints lie where their refined matches agree, and which do."""
    keypoints = {name: one.keypoints for name, one in features.items()}
    pairs = list(collection.refined_pairs())
    agreement = agree(keypoints, pairs)
    moved = {
        name: replace(one, keypoints=replace(one.keypoints, xy=agreement.points[name]))
        for name, one in features.items()
    }
    names = (pair.images for pair in pairs)
    return moved, dict(zip(names, agreement.agreeing, strict=True))


def _write_position(
    database: Any, image_id: int, position: tuple[float, float, float | None]
) -> None:
    pycolmap = import_pycolmap()
    latitude, longitude, altitude = position
    prior = pycolmap.PosePrior(
        corr_data_id=database.read_image(image_id).data_id,
        position=np.array([latitude, longitude, 0.0 if altitude is None else altitude]),
        coordinate_system=pycolmap.PosePriorCoordinateSystem.WGS84,
    )
    database.write_pose_prior(prior)


def _write_pair(database: Any, ids: tuple[int, int], result: PairResult, kept: Bool | None) -> None:
    """Write a verified pair; `kept` marks the inliers that are written as such, None for all."""
    pycolmap = import_pycolmap()
    if not result.is_verified or result.matrix is None:
        return
    inliers = result.rows[result.inliers]
    inliers = inliers if kept is None else inliers[kept]
    geometry = pycolmap.TwoViewGeometry()
    geometry.inlier_matches = inliers.astype(np.uint32)
    if result.colmap is not None:
        geometry = two_view_geometry(result.colmap, inliers)
    elif result.kind in POINT_MAPS:
        geometry.config = pycolmap.TwoViewGeometryConfiguration.PLANAR
        geometry.H = shifted_homography(result.matrix)
    else:
        geometry.config = pycolmap.TwoViewGeometryConfiguration.UNCALIBRATED
        geometry.F = shifted_fundamental(result.matrix)
    database.write_matches(*ids, result.rows.astype(np.uint32))
    database.write_two_view_geometry(*ids, geometry)


def _flush(path: Path) -> None:
    """COLMAP turns off the flushing of SQLite."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        os.fsync(file.fileno())
