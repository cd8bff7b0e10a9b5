"""Clean the tracks of a reconstruction: merge duplicates, drop outliers, choose observations.

Keypoints whose size or angle in the world differs from most of their track are dropped: their
patch shows something else. Points that are the same (close in space, or observed by nearly equal
keypoints) are merged, so that no two classes show the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from matchserve.libraries import import_faiss
from matchserve.types import Bool, Float64, Keypoints
from training.data.photos.correspondence import (
    Tolerance,
    angle_between,
    near_pairs,
)
from training.data.scenes.observations import (
    Camera,
    Int64,
    Observations,
    lowest_of_each,
    plane_angles,
    same_group_pairs,
)

# Two keypoints of one image within this tolerance show the same point.
_DUPLICATE = Tolerance(position=0.5, scale=0.3, angle_deg=20.0)


@dataclass(frozen=True, slots=True)
class TrackOptions:
    """Which tracks become classes.

    At least `min_images` images must have been matched and triangulated. `max_error_px` limits
    the reprojection error of an observation; `tolerance` the differences within a class.
    Observations are added from images within `max_angle_deg` of a matched one (0 adds none). A
    class keeps the `max_patches` observations that differ most.
    """

    min_images: int = 3
    max_error_px: float = 2.0
    tolerance: Tolerance = field(default_factory=Tolerance)
    max_angle_deg: float = 45.0
    max_patches: int = 8


def drop_inconsistent(observed: Observations, count: int, tolerance: Tolerance) -> Observations:
    """Drop observations whose size or angle in the world differs from most of their track.

    Of several observations in one image, only the one of lowest error is kept. `count` is the
    number of points.
    """
    if not len(observed):
        return observed
    angle = plane_angles(observed, count)
    left, right = same_group_pairs(observed.point)
    agrees = np.abs(np.log2(observed.size[left] / observed.size[right])) <= tolerance.scale
    agrees &= angle_between(angle[left], angle[right]) <= np.radians(tolerance.angle_deg)
    votes = np.bincount(left[agrees], minlength=len(observed))
    # The reference of a track is the observation that most others agree with; the one of lower
    # error if two have equally many votes.
    reference = lowest_of_each(observed.point, -votes + np.minimum(observed.error, 1e3) / 1e4)
    is_supported = np.zeros(len(observed), np.bool_)
    is_supported[right[agrees & reference[left]]] = True
    kept = observed[is_supported]
    return kept[lowest_of_each(_point_and_image(kept), kept.error)]


def in_enough_images(observed: Observations, min_images: int) -> Observations:
    """Keep the observations of points that at least `min_images` images observe."""
    if not len(observed):
        return observed
    return observed[np.bincount(observed.point)[observed.point] >= min_images]


def merge_duplicates(
    observed: Observations,
    xyz: Float64,
    cameras: list[Camera],
    keypoints: Mapping[str, Keypoints],
) -> Observations:
    """Give points that are the same one point number."""
    links = [_near_in_space(observed, xyz)]
    for number, camera in enumerate(cameras):
        here = observed[observed.image == number]
        pairs = near_pairs(keypoints[camera.name][here.row], _DUPLICATE)
        links.append(np.stack([here.point[pairs[:, 0]], here.point[pairs[:, 1]]], axis=1))
    return observed.with_points(connected_labels(len(xyz), np.concatenate(links))[observed.point])


def most_different(observed: Observations, limit: int) -> Bool:
    """Mark at most `limit` observations of each point, those farthest apart.

    The first is the one of lowest error; then, again and again, the one farthest in direction and
    scale from all marked ones.
    """
    marked = np.ones(len(observed), np.bool_)
    sizes = np.bincount(observed.point, minlength=1)
    feature = np.column_stack([observed.toward, 0.5 * np.log2(observed.size)])
    order = np.argsort(observed.point, kind="stable")
    ends = np.cumsum(sizes)
    for point in np.flatnonzero(sizes > limit):
        rows = order[ends[point] - sizes[point] : ends[point]]
        marked[rows] = False
        chosen = [int(rows[np.argmin(observed.error[rows])])]
        distance = np.linalg.norm(feature[rows] - feature[chosen[0]], axis=1)
        while len(chosen) < limit:
            chosen.append(int(rows[np.argmax(distance)]))
            newest = np.linalg.norm(feature[rows] - feature[chosen[-1]], axis=1)
            distance = np.minimum(distance, newest)
        marked[chosen] = True
    return marked


def connected_labels(count: int, links: Int64) -> Int64:
    """Label the numbers below `count` so that those connected by links (N, 2) are equal.

    The label of a component is its lowest number.
    """
    graph = coo_array((np.ones(len(links), np.bool_), links.T), shape=(count, count))
    _, component = connected_components(graph, directed=False)
    _, lowest = np.unique(component, return_index=True)
    return np.asarray(lowest[component], np.int64)


def _near_in_space(observed: Observations, xyz: Float64) -> Int64:
    """Return pairs of points within half their size of each other, of like size and heading."""
    if len(observed) < 2:
        return np.zeros((0, 2), np.int64)
    best = observed[lowest_of_each(observed.point, observed.error)]
    position = xyz[best.point]
    position = np.ascontiguousarray(position - position.mean(axis=0), np.float32)
    count = min(8, len(position))
    _, index = import_faiss().knn(position, position, count)
    left = np.repeat(np.arange(len(position)), count)
    right = index.ravel()
    keep = left < right
    left, right = left[keep], right[keep]
    size = np.sqrt(best.size[left] * best.size[right])
    near = np.linalg.norm(position[left] - position[right], axis=1) <= _DUPLICATE.position * size
    near &= np.abs(np.log2(best.size[left] / best.size[right])) <= _DUPLICATE.scale
    cosine = np.einsum("nk,nk->n", best.heading[left], best.heading[right])
    near &= cosine >= np.cos(np.radians(_DUPLICATE.angle_deg))
    return np.stack([best.point[left[near]], best.point[right[near]]], axis=1)


def _point_and_image(observed: Observations) -> Int64:
    """Return one number for each combination of point and image."""
    images = int(observed.image.max(initial=0)) + 1
    return np.asarray(observed.point * images + observed.image, np.int64)
