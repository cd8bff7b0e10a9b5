"""Keypoints that the user gives: positions, and scales and orientations where they are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from matchserve.errors import InvalidParameter
from matchserve.types import Float32, Image, Keypoints
from matchserve.vision.directions import dominant_directions
from matchserve.vision.keypoints import Check, go_on

DEFAULT_SIGMA = 1.6
"""Scale of a point without one, in pixels of the working image: the finest scale of SIFT, and the
median of detected keypoints in ordinary photographs (1.3 to 1.6 on the sample pairs)."""
MIN_SIGMA, MAX_SIGMA = 0.1, 1000.0


@dataclass(frozen=True, slots=True, eq=False)
class GivenPoints:
    """N points (N, 2) to describe, in pixels of the image as sent.

    `scales` are sigmas in pixels. `orientations` are in radians, clockwise from the x axis.
    Without scales, points are described at `DEFAULT_SIGMA`; without orientations, at the dominant
    direction of the gradient around them.
    """

    xy: Float32
    scales: Float32 | None = None
    orientations: Float32 | None = None

    def __post_init__(self) -> None:
        xy = _array(self.xy, "keypoints")
        if xy.ndim != 2 or xy.shape[1] != 2:
            raise InvalidParameter("keypoints must be rows of x, y")
        object.__setattr__(self, "xy", xy)
        for name in ("scales", "orientations"):
            if getattr(self, name) is not None:
                values = _array(getattr(self, name), name)
                if values.shape != (len(xy),):
                    raise InvalidParameter(f"{name} must be one number for each keypoint")
                object.__setattr__(self, name, values)
        scales = self.scales
        if scales is not None and not ((scales >= MIN_SIGMA) & (scales <= MAX_SIGMA)).all():
            raise InvalidParameter(f"scales must be in {MIN_SIGMA}..{MAX_SIGMA:g} pixels")

    def __len__(self) -> int:
        return len(self.xy)

    @property
    def key(self) -> bytes:
        """The content as bytes: equal for equal points."""
        parts = (self.xy, self.scales, self.orientations)
        return b"|".join(b"-" if part is None else part.tobytes() for part in parts)


def place(given: GivenPoints, image: Image, *, is_upright: bool, check: Check = go_on) -> Keypoints:
    """Return given points as keypoints of an image, in their order.

    `check` is called before each part of the image in which directions are sought.

    Raises:
        InvalidParameter: a point is outside of the image.
    """
    width, height = image.size
    x, y = given.xy.T
    outside = np.flatnonzero(~((x >= -0.5) & (y >= -0.5) & (x < width - 0.5) & (y < height - 0.5)))
    if len(outside):
        raise InvalidParameter(
            f"keypoint {outside[0]} is outside of the image of {width}x{height} pixels"
        )
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    count = len(given)
    sigma = given.scales
    if sigma is None:
        sigma = np.full(count, DEFAULT_SIGMA / scale, np.float32)
    if is_upright:
        angle = np.zeros(count, np.float32)
    elif given.orientations is not None:
        angle = given.orientations
    else:
        angle = dominant_directions(image, given.xy, sigma * np.float32(scale), check)
    return Keypoints(given.xy, sigma, angle, np.ones(count, np.float32))


def _array(values: Any, what: str) -> Float32:
    try:
        raw = np.asarray(values)
        if raw.dtype.kind not in "fiu":  # complex numbers and dates would become floats as well
            raise ValueError(f"{raw.dtype} are not real numbers")
        array = raw.astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidParameter(f"{what} must be numbers") from error
    if not np.isfinite(array).all():
        raise InvalidParameter(f"{what} must be finite numbers")
    return array
