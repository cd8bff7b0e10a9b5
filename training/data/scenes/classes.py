"""Turn a reconstructed scene into classes: keypoints that show one physical point at one size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matchserve.types import Bool
from training.data.scenes.guided import find_observations
from training.data.scenes.observations import Int64, measure, read_cameras, read_points
from training.data.scenes.sfm import Scene
from training.data.scenes.tracks import (
    TrackOptions,
    connected_labels,
    drop_inconsistent,
    in_enough_images,
    merge_duplicates,
    most_different,
)


@dataclass(frozen=True, slots=True, eq=False)
class SceneClasses:
    """Classes as rows: the image name and keypoint row of each patch, in class order.

    `sizes` holds the number of rows of each class. `is_added` marks observations found by geometry
    alone, without a descriptor match. `remark` is appended to the summary of the scene.
    """

    images: tuple[str, ...]
    rows: Int64
    sizes: Int64
    is_added: Bool
    remark: str = ""


def classes_from_model(scene: Scene, options: TrackOptions) -> SceneClasses:
    """Return one class for each 3D point of a reconstruction that is observed well enough."""
    cameras = read_cameras(scene.model)
    xyz, elements = read_points(scene.model, cameras)
    observed = measure(xyz, elements, cameras, scene.keypoints)
    observed = observed[observed.error <= options.max_error_px]
    observed = merge_duplicates(observed, xyz, cameras, scene.keypoints)
    observed = drop_inconsistent(observed, len(xyz), options.tolerance)
    observed = in_enough_images(observed, options.min_images)
    added = find_observations(observed, xyz, cameras, scene.keypoints, options)
    is_added = np.arange(len(observed) + len(added)) >= len(observed)
    observed = observed.joined(added)
    chosen = np.flatnonzero(most_different(observed, options.max_patches))
    # A matched observation comes first in its class: the others are compared with it.
    order = np.lexsort((observed.error[chosen], is_added[chosen], observed.point[chosen]))
    observed, is_added = observed[chosen[order]], is_added[chosen[order]]
    names = [camera.name for camera in cameras]
    _, sizes = np.unique(observed.point, return_counts=True)
    images = tuple(names[number] for number in observed.image)
    remark = f" ({len(added)} observations beyond the matched ones)"
    return SceneClasses(images, observed.row, sizes.astype(np.int64), is_added, remark)


def classes_from_matches(scene: Scene, options: TrackOptions) -> SceneClasses:
    """Return one class for each track of verified two-view matches, without 3D.

    A track with two keypoints in one image contains a wrong match and is dropped.
    """
    names = list(scene.keypoints)
    base = np.cumsum([0, *(len(scene.keypoints[name]) for name in names)])
    offset = dict(zip(names, base[:-1].tolist(), strict=True))
    links = [
        pairs + np.array([offset[one], offset[other]])
        for (one, other), pairs in scene.matches.items()
    ]
    flat = np.concatenate([np.zeros((0, 2), np.int64), *links])
    label = connected_labels(int(base[-1]), flat)
    node = np.unique(flat)
    image = np.searchsorted(base, node, side="right") - 1
    track = label[node]
    track_and_image = track * len(names) + image
    _, where, repeats = np.unique(track_and_image, return_inverse=True, return_counts=True)
    inconsistent = np.unique(track[repeats[where] > 1])
    kept = ~np.isin(track, inconsistent)
    node, image, track = node[kept], image[kept], track[kept]
    order = np.argsort(track, kind="stable")
    node, image, track = node[order], image[order], track[order]
    rank = np.arange(len(track)) - np.searchsorted(track, track)
    node, image, track = (a[rank < options.max_patches] for a in (node, image, track))
    _, sizes = np.unique(track, return_counts=True)
    images = tuple(names[number] for number in image)
    remark = " (not registered: from verified two-view matches, without 3D)"
    rows = node - base[image]
    is_added = np.zeros(len(rows), np.bool_)
    return SceneClasses(images, rows, sizes.astype(np.int64), is_added, remark)
