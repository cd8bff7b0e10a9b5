"""From a reconstruction to classes: which keypoints show one physical point at one size.

A track is taken if enough images see it with small reprojection errors. Keypoints of other size
or angle in the world than most of their track are dropped: their patch shows something else.
Points that are one (near in space, or one keypoint apart in an image) are merged, so that two
classes never show the same thing. Then images that see the point but were not matched are asked
for a keypoint at the right place, size and angle: the views a descriptor has yet to learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from matchserve.libraries import import_faiss
from matchserve.types import Bool, Float64, Keypoints
from training.data.photos.correspond import (
    Tolerance,
    angle_between,
    correspond,
    near_pairs,
)
from training.data.scenes.observations import (
    Camera,
    Int64,
    Observations,
    best_of_each,
    measure,
    plane_angles,
    read_cameras,
    read_points,
    same_group_pairs,
    unit,
)
from training.data.scenes.sfm import Scene

# Keypoints of one image nearer than this are one point.
_DUPLICATE = Tolerance(position=0.5, scale=0.3, angle_deg=20.0)
# Neighbours asked whether a point is hidden, and how many must lie at its depth.
_NEIGHBOURS, _AT_DEPTH, _DEPTH_SHARE = 6, 4, 0.03


@dataclass(frozen=True, slots=True)
class TrackOptions:
    """What makes a class.

    `min_images` must have been matched and triangulated; `max_error_px` is the reprojection error
    of a keypoint; `tolerance` holds between the sightings of a class; sightings are added from
    images within `max_angle_deg` of a matched one (0 adds none); a class keeps the `max_patches`
    most different ones.
    """

    min_images: int = 3
    max_error_px: float = 2.0
    tolerance: Tolerance = field(default_factory=Tolerance)
    max_angle_deg: float = 45.0
    max_patches: int = 8


@dataclass(frozen=True, slots=True, eq=False)
class SceneClasses:
    """Classes as rows: image name and keypoint row of each patch, `sizes` the rows of a class.

    `is_added` marks sightings that geometry alone speaks for, not a match of descriptors.
    """

    images: tuple[str, ...]
    rows: Int64
    sizes: Int64
    is_added: Bool
    remark: str = ""


def classes_of_model(scene: Scene, options: TrackOptions) -> SceneClasses:
    """Classes of the 3D points of a reconstructed scene."""
    cameras = read_cameras(scene.model)
    xyz, seen = read_points(scene.model, cameras)
    observed = measure(xyz, seen, cameras, scene.keypoints)
    observed = observed[observed.error <= options.max_error_px]
    observed = merge_duplicates(observed, xyz, cameras, scene.keypoints)
    observed = agreeing(observed, len(xyz), options.tolerance)
    observed = in_enough_images(observed, options.min_images)
    added = more_sightings(observed, xyz, cameras, scene.keypoints, options)
    is_added = np.arange(len(observed) + len(added)) >= len(observed)
    observed = _together(observed, added)
    chosen = np.flatnonzero(most_different(observed, options.max_patches))
    # A matched sighting comes first in its class: the others are compared with it.
    order = np.lexsort((observed.error[chosen], is_added[chosen], observed.point[chosen]))
    observed, is_added = observed[chosen[order]], is_added[chosen[order]]
    names = [camera.name for camera in cameras]
    _, sizes = np.unique(observed.point, return_counts=True)
    images = tuple(names[number] for number in observed.image)
    remark = f" ({len(added)} sightings beyond the matched ones)"
    return SceneClasses(images, observed.row, sizes.astype(np.int64), is_added, remark)


def classes_of_matches(scene: Scene, options: TrackOptions) -> SceneClasses:
    """Classes of verified two-view matches alone, chained from image to image.

    A chain that comes back to an image at another keypoint has a wrong link, and is dropped.
    """
    names = list(scene.keypoints)
    base = np.cumsum([0, *(len(scene.keypoints[name]) for name in names)])
    offset = dict(zip(names, base[:-1].tolist(), strict=True))
    links = [
        pairs + np.array([offset[one], offset[other]])
        for (one, other), pairs in scene.matches.items()
    ]
    flat = np.concatenate([np.zeros((0, 2), np.int64), *links])
    label = joined(int(base[-1]), flat)
    node = np.unique(flat)
    image = np.searchsorted(base, node, side="right") - 1
    group = label[node]
    pair_key = group * len(names) + image
    _, where, repeats = np.unique(pair_key, return_inverse=True, return_counts=True)
    torn = np.unique(group[repeats[where] > 1])
    kept = ~np.isin(group, torn)
    node, image, group = node[kept], image[kept], group[kept]
    order = np.argsort(group, kind="stable")
    node, image, group = node[order], image[order], group[order]
    rank = np.arange(len(group)) - np.searchsorted(group, group)
    node, image, group = (a[rank < options.max_patches] for a in (node, image, group))
    _, sizes = np.unique(group, return_counts=True)
    images = tuple(names[number] for number in image)
    remark = " (not registered: from verified two-view matches, without 3D)"
    rows = node - base[image]
    is_added = np.zeros(len(rows), np.bool_)
    return SceneClasses(images, rows, sizes.astype(np.int64), is_added, remark)


def agreeing(observed: Observations, count: int, tolerance: Tolerance) -> Observations:
    """Drop sightings whose size or angle in the world differ from those of most of their track."""
    if not len(observed):
        return observed
    angle = plane_angles(observed, count)
    left, right = same_group_pairs(observed.point)
    alike = np.abs(np.log2(observed.size[left] / observed.size[right])) <= tolerance.scale
    alike &= angle_between(angle[left], angle[right]) <= np.radians(tolerance.angle_deg)
    votes = np.bincount(left[alike], minlength=len(observed))
    # The sighting most others agree with speaks for its point; the better placed one if two do.
    speaker = best_of_each(observed.point, -votes + np.minimum(observed.error, 1e3) / 1e4)
    backed = np.zeros(len(observed), np.bool_)
    backed[right[alike & speaker[left]]] = True
    kept = observed[backed]
    return kept[best_of_each(_key(kept.point, kept.image), kept.error)]


def in_enough_images(observed: Observations, min_images: int) -> Observations:
    """Keep the points that at least `min_images` images see."""
    if not len(observed):
        return observed
    return observed[np.bincount(observed.point)[observed.point] >= min_images]


def merge_duplicates(
    observed: Observations,
    xyz: Float64,
    cameras: list[Camera],
    keypoints: Mapping[str, Keypoints],
) -> Observations:
    """Give points that are one and the same the same number."""
    links = [_near_in_space(observed, xyz)]
    for number, camera in enumerate(cameras):
        here = observed[observed.image == number]
        pairs = near_pairs(keypoints[camera.name][here.row], _DUPLICATE)
        links.append(np.stack([here.point[pairs[:, 0]], here.point[pairs[:, 1]]], axis=1))
    return observed.regrouped(joined(len(xyz), np.concatenate(links))[observed.point])


def more_sightings(
    observed: Observations,
    xyz: Float64,
    cameras: list[Camera],
    keypoints: Mapping[str, Keypoints],
    options: TrackOptions,
) -> Observations:
    """Sightings in images where the point must be visible and a free keypoint fits."""
    if not len(observed) or options.max_angle_deg <= 0:
        return observed[np.zeros(0, np.int64)]
    speaker = observed[best_of_each(observed.point, observed.error)]
    found = []
    for number, camera in enumerate(cameras):
        here = observed[observed.image == number]
        open_points = ~np.isin(speaker.point, here.point)
        open_points &= _is_facing(observed, speaker.point, xyz, camera, options.max_angle_deg)
        wanted = speaker[open_points]
        expected, depth = _expected(wanted, xyz, camera)
        visible = _is_visible(expected, depth, here, xyz, camera)
        wanted, expected = wanted[visible], expected[visible]
        free = np.ones(len(keypoints[camera.name]), np.bool_)
        free[here.row] = False
        rows = np.flatnonzero(free)
        pairs = correspond(expected, keypoints[camera.name][rows], options.tolerance)
        seen = np.stack(
            [
                wanted.point[pairs[:, 0]],
                np.full(len(pairs), number, np.int64),
                rows[pairs[:, 1]],
            ],
            axis=1,
        )
        found.append(seen)
    added = measure(xyz, np.concatenate(found), cameras, keypoints)
    return added[added.error <= options.max_error_px]


def most_different(observed: Observations, limit: int) -> Bool:
    """Mark at most `limit` sightings of each point, farthest apart in direction and scale first."""
    marked = np.ones(len(observed), np.bool_)
    sizes = np.bincount(observed.point, minlength=1)
    feature = np.column_stack([observed.toward, 0.5 * np.log2(observed.size)])
    order = np.argsort(observed.point, kind="stable")
    ends = np.cumsum(sizes)
    for point in np.flatnonzero(sizes > limit):
        rows = order[ends[point] - sizes[point] : ends[point]]
        marked[rows] = False
        chosen = [int(rows[np.argmin(observed.error[rows])])]
        far = np.linalg.norm(feature[rows] - feature[chosen[0]], axis=1)
        while len(chosen) < limit:
            chosen.append(int(rows[np.argmax(far)]))
            far = np.minimum(far, np.linalg.norm(feature[rows] - feature[chosen[-1]], axis=1))
        marked[chosen] = True
    return marked


def joined(count: int, links: NDArray[np.int64]) -> Int64:
    """Label 0 .. count-1 so that linked numbers share the label of the lowest of them."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for one, other in links.tolist():
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return np.array([root(node) for node in range(count)], np.int64)


