"""Encode results and features as JSON or npz, with the same fields in files and over HTTP.

Coordinates are pixels of the image as sent; the centre of the top-left pixel is (0, 0).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from matchserve.archives import read_npz
from matchserve.errors import InvalidParameter
from matchserve.files import read_file
from matchserve.types import Features, Keypoints, MatchResult, is_unit_length

COORDINATES = "pixel_center_0"
MAX_FEATURES_BYTES = 1 << 30
"""Maximum size of the arrays of described images in a file."""
MAX_COORDINATE = 1e7
"""Maximum absolute value, in pixels, of coordinates and scales of features from outside."""
MAX_MODEL_NAME, MAX_FINGERPRINT = 256, 128
_DIGITS = 3


def result_fields(result: MatchResult, *, details: bool = False) -> dict[str, Any]:
    """Return a match as a dictionary of arrays, numbers and strings.

    `details` adds the scale, orientation and score of each keypoint.
    """
    verification = result.verification
    geometry: dict[str, Any] = {
        "kind": verification.kind,
        "matrix": verification.matrix,
        "inliers": result.inlier_count,
        "confidence": verification.confidence,
        "reason": verification.reason,
        "pose": verification.pose,
        "cameras": verification.cameras,
    }
    return {
        "model": result.model,
        "coordinate_convention": COORDINATES,
        "image0": size_fields(result.features0),
        "image1": size_fields(result.features1),
        "keypoints0": result.features0.keypoints.xy,
        "keypoints1": result.features1.keypoints.xy,
        **(keypoint_fields(result) if details else {}),
        "matches": result.matches.pairs,
        "distances": result.matches.distance,
        "scores": result.matches.score,
        "confidence": result.matches.confidence,
        **point_fields(result),
        "inliers": verification.inliers,
        "geometry": geometry,
        "orientation": result.orientation,
        "views": {
            "described": result.views.described,
            "best": result.views.best,
            "reason": result.views.reason,
        },
        "same_scene": result.same_scene,
        "truncated": result.truncated,
        "notes": result.notes,
        "timings_ms": {k: round(v, _DIGITS) for k, v in result.timings_ms.items()},
    }


def keypoint_fields(result: MatchResult) -> dict[str, Any]:
    """Return scale (sigma in pixels), orientation (radians) and score of each keypoint."""
    fields: dict[str, Any] = {}
    for side, features in enumerate((result.features0, result.features1)):
        fields[f"scales{side}"] = features.keypoints.sigma
        fields[f"orientations{side}"] = features.keypoints.angle
        fields[f"keypoint_scores{side}"] = features.keypoints.score
    return fields


def point_fields(result: MatchResult) -> dict[str, Any]:
    """Return the matched points, which of them are refined, and their local affine maps."""
    points0, points1 = result.points()
    refined = result.refined
    return {
        "points0": points0,
        "points1": points1,
        "refined": np.zeros(len(points0), np.bool_) if refined is None else refined.is_refined,
        "affine": None if refined is None else refined.affine,
        "guided": np.zeros(len(points0), np.bool_) if result.guided is None else result.guided,
    }


def size_fields(features: Features) -> dict[str, int | None]:
    """Return the size of an image as sent, and of its working copy."""
    working_width, working_height = features.working_size or (None, None)
    return {
        "width": features.size[0],
        "height": features.size[1],
        "working_width": working_width,
        "working_height": working_height,
    }


def result_json(result: MatchResult) -> bytes:
    """Encode a match as JSON."""
    return to_json(result_fields(result))


def to_json(fields: Any, *, indent: bool = False) -> bytes:
    """Encode values and arrays as JSON."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(fields, option=option | (orjson.OPT_INDENT_2 if indent else 0))


def result_npz(
    result: MatchResult, *, details: bool = False, extra: Mapping[str, Any] | None = None
) -> bytes:
    """Encode a match as npz; read it with `numpy.load(..., allow_pickle=False)`.

    `timings_ms` are milliseconds of the stages in `timing_stages`. `details` is that of
    `result_fields`; `extra` are further arrays.
    """
    verification = result.verification
    matrix = np.full((3, 3), np.nan) if verification.matrix is None else verification.matrix
    pose = np.full((3, 4), np.nan) if verification.pose is None else verification.pose
    points = point_fields(result)
    arrays: dict[str, Any] = {
        "model": np.array(result.model),
        "coordinate_convention": np.array(COORDINATES),
        "image_size0": np.array(result.features0.size),
        "image_size1": np.array(result.features1.size),
        "working_size0": np.array(result.features0.working_size or result.features0.size),
        "working_size1": np.array(result.features1.working_size or result.features1.size),
        **(keypoint_fields(result) if details else {}),
        "keypoints0": result.features0.keypoints.xy,
        "keypoints1": result.features1.keypoints.xy,
        "matches": result.matches.pairs,
        "distances": result.matches.distance,
        "scores": result.matches.score,
        "confidence": _or_nan(result.matches.confidence, (len(result.matches),)),
        **{name: _or_nan(a, (len(result.matches), 2, 2)) for name, a in points.items()},
        "inliers": verification.inliers,
        "orientation": np.array(result.orientation),
        "views_described": np.array(result.views.described),
        "views_best": np.array(result.views.best),
        "views_reason": np.array(result.views.reason),
        "geometry_reason": np.array(verification.reason),
        "geometry_kind": np.array(verification.kind),
        "geometry_matrix": matrix,
        "geometry_pose": pose,
        "geometry_cameras": np.array(verification.cameras or ("", "")),
        "geometry_confidence": np.array(verification.confidence),
        "same_scene": np.array(np.nan if result.same_scene is None else result.same_scene),
        "truncated": np.array(result.truncated),
        "notes": np.array(result.notes, np.str_),
        "timing_stages": np.array(list(result.timings_ms), np.str_),
        "timings_ms": np.array(list(result.timings_ms.values()), np.float64),
        **(extra or {}),
    }
    return npz_bytes(arrays)


