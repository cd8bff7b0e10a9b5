"""Cut patches around keypoints; training and serving use this one function.

A patch of S x S samples covers a square of K sigmas around the keypoint, rotated by its angle:

    image point = xy + s * R(angle) * (u - (S - 1) / 2),   s = K * sigma / S,   u = 0 .. S-1

so the centre of the patch is exactly the keypoint. With `antialias` the samples are taken from
the pyramid level whose pixel size is closest to s, where neighbouring samples are 0.71 to 1.41
pixels apart. Each level halves the one before with a 5-tap binomial filter; pixel 0 stays at
pixel 0. Interpolation is bilinear; `border` says how the image continues outside. Patches are not
normalised here: each network does that itself.
"""

from __future__ import annotations

import math

import cv2
import numpy as np

from matchserve.types import Float32, Float64, Image, Keypoints, PatchSpec, UInt8

BORDER_MODES = {"replicate": cv2.BORDER_REPLICATE, "reflect": cv2.BORDER_REFLECT_101}

# Sampling maps need 8 bytes per sample: working in blocks limits them to 16 MB.
_BLOCK_SAMPLES = 2**21


def crop(image: Image, keypoints: Keypoints, spec: PatchSpec) -> UInt8:
    """Cut the patches of `keypoints`, given in pixels of the image as sent: (N, 1, S, S) uint8."""
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    xy = image.to_working(keypoints.xy)
    step = keypoints.sigma.astype(np.float64) * scale * spec.magnification / spec.size
    levels = _levels(step, image.grey.shape, spec)
    patches = np.empty((len(keypoints), spec.size, spec.size), np.uint8)
    block = _BLOCK_SAMPLES // spec.size**2
    level_image = np.asarray(image.grey)
    for level in range(int(levels.max(initial=0)) + 1):
        if level:
            level_image = np.asarray(cv2.pyrDown(level_image), np.uint8)
        members = np.flatnonzero(levels == level)
        for start in range(0, len(members), block):
            rows = members[start : start + block]
            maps = _sampling_maps(
                xy[rows] / 2**level, step[rows] / 2**level, keypoints.angle[rows], spec.size
            )
            patches[rows] = _sample(level_image, *maps, spec).reshape(-1, spec.size, spec.size)
    return patches[:, None]


def _levels(step: Float64, shape: tuple[int, ...], spec: PatchSpec) -> np.ndarray:
    """Return the pyramid level of each patch; the last level still has a few pixels."""
    if not spec.antialias:
        return np.zeros(len(step), np.intp)
    deepest = max(0, int(math.log2(max(1, min(shape) / 4))))
    return np.clip(np.round(np.log2(np.maximum(step, 1e-6))), 0, deepest).astype(np.intp)


def _sampling_maps(
    xy: Float64, step: Float64, angle: Float32, size: int
) -> tuple[Float32, Float32]:
    """Return the positions of all samples: x and y, (N, S*S) each."""
    offsets = (np.arange(size) - (size - 1) / 2).astype(np.float32)
    cosine = (step * np.cos(angle)).astype(np.float32)[:, None, None]
    sine = (step * np.sin(angle)).astype(np.float32)[:, None, None]
    u, v = offsets[None, None, :], offsets[None, :, None]
    centre = xy.astype(np.float32)
    map_x = centre[:, 0, None, None] + (cosine * u - sine * v)
    map_y = centre[:, 1, None, None] + (sine * u + cosine * v)
    return map_x.reshape(len(xy), -1), map_y.reshape(len(xy), -1)


def _sample(grey: UInt8, map_x: Float32, map_y: Float32, spec: PatchSpec) -> UInt8:
    sampled = cv2.remap(grey, map_x, map_y, cv2.INTER_LINEAR, borderMode=BORDER_MODES[spec.border])
    return np.asarray(sampled, np.uint8)
