"""Export to openMVG: `sfm_data.json`, `.feat` and `.desc` text files, and `matches.f.txt`.

openMVG names features by the file name of an image, without its folder and suffix.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from matchserve.collections.cameras import CameraRule, ImageCamera, camera_of, group_cameras
from matchserve.collections.collection import Collection
from matchserve.collections.colmap import FOCAL_GUESS
from matchserve.collections.ledger import ImageRow
from matchserve.collections.progress import Meter, Step
from matchserve.errors import InvalidParameter
from matchserve.files import write_text_whole, write_whole
from matchserve.types import Features

_POLYMORPHIC_NEW = 2147483649  # how cereal marks the first object of a type
_POLYMORPHIC_PRIVATE = 1073741824


def export_openmvg(
    collection: Collection, folder: Path, *, camera: CameraRule = "auto"
) -> Iterator[Step]:
    """Write the files to `folder`, which is openMVG's folder of matches.

    Raises:
        InvalidParameter: two images have the same file name in different folders.
    """
    images = [row for row in collection.images() if row.state == "described"]
    stems = {row.name: PurePosixPath(row.name).stem for row in images}
    if len(set(stems.values())) < len(stems):
        raise InvalidParameter("openMVG needs different file names in all folders")
    meter = Meter("export", len(images) + len(collection.pairs()))
    yield meter.step()
    folder.mkdir(parents=True, exist_ok=True)
    cameras = []
    for row in images:
        features = collection.features(row)
        cameras.append(ImageCamera(row.name, features.size, row.facts))
        write_text_whole(folder / f"{stems[row.name]}.feat", _features_text(features))
        write_whole(folder / f"{stems[row.name]}.desc", _descriptor_text(features))
        yield meter.step(1)
    numbers = {row.name: number for number, row in enumerate(images)}
    blocks = []
    for name0, name1, result in collection.results():
        if result.is_verified:
            rows = result.rows[result.inliers]
            lines = "".join(f"{a} {b}\n" for a, b in rows.tolist())
            blocks.append(f"{numbers[name0]} {numbers[name1]}\n{len(rows)}\n{lines}")
        yield meter.step(1)
    write_text_whole(folder / "matches.f.txt", "".join(blocks))
    scene = _scene(collection, images, cameras, camera)
    write_text_whole(folder / "sfm_data.json", json.dumps(scene, indent=1))


def _features_text(features: Features) -> str:
    """Return one line `x y scale orientation` for each keypoint."""
    keypoints = features.keypoints
    rows = np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle])
    buffer = io.StringIO()
    np.savetxt(buffer, rows, fmt="%.4f")
    return buffer.getvalue()


def _descriptor_text(features: Features) -> bytes:
    """Return descriptors as openMVG's binary files have them: a count, then the rows."""
    count = np.array([len(features)], np.uint64)
    rows = features.descriptors
    if features.kind == "float":
        # openMVG's descriptors are bytes; a unit vector's components are -1 to 1.
        rows = np.clip(np.round(128 + 127 * rows), 0, 255).astype(np.uint8)
    return count.tobytes() + np.ascontiguousarray(rows).tobytes()


def _scene(
    collection: Collection, images: list[ImageRow], cameras: list[ImageCamera], rule: CameraRule
) -> dict[str, Any]:
    groups = group_cameras(cameras, rule)
    group_of = camera_of(groups)
    intrinsics = [
        {
            "key": number,
            "value": {
                "polymorphic_id": _POLYMORPHIC_NEW if number == 0 else 1,
                **({"polymorphic_name": "pinhole_radial_k3"} if number == 0 else {}),
                "ptr_wrapper": {
                    "id": _POLYMORPHIC_NEW + number,
                    "data": {
                        "width": group.size[0],
                        "height": group.size[1],
                        "focal_length": group.focal_px or FOCAL_GUESS * max(group.size),
                        "principal_point": [(side - 1) / 2 for side in group.size],
                        "disto_k3": [0.0, 0.0, 0.0],
                    },
                },
            },
        }
        for number, group in enumerate(groups)
    ]
    views = [
        _view(number, row.name, camera.size, group_of[row.name], len(groups))
        for number, (row, camera) in enumerate(zip(images, cameras, strict=True))
    ]
    return {
        "sfm_data_version": "0.3",
        "root_path": str(collection.folder.absolute()),
        "views": views,
        "intrinsics": intrinsics,
        "extrinsics": [],
        "structure": [],
        "control_points": [],
    }


def _view(
    number: int, name: str, size: tuple[int, int], intrinsic: int, intrinsics: int
) -> dict[str, Any]:
    path = PurePosixPath(name)
    return {
        "key": number,
        "value": {
            "polymorphic_id": _POLYMORPHIC_PRIVATE,
            "ptr_wrapper": {
                "id": _POLYMORPHIC_NEW + intrinsics + number,
                "data": {
                    "local_path": "" if str(path.parent) == "." else str(path.parent),
                    "filename": path.name,
                    "width": size[0],
                    "height": size[1],
                    "id_view": number,
                    "id_intrinsic": intrinsic,
                    "id_pose": number,
                },
            },
        },
    }
