"""`matchserve match --map-coordinates`: matched points of GeoTIFF files on their maps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from matchserve.cli.output import say
from matchserve.collections.facts import read_facts
from matchserve.errors import InvalidParameter
from matchserve.files import read_file
from matchserve.geotiff import GeoReference, georeference_of
from matchserve.types import MatchResult
from matchserve.vision.decode import ExifPolicy


@dataclass(frozen=True, slots=True)
class MapCoordinates:
    """The georeferences of two images; None for one that has none. Empty if they are not wanted."""

    references: tuple[GeoReference | None, ...] = ()

    def fields(self, result: MatchResult) -> dict[str, Any]:
        """Return the matched points (M, 2) in map coordinates, and the EPSG codes, for JSON."""
        fields: dict[str, Any] = {}
        for side, reference in enumerate(self.references):
            points = result.points()[side]
            fields[f"map_points{side}"] = None if reference is None else reference.to_map(points)
            fields[f"epsg{side}"] = None if reference is None else reference.epsg
        return fields

    def arrays(self, result: MatchResult) -> dict[str, Any]:
        """Return the same for an npz archive: NaN and 0 where there is nothing."""
        absent = {"map_points": np.full((len(result.matches), 2), np.nan), "epsg": np.array(0)}
        return {
            name: absent[name[:-1]] if value is None else np.asarray(value)
            for name, value in self.fields(result).items()
        }

    def say_summary(self, result: MatchResult) -> None:
        """Print the names of the maps and, if both are one, how far apart the inliers are on it."""
        if not self.references:
            return
        first, second = self.references
        text = f"map coordinates: {_name(first)} and {_name(second)}"
        points0, points1 = (points[result.verification.inliers] for points in result.points())
        if first is not None and second is not None and first.epsg == second.epsg and len(points0):
            x, y = np.median(second.to_map(points1) - first.to_map(points0), axis=0)
            text += f"; inliers of image 1 lie {x:+.6g}, {y:+.6g} from those of image 0 (median)"
        say(escape(text))


def read_map_coordinates(
    images: tuple[Path, Path], server: str | None, *, exif: ExifPolicy, in_windows: bool
) -> MapCoordinates:
    """Read the georeferences of two files.

    Raises:
        InvalidParameter: a server is to do the work, neither file has a georeference, or one is
            rotated by its EXIF orientation.
        MissingInput: a file cannot be read.
    """
    if server is not None:
        raise InvalidParameter("--map-coordinates works on this machine, not with --server")
    references = tuple(georeference_of(image) for image in images)
    if not any(references):
        raise InvalidParameter(
            f"neither {images[0]} nor {images[1]} is a GeoTIFF with a transform to a map"
        )
    for image, reference in zip(images, references, strict=True):
        if reference is not None and exif == "apply" and not in_windows:
            _check_upright(image)
    return MapCoordinates(references)


def _check_upright(image: Path) -> None:
    facts = read_facts(read_file(image))
    if facts is not None and facts.orientation != 1:
        raise InvalidParameter(
            f"{image} is rotated by its EXIF orientation, its map transform is not; "
            "use --exif ignore"
        )


def _name(reference: GeoReference | None) -> str:
    if reference is None:
        return "none"
    return "an unnamed map" if reference.epsg is None else f"EPSG:{reference.epsg}"
