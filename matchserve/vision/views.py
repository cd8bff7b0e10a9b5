"""Synthetic views of an image: the image as a camera from another direction would see it.

A view compresses the image by its tilt along one direction (Yu and Morel 2011, ASIFT): the affine
part of what a camera sees that looks at a flat scene from an angle. A tilt of 2 is a camera at 60
degrees to the normal. The map is symmetric, so a view keeps the orientation of its image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.types import Bool, Float64, Image, Keypoints, UInt8
from matchserve.vision.keypoints import Region

# docs/research/match-quality.md says how they were chosen.
SMALL_TILT, SMALL_TILT_ANGLES = 2.0, 4
LARGE_TILT, LARGE_TILT_ANGLES = 4.0, 8
# Pairs of views before the first one with a large tilt.
PAIRS_OF_SMALL_TILT = 1 + 2 * SMALL_TILT_ANGLES
# Blur for the compressed direction, in pixels per square root of tilt^2 - 1 (as in ASIFT).
_BLUR = 0.8


@dataclass(frozen=True, slots=True)
class View:
    """A direction to look at an image from: tilt, at least 1, and angle in degrees, 0 to 180.

    The image is compressed by `tilt` along the direction `angle_deg`, clockwise from the x axis.
    """

    tilt: float = 1.0
    angle_deg: float = 0.0

    @property
    def linear(self) -> Float64:
        """The symmetric map (2, 2) from offsets in the image to offsets in the view."""
        angle = math.radians(self.angle_deg)
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        return np.asarray(turn.T @ np.diag([1 / self.tilt, 1.0]) @ turn)

    def __str__(self) -> str:
        return "as sent" if self.tilt == 1 else f"tilt {self.tilt:g} at {self.angle_deg:g} degrees"


FRONTAL = View()


def view_pairs() -> tuple[tuple[View, View], ...]:
    """Return the views of image 0 and of image 1 in the order in which they are matched.

    As in MODS (Mishkin et al. 2015), what solves most pairs at the least cost comes first: the
    images as sent, then each tilted a little against the other as sent, then more, then both.
    """
    little = [View(SMALL_TILT, angle) for angle in _angles(SMALL_TILT_ANGLES)]
    much = [View(LARGE_TILT, angle) for angle in _angles(LARGE_TILT_ANGLES)]
    pairs = [(FRONTAL, FRONTAL)]
    for views in (little, much):
        for view in views:
            pairs += [(view, FRONTAL), (FRONTAL, view)]
    pairs += [(one, other) for one in little for other in little]
    return tuple(pairs)


def _angles(count: int) -> list[float]:
    """Spread angles over half a turn, far apart ones first."""
    steps = [180.0 * number / count for number in range(count)]
    return steps[::2] + steps[1::2]


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticView:
    """A rendered view; `affine` (2, 3) maps points of the image as sent to points of the view."""

    image: Image
    affine: Float64

    @property
    def linear(self) -> Float64:
        """The map (2, 2) from offsets in the image as sent to offsets in the view."""
        return self.affine[:, :2]

    @property
    def back(self) -> Float64:
        """The map (2, 2) from offsets in the view to offsets in the image as sent."""
        return np.asarray(np.linalg.inv(self.linear))

    def to_sent(self, xy: NDArray[Any]) -> Float64:
        """Map points (N, 2) of the view to the image as sent."""
        return np.asarray((np.asarray(xy, np.float64) - self.affine[:, 2]) @ self.back.T)

    def keypoints_as_sent(self, keypoints: Keypoints, *, is_upright: bool) -> Keypoints:
        """Map keypoints of the view to the image as sent; upright ones stay upright."""
        back = self.back
        angle = keypoints.angle
        if not is_upright:
            direction = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ back.T
            angle = np.arctan2(direction[:, 1], direction[:, 0]).astype(np.float32)
        scale = np.float32(math.sqrt(abs(float(np.linalg.det(back)))))
        xy = self.to_sent(keypoints.xy).astype(np.float32)
        return Keypoints(xy, scale * keypoints.sigma, angle, keypoints.score)


@dataclass(frozen=True, slots=True, eq=False)
class ViewRegion:
    """Where keypoints of a view are taken: inside the image as sent, and where `mask` allows."""

    view: SyntheticView
    size: tuple[int, int]
    mask: Region | None = None

    def allows(self, xy: NDArray[Any], _size: tuple[int, int]) -> Bool:
        """Return which points (N, 2) of the view show the image."""
        sent = self.view.to_sent(xy)
        inside: Bool = np.all((sent >= 0) & (sent <= np.array(self.size) - 1), axis=1)
        return inside if self.mask is None else inside & self.mask.allows(sent, self.size)


def render(image: Image, view: View, max_pixels: int | None = None) -> SyntheticView:
    """Render a view of an image, with about as many pixels as the working image at most.

    It is smaller if it would have more than `max_pixels`; the image as sent stays as it is.
    """
    if view.tilt == 1:
        return SyntheticView(image, np.eye(2, 3))
    rows, columns = image.grey.shape
    linear = view.linear
    corners = np.array([[0, 0], [columns - 1, 0], [0, rows - 1], [columns - 1, rows - 1]])
    mapped = corners @ linear.T
    extent = mapped.max(axis=0) - mapped.min(axis=0) + 1
    allowed = min(rows * columns, max_pixels or rows * columns)
    scale = min(1.0, math.sqrt(allowed / float(np.prod(extent))))
    linear, mapped = scale * linear, scale * mapped
    size = np.maximum(np.ceil(mapped.max(axis=0) - mapped.min(axis=0) + 1), 1).astype(int)
    affine = np.column_stack([linear, -mapped.min(axis=0)])
    canvas = (int(size[0]), int(size[1]))
    blurred = _blurred(image.grey, view, scale)
    # The outside repeats the border, as for patches: an edge would be full of keypoints.
    grey = cv2.warpAffine(
        blurred, affine, canvas, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    # From pixels as sent to working pixels, then to the view.
    to_working = np.column_stack([np.diag(image.scale_xy), 0.5 * image.scale_xy - 0.5])
    full = affine @ np.vstack([to_working, [0, 0, 1]])
    return SyntheticView(Image(np.asarray(grey, np.uint8), canvas), np.asarray(full))


def _blurred(grey: UInt8, view: View, scale: float) -> UInt8:
    """Blur along the compressed direction, as the larger pixels of the view do."""
    tilt = view.tilt / scale
    sigma = _BLUR * math.sqrt(tilt**2 - 1)
    angle = math.radians(view.angle_deg)
    reach = math.ceil(3 * sigma)
    x, y = np.meshgrid(np.arange(-reach, reach + 1), np.arange(-reach, reach + 1))
    along = x * math.cos(angle) + y * math.sin(angle)
    across = -x * math.sin(angle) + y * math.cos(angle)
    # Across, 0.35 pixels hardly blur, and are enough for a kernel on a grid.
    kernel = np.exp(-0.5 * ((along / sigma) ** 2 + (across / 0.35) ** 2))
    return np.asarray(cv2.filter2D(grey, -1, kernel / kernel.sum()), np.uint8)
