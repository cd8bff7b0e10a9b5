"""Export to npz: one file for the features of each image, one for the matches of each pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from matchserve.collections.collection import Collection
from matchserve.collections.ledger import ImageRow
from matchserve.collections.progress import Meter, Step
from matchserve.encoding import COORDINATES, features_fields, features_npz, npz_bytes
from matchserve.files import write_whole
from matchserve.types import Features


def _feature_bytes(features: Features, row: ImageRow) -> bytes:
    """Encode features, with the map transform and the EPSG code of a GeoTIFF."""
    place = None if row.facts is None else row.facts.georeference
    if place is None:
        return features_npz(features)
    affine = np.array(place.matrix).reshape(2, 3)
    arrays = {"map_affine": affine, "epsg": np.array(place.epsg or 0)}
    return npz_bytes({k: np.asarray(v) for k, v in features_fields(features).items()} | arrays)


def export_npz(collection: Collection, folder: Path) -> Iterator[Step]:
    """Write `features/NAME.npz` as `matchserve describe` does, and `matches/000000.npz`, ...

    The files of matches name both images; indices are those of the feature files.
    """
    images = [row for row in collection.images() if row.state == "described"]
    meter = Meter("export", len(images) + len(collection.pairs()))
    yield meter.step()
    for row in images:
        path = folder / "features" / f"{row.name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _feature_bytes(collection.features(row), row))
        yield meter.step(1)
    (folder / "matches").mkdir(parents=True, exist_ok=True)
    for number, (name0, name1, result) in enumerate(collection.results()):
        matrix = np.full((3, 3), np.nan) if result.matrix is None else result.matrix
        arrays = {
            "image0": np.array(name0),
            "image1": np.array(name1),
            "coordinate_convention": np.array(COORDINATES),
            "matches": result.rows,
            "scores": result.score,
            "inliers": result.inliers,
            "geometry": np.array(result.kind),
            "matrix": matrix,
            "same_scene": np.array(np.nan if result.same_scene is None else result.same_scene),
        }
        if result.confidence is not None:
            arrays["match_confidence"] = result.confidence
        write_whole(folder / "matches" / f"{number:06d}.npz", npz_bytes(arrays))
        yield meter.step(1)
