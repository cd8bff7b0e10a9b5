"""Cameras: COLMAP's models with distortion, their text form, and the focal length of EXIF."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Float64
from matchserve.vision.distortion import LENSES, distorted, undistorted

PIXEL_SHIFT = 0.5
"""COLMAP's centre of the top-left pixel is (0.5, 0.5), ours is (0, 0)."""

CameraChoice: TypeAlias = "Camera | Literal['exif']"
"""A camera, or `exif`: focal length of the EXIF data, principal point in the centre."""

TEXT_FORMS = (
    "fx,fy,cx,cy in pixels with pixel centres at integers, or a COLMAP model with its parameters "
    "as in cameras.txt, with or without the image size, e.g. "
    "SIMPLE_RADIAL,4000,3000,f,cx,cy,k"
)
_MAX_ASPECT_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera: focal lengths and principal point in pixels, with pixel centres at integers.

    `model` is the name of a COLMAP model, `distortion` its other parameters. `size` is the size
    (width, height) of the images that it describes; None if it is that of the image as sent.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    model: str = "PINHOLE"
    distortion: tuple[float, ...] = ()
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        values = (self.fx, self.fy, self.cx, self.cy)
        if not all(math.isfinite(v) for v in values) or self.fx <= 0 or self.fy <= 0:
            raise InvalidParameter(
                f"a camera needs positive focal lengths and a finite centre, not {values}"
            )
        if self.model not in LENSES:
            raise InvalidParameter(f"no camera model {self.model!r}; there are {', '.join(LENSES)}")
        count = LENSES[self.model].parameters
        if len(self.distortion) != count or not all(math.isfinite(v) for v in self.distortion):
            raise InvalidParameter(f"{self.model} has {count} finite distortion parameters")
        if self.size is not None and min(self.size) < 1:
            raise InvalidParameter(f"a camera's image size is {self.size}, must be positive")

    @classmethod
    def from_colmap(
        cls, model: str, parameters: Sequence[float], size: tuple[int, int] | None = None
    ) -> Camera:
        """Return the camera of COLMAP's parameters, whose pixel centres are at 0.5.

        Raises:
            InvalidParameter: there is no such model, or the parameters do not fit it.
        """
        model = model.upper()
        if model not in LENSES:
            raise InvalidParameter(f"no camera model {model!r}; there are {', '.join(LENSES)}")
        lens = LENSES[model]
        count = lens.focal_lengths + 2 + lens.parameters
        if len(parameters) != count:
            raise InvalidParameter(f"{model} has {count} parameters, not {len(parameters)}")
        fx, fy = parameters[0], parameters[lens.focal_lengths - 1]
        cx, cy = parameters[lens.focal_lengths : lens.focal_lengths + 2]
        rest = tuple(float(v) for v in parameters[lens.focal_lengths + 2 :])
        return cls(fx, fy, cx - PIXEL_SHIFT, cy - PIXEL_SHIFT, model, rest, size)

    @classmethod
    def centred(cls, focal_px: float, size: tuple[int, int]) -> Camera:
        """Return a camera without distortion whose principal point is the image centre."""
        return cls.from_colmap("SIMPLE_PINHOLE", (focal_px, size[0] / 2, size[1] / 2), size)

    @property
    def matrix(self) -> Float64:
        """The 3x3 calibration matrix."""
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]], np.float64)

    @property
    def parameters(self) -> tuple[float, ...]:
        """The parameters as COLMAP orders them, with pixel centres at 0.5."""
        focal = (self.fx, self.fy)[: LENSES[self.model].focal_lengths]
        return (*focal, self.cx + PIXEL_SHIFT, self.cy + PIXEL_SHIFT, *self.distortion)

    def pinhole(self) -> Camera:
        """Return the camera without distortion that `undistorted` maps to."""
        return Camera(self.fx, self.fy, self.cx, self.cy, size=self.size)

    def undistorted(self, xy: NDArray[Any]) -> Float64:
        """Map points (N, 2) to those of the pinhole camera `matrix`; NaN where it sees none."""
        focal, centre = np.array([self.fx, self.fy]), np.array([self.cx, self.cy])
        rays = (np.asarray(xy, np.float64) - centre) / focal
        ideal = undistorted(LENSES[self.model], self.distortion, rays)
        return np.asarray(ideal * focal + centre)

    def distorted(self, xy: NDArray[Any]) -> Float64:
        """Map points (N, 2) of the pinhole camera `matrix` to those of this camera."""
        focal, centre = np.array([self.fx, self.fy]), np.array([self.cx, self.cy])
        rays = (np.asarray(xy, np.float64) - centre) / focal
        seen = distorted(LENSES[self.model], self.distortion, rays)
        return np.asarray(seen * focal + centre)

    def fitted_to(self, size: tuple[int, int]) -> Camera:
        """Return the camera of the same image at another resolution.

        Raises:
            InvalidParameter: the camera's images have another aspect ratio.
        """
        if self.size is None or self.size == size:
            return replace(self, size=size)
        sx, sy = size[0] / self.size[0], size[1] / self.size[1]
        if abs(sx / sy - 1) > _MAX_ASPECT_ERROR:
            raise InvalidParameter(
                "a camera is for images of {}x{}, the image is {}x{}".format(*self.size, *size)
            )
        cx = (self.cx + PIXEL_SHIFT) * sx - PIXEL_SHIFT
        cy = (self.cy + PIXEL_SHIFT) * sy - PIXEL_SHIFT
        return replace(self, fx=self.fx * sx, fy=self.fy * sy, cx=cx, cy=cy, size=size)

    def __str__(self) -> str:
        """Return the text that `parse_camera` reads: COLMAP's model, image size and parameters."""
        size = () if self.size is None else self.size
        return ",".join([self.model, *(f"{v:.10g}" for v in (*size, *self.parameters))])


