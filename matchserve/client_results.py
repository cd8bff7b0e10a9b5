"""Results of the service as the Python client returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from matchserve.types import Float32, Int32, ViewReport

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ClientMatch:
    """The result of a match: keypoints of both images, index pairs, points, and the geometry.

    `match_confidence` is the probability that each match is right, None if the model gives none;
    `confidence` is that of the geometry. `points1` are refined where `refined` says so, and
    `affine` (M, 2, 2) are the local maps, None without refinement. `guided` marks matches that were
    found along the geometry. With `verify="pose"`,
    `geometry_pose` is (R | t), 3x4, and `geometry_cameras` are the cameras that were used.
    Scales, orientations and scores of the keypoints are None without `details=True`. Sizes are
    (width, height).
    """

    model: str
    keypoints0: Float32
    keypoints1: Float32
    matches: Int32
    distances: Float32
    scores: Float32
    inliers: NDArray[np.bool_]
    geometry_kind: str
    geometry_matrix: NDArray[np.float64] | None
    confidence: float
    same_scene: float | None
    points0: Float32
    points1: Float32
    match_confidence: Float32 | None
    refined: NDArray[np.bool_]
    guided: NDArray[np.bool_]
    affine: Float32 | None
    orientation: str
    views: ViewReport
    geometry_reason: str
    geometry_pose: NDArray[np.float64] | None
    geometry_cameras: tuple[str, str] | None
    image_size0: Size
    image_size1: Size
    working_size0: Size
    working_size1: Size
    truncated: bool
    notes: tuple[str, ...]
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    scales0: Float32 | None = None
    scales1: Float32 | None = None
    orientations0: Float32 | None = None
    orientations1: Float32 | None = None
    keypoint_scores0: Float32 | None = None
    keypoint_scores1: Float32 | None = None


_SAME = (
    *("model", "keypoints0", "keypoints1", "matches", "distances", "scores", "inliers"),
    *("same_scene", "points0", "points1", "refined", "guided", "affine", "orientation"),
    *("truncated", "timings_ms"),
)
"""Fields with the same name in the response."""
_DETAILS = tuple(
    f"{name}{side}" for name in ("scales", "orientations", "keypoint_scores") for side in (0, 1)
)


def read_match(data: bytes) -> ClientMatch:
    """Read a match from a msgpack response."""
    return match_from_fields(unpack(data))


def match_from_fields(fields: Mapping[str, Any]) -> ClientMatch:
    """Return a match from the fields of a response."""
    geometry, cameras = fields["geometry"], fields["geometry"].get("cameras")
    same: dict[str, Any] = {name: fields[name] for name in _SAME}
    details: dict[str, Any] = {name: fields.get(name) for name in _DETAILS}
    return ClientMatch(
        **same,
        **details,
        **_sizes(fields),
        match_confidence=fields["confidence"],
        notes=tuple(fields["notes"]),
        views=_views(fields["views"]),
        geometry_kind=geometry["kind"],
        geometry_matrix=geometry["matrix"],
        geometry_pose=geometry.get("pose"),
        geometry_cameras=None if cameras is None else (str(cameras[0]), str(cameras[1])),
        geometry_reason=geometry["reason"],
        confidence=geometry["confidence"],
    )


def _views(views: Mapping[str, Any]) -> ViewReport:
    best0, best1 = ((float(tilt), float(angle)) for tilt, angle in views["best"])
    return ViewReport(int(views["described"]), (best0, best1), str(views["reason"]))


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for side in (0, 1):
        size = fields[f"image{side}"]
        sent = (size["width"], size["height"])
        working = (size["working_width"], size["working_height"])
        sizes[f"image_size{side}"] = sent
        sizes[f"working_size{side}"] = sent if None in working else working
    return sizes


def unpack(data: bytes) -> dict[str, Any]:
    """Decode msgpack; maps of dtype, shape and bytes become arrays."""
    fields: dict[str, Any] = msgpack.unpackb(data, object_hook=_array)
    return fields


def _array(value: dict[str, Any]) -> Any:
    if value.keys() != {"dtype", "shape", "data"}:
        return value
    return np.frombuffer(value["data"], np.dtype(value["dtype"])).reshape(value["shape"])