def _or_nan(values: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return values that are not there as NaN, for an npz archive knows no null."""
    return np.full(shape, np.nan, np.float32) if values is None else values


def features_fields(features: Features) -> dict[str, Any]:
    """Return features as a dictionary of arrays; `scales` are sigmas in pixels."""
    keypoints = features.keypoints
    return {
        "model": features.model,
        "fingerprint": features.fingerprint,
        "coordinate_convention": COORDINATES,
        "image_size": np.array(features.size),
        "working_size": np.array(features.working_size or features.size),
        "truncated": features.truncated,
        "keypoints": keypoints.xy,
        "scales": keypoints.sigma,
        "orientations": keypoints.angle,
        "scores": keypoints.score,
        "descriptors": features.descriptors,
    }


def features_npz(features: Features) -> bytes:
    """Encode features as npz."""
    return npz_bytes({k: np.asarray(v) for k, v in features_fields(features).items()})


def features_from_npz(data: bytes, max_bytes: int = MAX_FEATURES_BYTES) -> Features:
    """Decode features from npz.

    Raises:
        InvalidParameter: the data are not such an archive, or the arrays contradict each other.
        PayloadTooLarge: the arrays would have more than `max_bytes`.
    """
    return features_from_fields(read_npz(data, max_bytes))


def features_from_fields(fields: dict[str, Any]) -> Features:
    """Build features from a dictionary like that of `features_fields`.

    Scales, orientations, scores, fingerprint, working size and `truncated` may be absent.

    Raises:
        InvalidParameter: a field is missing, or the arrays contradict each other.
    """
    try:
        xy = np.asarray(fields["keypoints"], np.float32).reshape(-1, 2)
        descriptors = np.asarray(fields["descriptors"])
        size = _size(fields["image_size"])
        working = _size(fields["working_size"]) if "working_size" in fields else None
        model = _short_text(fields["model"], "model", MAX_MODEL_NAME)
        fingerprint = _short_text(fields.get("fingerprint", ""), "fingerprint", MAX_FINGERPRINT)
        truncated = bool(fields.get("truncated", False))
        ones = np.ones(len(xy), np.float32)
        keypoints = Keypoints(
            xy,
            np.asarray(fields.get("scales", ones), np.float32),
            np.asarray(fields.get("orientations", 0 * ones), np.float32),
            np.asarray(fields.get("scores", ones), np.float32),
        )
    except KeyError as error:
        raise InvalidParameter(f"the features have no field {error.args[0]!r}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidParameter(f"the features are not arrays as expected: {error}") from error
    if descriptors.dtype.kind not in "fu" or not np.isfinite(descriptors).all():
        raise InvalidParameter("descriptors must be finite floats, or packed bits as uint8")
    if descriptors.dtype != np.uint8 and descriptors.ndim == 2 and not is_unit_length(descriptors):
        raise InvalidParameter("float descriptors must be rows of length one")
    _check_keypoints(keypoints)
    return Features(keypoints, descriptors, model, size, fingerprint, working, truncated)


def _check_keypoints(keypoints: Keypoints) -> None:
    """Refuse values that no detector returns and that overflow when matches are judged."""
    if not (np.abs(keypoints.xy) <= MAX_COORDINATE).all():
        raise InvalidParameter(f"keypoints must be finite, at most {MAX_COORDINATE:g} pixels away")
    if not ((keypoints.sigma > 0) & (keypoints.sigma <= MAX_COORDINATE)).all():
        raise InvalidParameter(f"scales must be positive, and at most {MAX_COORDINATE:g} pixels")
    if not (np.isfinite(keypoints.angle).all() and np.isfinite(keypoints.score).all()):
        raise InvalidParameter("orientations and scores must be finite")


def _short_text(value: Any, name: str, max_length: int) -> str:
    """Return a value as text; a store counts the bytes of arrays only."""
    text = str(value)
    if len(text) > max_length:
        raise InvalidParameter(
            f"{name} has {len(text)} characters, at most {max_length} are allowed",
            limit=max_length,
            value=len(text),
        )
    return text


def _size(values: Any) -> tuple[int, int]:
    """Return two values as a size (width, height)."""
    width, height = (int(v) for v in np.asarray(values).ravel())
    if min(width, height) < 1:
        raise ValueError(f"{width}x{height} is not the size of an image")
    return width, height


def read_features(path: Path) -> Features:
    """Read features from a file of `matchserve describe`.

    Raises:
        MissingInput: the file cannot be read.
        InvalidParameter: the file does not contain features.
    """
    return features_from_npz(read_file(path))


def npz_bytes(arrays: dict[str, Any]) -> bytes:
    """Encode arrays as npz."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
