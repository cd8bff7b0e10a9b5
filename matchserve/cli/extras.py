"""Masks, ignored shapes and keypoints that are given with an image on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from matchserve.archives import read_npz
from matchserve.errors import ImageError, InvalidParameter
from matchserve.files import read_file
from matchserve.matcher import Matcher
from matchserve.pipeline.inputs import ImageInput
from matchserve.vision.given_points import GivenPoints
from matchserve.vision.masks import Mask, parse_shapes

MAX_POINTS_BYTES = 50_000_000
_ZIP = b"PK"
_MASK_HELP = "Image of the same aspect ratio; no keypoints are taken where it is dark."
_IGNORE_HELP = (
    "Take no keypoints inside of a rectangle x0,y0,x1,y1 or a polygon x,y,x,y,x,y... in pixels; "
    "may be given several times."
)
_POINTS_HELP = (
    "Describe the points of this JSON or npz file in place of detected keypoints: keypoints as "
    "rows x, y, and scales and orientations if they are known."
)
MaskFile = Annotated[Path | None, typer.Option(help=_MASK_HELP)]
IgnoredShapes = Annotated[list[str] | None, typer.Option(help=_IGNORE_HELP)]
PointsFile = Annotated[Path | None, typer.Option(help=_POINTS_HELP)]


@dataclass(frozen=True, slots=True)
class Extras:
    """What is given with one image; `name` is image, image0 or image1."""

    name: str
    mask: Path | None = None
    ignore: tuple[list[float], ...] = ()
    points: GivenPoints | None = None

    def input(self, data: bytes, matcher: Matcher) -> ImageInput:
        """Return the image for the matcher.

        Raises:
            InvalidParameter: the mask cannot be used, or contradicts given keypoints.
        """
        mask = None
        if self.mask is not None or self.ignore:
            picture = None
            if self.mask is not None:
                try:
                    picture = matcher.load(self.mask).grey
                except ImageError as error:
                    raise type(error)(
                        f"mask of {self.name} ({self.mask}): {error.message}"
                    ) from error
            mask = Mask(parse_shapes([_corners(shape) for shape in self.ignore]), picture)
        return ImageInput(data, mask, self.points)

    def fields(self) -> dict[str, Any]:
        """Return the options of the client."""
        suffix = self.name.removeprefix("image")
        points = self.points
        given = points and {"keypoints": points.xy} | {
            name: value
            for name, value in (("scales", points.scales), ("orientations", points.orientations))
            if value is not None
        }
        return {
            f"mask{suffix}": self.mask,
            f"ignore{suffix}": [_corners(shape) for shape in self.ignore] or None,
            f"keypoints{suffix}": given,
        }


def extras(name: str, mask: Path | None, ignore: list[str] | None, points: Path | None) -> Extras:
    """Return what is given with one image.

    Raises:
        InvalidParameter: a shape or the file of keypoints cannot be used.
        MissingInput: a file cannot be read.
    """
    shapes = tuple(_numbers(text) for text in ignore or ())
    return Extras(name, mask, shapes, None if points is None else read_points(points))


def read_points(path: Path) -> GivenPoints:
    """Read keypoints from an npz or a JSON file.

    Raises:
        InvalidParameter: the file does not hold keypoints.
        MissingInput: the file cannot be read.
    """
    data = read_file(path, MAX_POINTS_BYTES)
    try:
        fields: Any
        fields = read_npz(data, MAX_POINTS_BYTES) if data.startswith(_ZIP) else orjson.loads(data)
        if not isinstance(fields, Mapping) or "keypoints" not in fields:
            raise InvalidParameter("it has no `keypoints`")
        return GivenPoints(fields["keypoints"], fields.get("scales"), fields.get("orientations"))
    except (InvalidParameter, orjson.JSONDecodeError) as error:
        raise InvalidParameter(f"{path}: not a file of keypoints: {error}") from error


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidParameter(f"a shape must be numbers with commas, not {text!r}") from error
    if len(numbers) < 4 or len(numbers) % 2:
        raise InvalidParameter(f"a shape must be x0,y0,x1,y1 or at least three x,y, not {text!r}")
    return numbers


def _corners(numbers: list[float]) -> list[Any]:
    """Return a rectangle as it is, and the corners of a polygon."""
    if len(numbers) == 4:
        return numbers
    return [numbers[i : i + 2] for i in range(0, len(numbers), 2)]


def refuse_with_tiles(server: str | None, *given: Extras) -> None:
    """Check that nothing is given that large images cannot be described with.

    Raises:
        InvalidParameter: there is a server, a mask, an ignored shape or a file of keypoints.
    """
    if server is not None:
        raise InvalidParameter("--tiles works on this machine, not with --server")
    if any(one.mask is not None or one.ignore or one.points is not None for one in given):
        raise InvalidParameter("--tiles finds its own keypoints, without masks and given keypoints")
