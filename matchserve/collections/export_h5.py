"""Export to hloc: `features.h5`, `matches.h5` and `pairs.txt`, as its own tools write them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from matchserve.collections.collection import Collection
from matchserve.collections.progress import Meter, Step
from matchserve.files import write_text_whole
from matchserve.libraries import import_h5py
from matchserve.types import Features


def export_hloc(collection: Collection, folder: Path) -> Iterator[Step]:
    """Write the three files, each completely or not at all.

    Keypoints are float32 and match indices int32: hloc's own float16 and int16 lose a pixel above
    1024 and overflow above 32,767 keypoints. hloc adds half a pixel itself when it writes a
    COLMAP database.

    Raises:
        ProviderUnavailable: h5py is not installed.
    """
    images = [row for row in collection.images() if row.state == "described"]
    meter = Meter("export", len(images) + len(collection.pairs()))
    yield meter.step()
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    with whole_h5(folder / "features.h5") as file:
        for row in images:
            features = collection.features(row)
            counts[row.name] = len(features)
            write_features(file.create_group(row.name), features)
            yield meter.step(1)
    lines = []
    with whole_h5(folder / "matches.h5") as file:
        for name0, name1, result in collection.results():
            group = file.create_group(f"{_escaped(name0)}/{_escaped(name1)}")
            rows, score = result.rows[result.inliers], result.score[result.inliers]
            matches = np.full(counts[name0], -1, np.int32)
            matches[rows[:, 0]] = rows[:, 1]
            scores = np.zeros(counts[name0], np.float16)
            scores[rows[:, 0]] = score
            group.create_dataset("matches0", data=matches)
            group.create_dataset("matching_scores0", data=scores)
            lines.append(f"{name0} {name1}\n")
            yield meter.step(1)
    write_text_whole(folder / "pairs.txt", "".join(lines))


def write_features(group: Any, features: Features) -> None:
    """Write the features of one image to a group, named as in hloc's files."""
    keypoints = group.create_dataset("keypoints", data=features.keypoints.xy)
    keypoints.attrs["uncertainty"] = 1.0
    group.create_dataset("scales", data=features.keypoints.sigma)
    group.create_dataset("oris", data=features.keypoints.angle)
    group.create_dataset("scores", data=features.keypoints.score)
    descriptors = features.descriptors
    if features.kind == "float":
        descriptors = descriptors.astype(np.float16)
    group.create_dataset("descriptors", data=np.ascontiguousarray(descriptors.T))
    group.create_dataset("image_size", data=np.array(features.size))


def _escaped(name: str) -> str:
    """Replace the separator of HDF5 groups as hloc's `names_to_pair` does."""
    return name.replace("/", "-")


@contextmanager
def whole_h5(path: Path) -> Iterator[Any]:
    """Open a temporary HDF5 file that replaces `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with import_h5py().File(temporary, "w", libver="latest") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
