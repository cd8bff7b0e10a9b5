"""What is matched: an image as it is, or with a mask or with keypoints of its own."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.types import Image
from matchserve.vision.given_points import GivenPoints
from matchserve.vision.masks import Mask

PlainSource: TypeAlias = bytes | bytearray | memoryview | str | PathLike[str] | NDArray[Any] | Image
"""Encoded bytes, a path to a file, a uint8/uint16 array (grey or RGB), or a decoded image."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageInput:
    """An image with a mask that hides parts of it, or with the points that are described."""

    source: PlainSource
    mask: Mask | None = None
    points: GivenPoints | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and self.points is not None:
            raise InvalidParameter("an image has either a mask or given keypoints, not both")

    @property
    def key(self) -> bytes:
        """What decides about the keypoints besides the image: part of the key of a cache."""
        if self.mask is not None:
            return b"mask" + self.mask.key
        return b"" if self.points is None else b"points" + self.points.key


ImageSource: TypeAlias = PlainSource | ImageInput


def as_input(source: ImageSource) -> ImageInput:
    """Return a source as an input, without a mask or points if it has none."""
    return source if isinstance(source, ImageInput) else ImageInput(source)
