"""The images and matches of a job's collection, one pair at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matchserve.collections.collection import Collection
from matchserve.collections.store import FeatureStore
from matchserve.errors import MissingInput, UnknownImage
from matchserve.jobs.kinds import Order

_TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp",
          ".tif": "image/tiff", ".tiff": "image/tiff"}  # fmt: skip


def pair_fields(order: Order, name0: str, name1: str) -> dict[str, Any]:
    """Return the matched points of a pair, those of image 1 refined, and their geometry.

    Raises:
        UnknownImage: an image is not in the collection.
        InvalidParameter: the pair was not matched in this order.
        StorageDamaged: the result is damaged; another job makes it again.
    """
    collection = _opened(order)
    row0, row1 = collection.image(name0), collection.image(name1)
    if row0 is None or row1 is None:
        raise UnknownImage("there is no such image in the collection of the job")
    found = collection.result(name0, name1)
    # Not `collection.features`: it describes an image again whose features are damaged.
    store = FeatureStore(collection.setup.store)
    features0, features1 = store.read(row0.feature_key), store.read(row1.feature_key)
    points1 = features1.keypoints.xy[found.rows[:, 1]] if found.xy1 is None else found.xy1
    return {
        "image0": {"name": name0, "size": features0.size, "keypoints": len(features0)},
        "image1": {"name": name1, "size": features1.size, "keypoints": len(features1)},
        "points0": features0.keypoints.xy[found.rows[:, 0]],
        "points1": points1,
        "inliers": found.inliers,
        "confidence": found.confidence,
        "verify": found.kind,
        "matrix": found.matrix,
        "is_verified": found.is_verified,
        "same_scene": found.same_scene,
    }


def image_file(order: Order, name: str) -> tuple[Path, str]:
    """Return the file of an image that the job has described, and its media type.

    Raises:
        UnknownImage: there is none.
    """
    row = _opened(order).image(name)
    # The name is one that the scan of the folder found, and never that of a link to elsewhere.
    path = order.images / (row.name if row is not None else "")
    suffix = path.suffix.lower()
    if row is None or row.state != "described" or not path.is_file() or suffix not in _TYPES:
        raise UnknownImage("there is no such image in the collection of the job")
    if not path.resolve().is_relative_to(order.images.resolve()):
        raise UnknownImage("there is no such image in the collection of the job")
    return path, _TYPES[suffix]


def _opened(order: Order) -> Collection:
    try:
        return Collection.open(order.workspace)
    except MissingInput as error:
        raise UnknownImage("the job has described no image yet") from error
