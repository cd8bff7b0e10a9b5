"""SIFT and RootSIFT descriptors on the same keypoints, to compare learned models with."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import cv2
import numpy as np

from matchserve.clock import Call
from matchserve.errors import InferenceFailed, InvalidParameter
from matchserve.models.calibration import Calibration, read_calibration
from matchserve.models.card import ModelCard
from matchserve.models.confidence import Confidence, read_confidence
from matchserve.types import Float32, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.keypoints import to_opencv

SIFT_PATCH = PatchSpec(magnification=12.0)  # SIFT's own support: 4 x 4 cells of 3 sigma

_METHODS = {
    "sift": "SIFT (Lowe 2004), unit length",
    "rootsift": "RootSIFT (Arandjelović and Zisserman 2012): square root of L1-normalised SIFT",
}
NAMES = tuple(_METHODS)
BUILT_IN = Path(__file__).resolve().parent / "built_in"


def card(name: str, patch: PatchSpec = SIFT_PATCH) -> ModelCard:
    """Return the card of a built-in descriptor."""
    return ModelCard(
        name=name,
        version="1",
        kind="float",
        dim=128,
        patch=patch,
        licence="Apache-2.0 (OpenCV)",
        method=_METHODS[name],
        purpose="comparison with learned models",
        calibration=_calibration(name),
        confidence=_confidence(name),
    )


def calibration_directory(name: str) -> Path:
    """Return the folder with the calibration of a built-in descriptor and its diagram."""
    return BUILT_IN / name


@cache
def _confidence(name: str) -> Confidence | None:
    return read_confidence(calibration_directory(name))


@cache
def _calibration(name: str) -> Calibration | None:
    directory = calibration_directory(name)
    return read_calibration(directory) if directory.is_dir() else None


class HandcraftedDescriptor:
    """OpenCV's SIFT descriptor at given keypoints."""

    provider = "OpenCV"
    detector = None

    def __init__(self, name: str, patch: PatchSpec = SIFT_PATCH) -> None:
        self.card = card(name, patch)
        self._is_root = name == "rootsift"

    def describe(self, image: Image, keypoints: Keypoints, call: Call | None = None) -> Float32:
        """Return (N, 128) unit rows for the keypoints of an image."""
        del call  # SIFT reads the image directly: there is no crop to measure
        return self._compute(image.grey, to_opencv(keypoints, image))

    def describe_patches(self, patches: UInt8, call: Call | None = None) -> Float32:
        """Describe (N, 1, S, S) patches, each as one keypoint at its centre."""
        del call
        size = self.card.patch.size
        if patches.shape[1:] != (1, size, size):
            raise InvalidParameter(f"patches are {patches.shape}, not (N, 1, {size}, {size})")
        sigma = np.float32(size / self.card.patch.magnification)
        middle = Keypoints(
            xy=np.full((1, 2), (size - 1) / 2, np.float32),
            sigma=np.full(1, sigma),
            angle=np.zeros(1, np.float32),
            score=np.ones(1, np.float32),
        )
        keypoint = to_opencv(middle, Image(np.zeros((size, size), np.uint8), (size, size)))
        rows = [self._compute(patch, keypoint) for patch in patches[:, 0]]
        return np.concatenate(rows) if rows else np.zeros((0, 128), np.float32)

    def _compute(self, grey: UInt8, keypoints: list[cv2.KeyPoint]) -> Float32:
        if not keypoints:
            return np.zeros((0, 128), np.float32)
        # OpenCV skips the doubled octave if no keypoint is in it, which changes all other rows a
        # little. An extra keypoint in that octave makes each row depend on its own keypoint only.
        smallest = cv2.KeyPoint(0.0, 0.0, 1.6, 0.0, 1.0, 255 | 1 << 8)
        requested = [*keypoints, smallest]
        kept, raw = cv2.SIFT.create(enable_precise_upscale=True).compute(grey, requested)
        if len(kept) != len(requested):
            raise InferenceFailed("OpenCV described fewer keypoints than it was given")
        rows = np.asarray(raw[:-1], np.float32)
        if self._is_root:
            rows = np.sqrt(rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-12))
        return _unit_rows(rows)


def _unit_rows(rows: Float32) -> Float32:
    """Scale rows to length one; a row of zeros (no gradients) becomes a constant unit row."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    flat = np.float32(1.0 / np.sqrt(rows.shape[1]))
    return np.asarray(np.where(length > 0, rows / np.maximum(length, 1e-12), flat), np.float32)