def _near_in_space(observed: Observations, xyz: Float64) -> Int64:
    """Pairs of points nearer than half their size that are seen alike."""
    if len(observed) < 2:
        return np.zeros((0, 2), np.int64)
    speaker = observed[best_of_each(observed.point, observed.error)]
    place = xyz[speaker.point]
    place = np.ascontiguousarray(place - place.mean(axis=0), np.float32)
    count = min(8, len(place))
    _, index = import_faiss().knn(place, place, count)
    left = np.repeat(np.arange(len(place)), count)
    right = index.ravel()
    keep = left < right
    left, right = left[keep], right[keep]
    size = np.sqrt(speaker.size[left] * speaker.size[right])
    near = np.linalg.norm(place[left] - place[right], axis=1) <= _DUPLICATE.position * size
    near &= np.abs(np.log2(speaker.size[left] / speaker.size[right])) <= _DUPLICATE.scale
    turn = np.einsum("nk,nk->n", speaker.heading[left], speaker.heading[right])
    near &= turn >= np.cos(np.radians(_DUPLICATE.angle_deg))
    return np.stack([speaker.point[left[near]], speaker.point[right[near]]], axis=1)


def _is_facing(
    observed: Observations, points: Int64, xyz: Float64, camera: Camera, max_angle_deg: float
) -> Bool:
    """Whether some image that saw the point did so from within `max_angle_deg` of `camera`."""
    line = unit(camera.centre - xyz)
    cosine = np.einsum("nk,nk->n", observed.toward, line[observed.point])
    best = np.full(len(xyz), -1.0)
    np.maximum.at(best, observed.point, cosine)
    return np.asarray(best[points] >= np.cos(np.radians(max_angle_deg)))


