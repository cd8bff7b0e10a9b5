"""Tracks: keypoints of several images that are connected by matches, one in each image.

A wrong match, or one between neighbouring keypoints, connects two tracks. The result has two
keypoints in one image, which cannot both be the projection of one point, and a reconstruction
places that point imprecisely.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool

Rows = NDArray[np.intp]


def unambiguous_matches(one: Rows, other: Rows, image: Rows, weights: NDArray[np.floating]) -> Bool:
    """Mark matches (M,) so that no track of marked matches has two keypoints in one image.

    Match i connects the keypoints `one[i]` and `other[i]`; `image` (N,) is the image of each
    keypoint. Of matches that contradict each other, those of larger weight are marked.
    """
    kept = np.ones(len(one), np.bool_)
    labels = connected_components(one, other, len(image))
    doubtful = np.flatnonzero(_has_two_of_an_image(labels, image)[labels[one]])
    order = doubtful[np.argsort(-weights[doubtful], kind="stable")]
    tracks = _GrowingTracks(image)
    rows = zip(order.tolist(), one[order].tolist(), other[order].tolist(), strict=True)
    kept[[number for number, first, second in rows if not tracks.join(first, second)]] = False
    return kept


def connected_components(one: Rows, other: Rows, count: int) -> Rows:
    """Return for each of `count` keypoints the smallest number of a keypoint of its track, (N,)."""
    labels = np.arange(count)
    while True:
        lower = np.minimum(labels[one], labels[other])
        joined = labels.copy()
        # Labels of labels: whole tracks join at once, not single keypoints.
        for side in (one, other):
            np.minimum.at(joined, labels[side], lower)
        joined = joined[joined]
        if np.array_equal(joined, labels):
            return labels
        labels = joined


def _has_two_of_an_image(labels: Rows, image: Rows) -> Bool:
    """Mark the labels (N,) of tracks that have two keypoints in one image."""
    order = np.lexsort((image, labels))
    same = (labels[order][1:] == labels[order][:-1]) & (image[order][1:] == image[order][:-1])
    marked = np.zeros(len(labels), np.bool_)
    marked[labels[order][1:][same]] = True
    return marked


class _GrowingTracks:
    """Disjoint sets of keypoints that join unless the result had two keypoints of one image."""

    def __init__(self, image: Rows) -> None:
        self._image = image
        self._parent: dict[int, int] = {}
        self._images: dict[int, set[int]] = {}

    def join(self, one: int, other: int) -> bool:
        """Join the tracks of two keypoints; return whether they are one track now."""
        first, second = self._root(one), self._root(other)
        if first == second:
            return True
        if not self._images[first].isdisjoint(self._images[second]):
            return False
        if len(self._images[first]) < len(self._images[second]):
            first, second = second, first
        self._parent[second] = first
        self._images[first] |= self._images.pop(second)
        return True

    def _root(self, keypoint: int) -> int:
        if keypoint not in self._parent:
            self._parent[keypoint] = keypoint
            self._images[keypoint] = {int(self._image[keypoint])}
        while (above := self._parent[keypoint]) != keypoint:
            self._parent[keypoint] = keypoint = self._parent[above]
        return keypoint
