"""A store of features on disk, by the content of the image, the model and the options."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import numpy as np

from matchserve.encoding import features_fields, features_from_fields
from matchserve.errors import InvalidParameter, StorageDamaged
from matchserve.large import KEYPOINTS_PER_MEGAPIXEL
from matchserve.matcher import Options
from matchserve.models.card import ModelCard
from matchserve.objects import Place
from matchserve.sealed import read_sealed, write_sealed
from matchserve.types import Features
from matchserve.vision.windows import CORE

FORMAT = 1
"""Version of the stored features; a new one makes all features anew."""


def feature_key(
    image_sha256: str, card: ModelCard, options: Options, *, in_windows: bool = False
) -> str:
    """Return the name of an image's features, a hash of the image, the model and the options."""
    parts: dict[str, Any] = {
        "format": FORMAT,
        "image": image_sha256,
        "model": card.name,
        "weights": card.sha256 or card.fingerprint,
        "detect": asdict(options.detect),
        "exif": options.exif,
        "max_side": options.max_side,
    }
    if card.detector is not None:
        parts["detector"] = card.detector.sha256
    if in_windows:
        parts["windows"] = {"core": CORE, "per_megapixel": KEYPOINTS_PER_MEGAPIXEL}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class FeatureStore:
    """Features in files `ab/abcd….npz` of one folder, which several collections may share.

    Float descriptors are stored with 16 bits. Writers need no lock: two that write the same key
    write the same bytes.
    """

    def __init__(self, folder: Place) -> None:
        self.folder = folder

    def path(self, key: str) -> Place:
        """Return the file of a key."""
        return self.folder / key[:2] / f"{key}.npz"

    def __contains__(self, key: str) -> bool:
        return self.path(key).is_file()

    def read(self, key: str) -> Features:
        """Read the features of a key.

        Raises:
            StorageDamaged: they are absent or damaged; describe the image again.
        """
        try:
            return features_from_fields(dict(read_sealed(self.path(key))))
        except InvalidParameter as error:
            raise StorageDamaged(f"{self.path(key)} does not contain features") from error

    def write(self, key: str, features: Features) -> None:
        """Store features.

        Raises:
            StorageFull: there is no room on the disk.
        """
        fields = features_fields(features)
        if features.kind == "float":
            fields["descriptors"] = features.descriptors.astype(np.float16)
        write_sealed(self.path(key), fields)