def _expected(wanted: Observations, xyz: Float64, camera: Camera) -> tuple[Keypoints, Float64]:
    """The keypoint that each point should be in `camera`, and its depth."""
    place = xyz[wanted.point]
    pixels, depth = camera.project(place)
    ahead, _ = camera.project(place + 0.1 * wanted.size[:, None] * wanted.heading)
    turn = ahead - pixels
    sigma = wanted.size * camera.focal / np.maximum(depth, 1e-9)
    sigma = np.where(depth > 0, sigma, 1e-6)
    pixels = np.where(depth[:, None] > 0, pixels, -1e6)
    angle = np.arctan2(turn[:, 1], turn[:, 0])
    columns = np.column_stack([pixels, sigma, angle, np.ones(len(place))]).astype(np.float32)
    return Keypoints(columns[:, :2], *columns[:, 2:].T), depth


def _is_visible(
    expected: Keypoints, depth: Float64, here: Observations, xyz: Float64, camera: Camera
) -> Bool:
    """Whether the points that the image did match nearby lie at the same depth."""
    if len(here) < _NEIGHBOURS or not len(expected):
        return np.zeros(len(expected), np.bool_)
    pixels, known = camera.project(xyz[here.point])
    _, index = import_faiss().knn(
        np.ascontiguousarray(expected.xy), np.ascontiguousarray(pixels, np.float32), _NEIGHBOURS
    )
    close = np.abs(known[index] / np.maximum(depth, 1e-9)[:, None] - 1) <= _DEPTH_SHARE
    return np.asarray((close.sum(axis=1) >= _AT_DEPTH) & (depth > 0))


def _together(one: Observations, other: Observations) -> Observations:
    names = ("point", "image", "row", "error", "size", "toward", "heading")
    return Observations(*(np.concatenate([getattr(one, n), getattr(other, n)]) for n in names))


def _key(point: Int64, image: Int64) -> Int64:
    return np.asarray(point * (int(image.max(initial=0)) + 1) + image, np.int64)