def parse_camera(text: str) -> CameraChoice:
    """Read a camera: `exif`, `fx,fy,cx,cy`, or a COLMAP model as in `cameras.txt`.

    The number of values tells whether an image size precedes the parameters of the model.

    Raises:
        InvalidParameter: the text is none of these.
    """
    first, *rest = re.split(r"[,;\s]+", text.strip())
    if first.lower() == "exif" and not rest:
        return "exif"
    if first.upper() in LENSES:
        return _parsed_model(first.upper(), _numbers(rest, text))
    values = _numbers([first, *rest], text)
    if len(values) != 4:
        raise InvalidParameter(f"a camera must be exif, {TEXT_FORMS}; not {text!r}")
    fx, fy, cx, cy = values
    return Camera(fx, fy, cx, cy)


def _parsed_model(model: str, values: list[float]) -> Camera:
    lens = LENSES[model]
    count = lens.focal_lengths + 2 + lens.parameters
    if len(values) == count + 2:
        width, height = values[:2]
        if not (width.is_integer() and height.is_integer()):
            raise InvalidParameter(f"a camera's image size is {width}x{height}, not whole numbers")
        return Camera.from_colmap(model, values[2:], (int(width), int(height)))
    return Camera.from_colmap(model, values)


def _numbers(parts: list[str], text: str) -> list[float]:
    try:
        return [float(part) for part in parts]
    except ValueError as error:
        raise InvalidParameter(f"a camera must be exif, {TEXT_FORMS}; not {text!r}") from error


def chosen_cameras(
    both: str | Camera | None, first: str | Camera | None, second: str | Camera | None
) -> tuple[CameraChoice, CameraChoice] | None:
    """Return the cameras of a pair, from one for both images or from one for each.

    Raises:
        InvalidParameter: a camera is missing, given twice, or cannot be read.
    """
    if both is not None and (first is not None or second is not None):
        raise InvalidParameter("give camera, or camera0 and camera1, not both")
    first, second = (both, both) if both is not None else (first, second)
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise InvalidParameter("camera0 and camera1 must both be given")
    return _choice(first), _choice(second)


def _choice(camera: str | Camera) -> CameraChoice:
    return parse_camera(camera) if isinstance(camera, str) else camera
