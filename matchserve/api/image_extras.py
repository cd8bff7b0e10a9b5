"""What a request may send with an image: a mask, shapes to ignore, or its own keypoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field

from matchserve.api.jsonbody import decode_base64, parse_object
from matchserve.api.strict import Base64, Column, Point, Rows, Strict, parse_text, validated
from matchserve.archives import read_npz
from matchserve.errors import InvalidParameter, MatchServeError
from matchserve.limits import check_keypoint_count
from matchserve.pipeline.inputs import ImageInput
from matchserve.settings import Settings
from matchserve.types import Float64, UInt8
from matchserve.vision.given_points import GivenPoints
from matchserve.vision.masks import MAX_CORNERS, MAX_SHAPES, Mask, parse_shapes

MASK_SIDE = 2048
"""Longest side of the copy of a mask that is looked at."""
_ZIP = b"PK"


Rectangle = Annotated[list[float], Field(min_length=4, max_length=4)]
Polygon = Annotated[list[Point], Field(min_length=3, max_length=MAX_CORNERS, fail_fast=True)]
Shapes = Annotated[
    Annotated[list[Rectangle | Polygon], Field(max_length=MAX_SHAPES, fail_fast=True)] | None,
    BeforeValidator(parse_text),
    Field(
        description="Shapes in which no keypoints are taken: rectangles [x0, y0, x1, y1] and "
        "polygons [[x, y], ...], in pixels; JSON in a form field."
    ),
]
MaskImage = Annotated[
    Base64 | None,
    Field(description="Image of the same aspect ratio; no keypoints are taken where it is dark."),
]


class GivenPointsJson(Strict):
    """Points to describe in place of detected keypoints."""

    keypoints: Annotated[list[Point], Rows]
    scales: Annotated[
        Column | None, Field(description="Sigmas in pixels; a fine scale if unset.")
    ] = None
    orientations: Annotated[
        Column | None,
        Field(description="Radians; the dominant direction around each point if unset."),
    ] = None


class PairExtras(Strict):
    """Shapes to ignore in two images."""

    ignore0: Shapes = None
    ignore1: Shapes = None


class PairExtrasJson(PairExtras):
    """Masks and keypoints of two images, in JSON."""

    mask0: MaskImage = None
    mask1: MaskImage = None
    keypoints0: GivenPointsJson | None = None
    keypoints1: GivenPointsJson | None = None


class SingleExtras(Strict):
    """Shapes to ignore in one image."""

    ignore: Shapes = None


class SingleExtrasJson(SingleExtras):
    """The mask and the keypoints of one image, in JSON."""

    mask: MaskImage = None
    keypoints: GivenPointsJson | None = None


@dataclass(frozen=True, slots=True)
class ImageExtras:
    """Polygons to ignore, an encoded mask image, and keypoints of one image."""

    name: str
    shapes: tuple[Float64, ...] = ()
    mask: bytes = b""
    points: GivenPoints | None = None

    def input(self, image: bytes, decode_mask: Callable[[bytes], UInt8]) -> ImageInput:
        """Return the image with these for the matcher.

        Raises:
            MatchServeError: the mask cannot be decoded, or both a mask and keypoints were sent.
        """
        mask = None
        if self.shapes or self.mask:
            with naming(f"mask of {self.name}"):
                mask = Mask(self.shapes, decode_mask(self.mask) if self.mask else None)
        with naming(self.name):
            return ImageInput(image, mask, self.points)


EXTRA_FILES = ("mask", "keypoints")
"""Parts of a form, besides images, that are files; the suffix of the image follows."""


def extras_of(
    fields: Strict, files: Mapping[str, bytes], image: str, settings: Settings
) -> ImageExtras:
    """Return what a request sends with the image `image`, `image0` or `image1`.

    Raises:
        MatchServeError: a shape, mask or keypoint cannot be used.
    """
    suffix = image.removeprefix("image")
    mask_name, points_name = f"mask{suffix}", f"keypoints{suffix}"
    with naming(f"ignore{suffix}"):
        shapes = parse_shapes(getattr(fields, f"ignore{suffix}", None) or ())
    mask = files.get(mask_name, b"")
    if text := getattr(fields, mask_name, None):
        mask = decode_base64(text, mask_name, settings.max_image_bytes)
    sent = getattr(fields, points_name, None)
    with naming(points_name):
        points = _points(sent, files.get(points_name, b""), settings)
    return ImageExtras(image, shapes, mask, points)


def _points(sent: GivenPointsJson | None, data: bytes, settings: Settings) -> GivenPoints | None:
    """Return keypoints of a JSON body, or of a file of a form: JSON or npz."""
    if sent is None and not data:
        return None
    values: list[Any]
    if data.startswith(_ZIP):
        arrays = read_npz(data, settings.max_image_bytes)
        if "keypoints" not in arrays:
            raise InvalidParameter("the file has no array 'keypoints'")
        values = [arrays.get(name) for name in ("keypoints", "scales", "orientations")]
    else:
        sent = sent or validated(GivenPointsJson, parse_object(data), is_text=False)
        values = [sent.keypoints, sent.scales, sent.orientations]
    xy = np.zeros((0, 2), np.float32) if np.size(values[0]) == 0 else values[0]
    if np.ndim(xy) != 2:
        raise InvalidParameter("keypoints must be rows of x, y")
    check_keypoint_count(len(xy), settings.max_keypoints, "the number of keypoints")
    return GivenPoints(xy, values[1], values[2])


Error = TypeVar("Error", bound=MatchServeError)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let errors of the block name the input that they are about."""
    try:
        yield
    except MatchServeError as error:
        raise named(error, name) from error


def named(error: Error, name: str) -> Error:
    """Return an error of the same type whose message begins with `name`."""
    return type(error)(
        f"{name}: {error.message}",
        limit=error.limit,
        value=error.value,
        retry_after_s=error.retry_after_s,
    )
