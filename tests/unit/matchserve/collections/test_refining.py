"""Refined points of a collection, against cameras that are known exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pycolmap
import pytest

from matchserve.collections import refining
from matchserve.collections.collection import Collection
from matchserve.collections.export_colmap import export_colmap
from matchserve.errors import StorageDamaged
from matchserve.types import Float64
from tests.corner_scene import poses, transfer


def _transfer_errors(collection: Collection, database: Path) -> Float64:
    """Distances between matched keypoints of a database and where the true cameras see them."""
    cameras = poses(6)
    errors = []
    with pycolmap.Database.open(database) as opened:
        images = {image.name: image.image_id for image in opened.read_all_images()}
        for name0, name1, _ in collection.results():
            matches = opened.read_two_view_geometry(images[name0], images[name1]).inlier_matches
            first, second = (
                opened.read_keypoints(images[name])[:, :2].astype(np.float64) - 0.5
                for name in (name0, name1)
            )
            views = (cameras[int(Path(name0).stem)], cameras[int(Path(name1).stem)])
            seen = transfer(first[matches[:, 0]], *views)
            errors.append(seen - second[matches[:, 1]])
    return np.concatenate(errors)


def test_refined_keypoints_are_nearer_to_the_truth(matched: Collection, tmp_path: Path) -> None:
    list(matched.refine(workers=1))
    offsets = {}
    for is_refined in (False, True):
        path = tmp_path / f"{is_refined}.db"
        list(export_colmap(matched, path, is_refined=is_refined))
        offsets[is_refined] = _transfer_errors(matched, path)
    median = {key: np.median(np.linalg.norm(found, axis=1)) for key, found in offsets.items()}
    assert median[True] < 0.7 * median[False]
    # A wrong half of a pixel would move all points the same way.
    assert np.abs(np.median(offsets[True], axis=0)).max() < 0.05


def test_refining_again_does_nothing(matched: Collection) -> None:
    list(matched.refine(workers=1))
    shard = next(matched.workspace.root.glob("matches/*.refined-3.npz"))
    before = shard.stat().st_mtime_ns
    (step,) = matched.refine(workers=1)
    assert step.done == step.total == 15
    assert shard.stat().st_mtime_ns == before


def test_damaged_refined_points_are_made_again(matched: Collection) -> None:
    list(matched.refine(workers=1))
    path = next(matched.workspace.root.glob("matches/*.refined-3.npz"))
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(StorageDamaged, match="run the same command again"):
        list(matched.refined_pairs())
    list(matched.refine(workers=1))
    assert path.read_bytes() == data


def test_an_image_that_changed_is_named(matched: Collection) -> None:
    """Pixels of another image would move keypoints to where they are not."""
    refining._cache.cache_clear()  # of other tests with the same images
    (matched.folder / "0003.png").write_bytes((matched.folder / "0004.png").read_bytes())
    with pytest.raises(StorageDamaged, match=r"0003\.png has changed"):
        list(matched.refine(workers=1))
