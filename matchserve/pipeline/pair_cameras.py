"""The cameras of a pair: read from EXIF data if asked, and fitted to the size of the images."""

from __future__ import annotations

from dataclasses import replace

from matchserve.errors import InvalidParameter
from matchserve.limits import Limits
from matchserve.options import Options
from matchserve.vision.cameras import Camera
from matchserve.vision.headers import Encoded
from matchserve.vision.pixels import exif_focal_px

Size = tuple[int, int]
FocalLengths = tuple[float | None, float | None]
"""Focal lengths in pixels that were read from EXIF data; None for a camera that was given."""


def wants_exif(options: Options) -> bool:
    """Return whether a camera has to be read from EXIF data."""
    return options.verify.kind == "pose" and "exif" in (options.verify.cameras or ())


def read_focal_lengths(
    images: tuple[Encoded, Encoded], options: Options, limits: Limits
) -> FocalLengths:
    """Read the focal lengths that the options want from EXIF data.

    Raises:
        InvalidParameter: the EXIF data do not say.
        ImageError: an image cannot be used.
    """
    first, second = (
        _focal_length(name, data, limits) if choice == "exif" else None
        for name, data, choice in zip(
            ("image0", "image1"), images, options.verify.cameras or (), strict=True
        )
    )
    return first, second


def with_cameras(
    options: Options, focal_lengths: FocalLengths, sizes: tuple[Size, Size]
) -> Options:
    """Return the options with the cameras of images of these sizes.

    Raises:
        InvalidParameter: a camera is for images of another shape, or has no focal length.
    """
    verify = options.verify
    if verify.kind != "pose" or verify.cameras is None:
        return options
    first, second = (
        _camera(choice, focal, size)
        for choice, focal, size in zip(verify.cameras, focal_lengths, sizes, strict=True)
    )
    return replace(options, verify=replace(verify, cameras=(first, second)))


def _focal_length(name: str, data: Encoded, limits: Limits) -> float:
    focal = exif_focal_px(data, limits=limits)
    if focal is None:
        raise InvalidParameter(f"{name} has no focal length in its EXIF data; give its camera")
    return focal


def _camera(choice: Camera | str, focal: float | None, size: Size) -> Camera:
    if isinstance(choice, Camera):
        return choice.fitted_to(size)
    if focal is None:
        raise InvalidParameter("camera 'exif' needs images with EXIF data")
    return Camera.centred(focal, size)
