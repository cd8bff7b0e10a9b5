"""The peer of the benchmarks: OpenCV's SIFT with its defaults, ratio test 0.8, USAC."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from matchserve.threads import off_main_thread
from matchserve.types import Float64
from matchserve.vision.geometry import Camera
from training.data.parallel import progress
from training.evaluation.predictions import Arrays, ImageSet, Loader, cached
from training.evaluation.protocol import Options, stamp_of

PEER = "OpenCV SIFT + ratio 0.8 + USAC"
RATIO = 0.8
_ITERATIONS = 10_000


def peer_stamp() -> str:
    """Return what identifies the peer: the version of OpenCV."""
    return f"opencv-{cv2.__version__}"


def match_by_peer(
    data: ImageSet, options: Options
) -> dict[tuple[str, str], tuple[NDArray[Any], NDArray[Any]]]:
    """Match all pairs by brute force with the ratio test, or read the points from the cache."""
    stamp = stamp_of(
        peer=peer_stamp(), data=data.digest, pairs=data.pairs, **options.protocol("max_keypoints")
    )
    arrays = cached(options.cache / f"peer-{stamp}.npz", lambda: _match_all(data, options))
    return {
        pair: (arrays[f"{number}/0"], arrays[f"{number}/1"])
        for number, pair in enumerate(data.pairs)
    }


def _match_all(data: ImageSet, options: Options) -> Arrays:
    described = {
        name: off_main_thread(_describe, load, options.max_keypoints)
        for name, load in progress(data.images.items(), total=len(data.images), label=PEER)
    }
    arrays: Arrays = {}
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    for number, (one, other) in enumerate(data.pairs):
        (left, rows0), (right, rows1) = described[one], described[other]
        found = matcher.knnMatch(rows0, rows1, k=2) if len(rows0) and len(rows1) > 1 else ()
        kept = [m for m, n in found if m.distance < RATIO * n.distance]
        arrays[f"{number}/0"] = left[[m.queryIdx for m in kept]]
        arrays[f"{number}/1"] = right[[m.trainIdx for m in kept]]
    return arrays


def _describe(load: Loader, max_keypoints: int) -> tuple[Float64, NDArray[np.float32]]:
    """Return the points (N, 2) and descriptors (N, 128) of an image."""
    sift = cv2.SIFT.create(nfeatures=max_keypoints, enable_precise_upscale=True)
    found: Any = sift.detectAndCompute(load().grey, None)  # without keypoints the rows are None
    keypoints, rows = found
    points = np.array([k.pt for k in keypoints], np.float64).reshape(-1, 2)
    return points, np.zeros((0, 128), np.float32) if rows is None else np.asarray(rows, np.float32)


def pose_by_usac(
    points: tuple[Float64, Float64], cameras: tuple[Camera, Camera], threshold_px: float
) -> tuple[Float64 | None, NDArray[np.bool_]]:
    """Return the relative pose (3, 4) by OpenCV's essential matrix, and the inliers."""
    rays = [
        (xy - [camera.cx, camera.cy]) / [camera.fx, camera.fy]
        for xy, camera in zip(points, cameras, strict=True)
    ]
    none = np.zeros(len(rays[0]), np.bool_)
    if len(rays[0]) < 6:
        return None, none
    focal = float(np.mean([[camera.fx, camera.fy] for camera in cameras]))
    try:
        found: Any = cv2.findEssentialMat(
            rays[0], rays[1], np.eye(3), cv2.USAC_MAGSAC, 0.9999, threshold_px / focal, _ITERATIONS
        )
        essential, mask = found
        if essential is None or essential.shape != (3, 3):
            return None, none
        _, rotation, shift, _ = cv2.recoverPose(
            essential, rays[0], rays[1], np.eye(3), mask=mask.copy()
        )
    except cv2.error:  # a degenerate sample that its own checks accept
        return None, none
    return np.column_stack([rotation, shift]), np.asarray(mask, np.bool_).ravel()
