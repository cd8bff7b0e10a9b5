"""Photometric changes as by another time of day, another camera or another lens.

All effects are drawn from the given generator, so a seed reproduces the result exactly.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.random import Generator

from matchserve.types import Float32, UInt8
from matchserve.vision.decode import decode


def relight(grey: UInt8, rng: Generator, *, strength: float, is_night: bool = False) -> UInt8:
    """Return `grey` under other light and taken with another camera.

    A `strength` of 0 changes almost nothing, 1 as much as a hand-held photograph in another season.
    `is_night` darkens everything that is not near one of a few lamps, then raises the exposure.
    """
    light = grey.astype(np.float32) / np.float32(255.0)
    light = light * _shading(light.shape, rng, strength)
    if rng.random() < 0.5 * strength:
        light = light * _shadow(light.shape, rng, strength)
    if is_night:
        light = _night(light, rng)
    light = _tone(light, rng, strength)
    light = _lens(light, rng, strength)
    return _sensor(light, rng, strength)


def _shading(shape: tuple[int, ...], rng: Generator, strength: float) -> Float32:
    """Return a field of exposure factors: a gradient plus soft and often fine variations.

    Fine variations imitate relief: light from another direction changes every edge differently.
    """
    rows, columns = shape
    coarse = rng.normal(0.0, 0.35 * strength, (4, 4)).astype(np.float32)
    soft = cv2.resize(coarse, (columns, rows), interpolation=cv2.INTER_CUBIC)
    if rng.random() < 0.7 * strength:
        cells = int(rng.integers(12, 40))
        fine = rng.normal(0.0, 0.35 * strength, (cells, cells)).astype(np.float32)
        soft = soft + cv2.resize(fine, (columns, rows), interpolation=cv2.INTER_CUBIC)
    slope = rng.normal(0.0, 0.5 * strength, 2)
    across = np.linspace(-1, 1, columns, dtype=np.float32)[None, :] * np.float32(slope[0])
    down = np.linspace(-1, 1, rows, dtype=np.float32)[:, None] * np.float32(slope[1])
    return np.asarray(np.exp(soft + across + down), np.float32)


def _shadow(shape: tuple[int, ...], rng: Generator, strength: float) -> Float32:
    """Return the exposure factors of cast shadows: polygons with soft edges."""
    rows, columns = shape
    mask = np.zeros((rows, columns), np.float32)
    count = int(rng.integers(1, 4))
    for _ in range(count):
        centre = rng.random(2) * (columns, rows)
        turns = np.sort(rng.random(int(rng.integers(3, 7)))) * 2 * np.pi
        reach = rng.uniform(0.1, 0.6, len(turns)) * max(rows, columns)
        corners = centre + reach[:, None] * np.stack([np.cos(turns), np.sin(turns)], axis=1)
        cv2.fillPoly(mask, [corners.round().astype(np.int32)], (1.0,))
    mask = np.asarray(cv2.GaussianBlur(mask, (0, 0), float(rng.uniform(0.8, 8.0))), np.float32)
    depth = np.float32(rng.uniform(0.2, 0.3 + 0.5 * strength))
    return np.asarray(1 - depth * mask, np.float32)


def _night(light: Float32, rng: Generator) -> Float32:
    """Darken the image except near lamps; the sky, bright by day, becomes darkest."""
    rows, columns = light.shape
    broad = np.asarray(cv2.GaussianBlur(light, (0, 0), 0.04 * max(rows, columns)), np.float32)
    dimmed = light * np.exp(-np.float32(rng.uniform(0.5, 2.5)) * broad)
    lamps = np.full((rows, columns), rng.uniform(0.05, 0.3), np.float32)
    x = np.arange(columns, dtype=np.float32)[None, :]
    y = np.arange(rows, dtype=np.float32)[:, None]
    for _ in range(int(rng.integers(1, 5))):
        at = rng.random(2) * (columns, rows)
        reach = rng.uniform(0.08, 0.5) * max(rows, columns)
        far = ((x - at[0]) ** 2 + (y - at[1]) ** 2) / np.float32(reach**2)
        lamps += np.float32(rng.uniform(0.3, 1.2)) / (1 + far)
    seen = dimmed * lamps
    level = float(np.percentile(seen, rng.uniform(85, 99.5)))
    return np.asarray(seen / max(level, 1e-3) * rng.uniform(0.35, 1.1), np.float32)


def _tone(light: Float32, rng: Generator, strength: float) -> Float32:
    """Change gamma, exposure and contrast; apply an S-curve and haze."""
    gamma = np.float32(np.exp(rng.normal(0.0, 0.45 * strength)))
    exposure = np.float32(np.exp(rng.normal(0.0, 0.3 * strength)))
    toned = np.clip(light * exposure, 0, 1.15).clip(0, 1) ** gamma
    bend = np.float32(rng.uniform(-0.6, 0.8) * strength)
    toned = toned + bend * (toned * toned * (3 - 2 * toned) - toned)
    contrast = np.float32(np.exp(rng.normal(-0.1, 0.25) * strength))
    toned = (toned - np.float32(0.5)) * contrast + np.float32(0.5 + rng.normal(0, 0.08) * strength)
    if rng.random() < 0.25 * strength:
        haze = np.float32(rng.uniform(0.1, 0.5))
        toned = toned * (1 - haze) + haze * np.float32(rng.uniform(0.5, 0.9))
    return np.asarray(toned, np.float32)


def _lens(light: Float32, rng: Generator, strength: float) -> Float32:
    """Defocus, blur by motion, sharpen, or leave unchanged."""
    choice = rng.random()
    if choice < 0.35 * strength:
        return np.asarray(cv2.GaussianBlur(light, (0, 0), float(rng.uniform(0.4, 1.9))), np.float32)
    if choice < 0.5 * strength:
        return _motion_blurred(light, rng)
    if choice > 1 - 0.25 * strength:
        soft = np.asarray(cv2.GaussianBlur(light, (0, 0), 1.0), np.float32)
        return np.asarray(light + np.float32(rng.uniform(0.3, 1.2)) * (light - soft), np.float32)
    return light


def _motion_blurred(light: Float32, rng: Generator) -> Float32:
    """Blur along a short line of random direction."""
    reach = int(rng.integers(1, 4))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    turn = rng.uniform(0, np.pi)
    for step in np.linspace(-reach, reach, 8 * reach + 1):
        column = round(reach + step * np.cos(turn))
        kernel[round(reach + step * np.sin(turn)), column] += 1
    kernel /= kernel.sum()
    return np.asarray(cv2.filter2D(light, -1, kernel), np.float32)


def _sensor(light: Float32, rng: Generator, strength: float) -> UInt8:
    """Add shot and read noise, quantise to 8 bits and compress as JPEG."""
    read = np.float32(rng.uniform(0.0, 0.03) * strength)
    shot = np.float32(rng.uniform(0.0, 0.05) * strength)
    spread = np.sqrt(read**2 + shot**2 * light.clip(0, 1))
    noisy = light + spread * rng.standard_normal(light.shape, dtype=np.float32)
    eight_bit = (noisy.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    quality = int(rng.uniform(95 - 65 * strength, 96))
    _, data = cv2.imencode(".jpg", eight_bit, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return decode(data.tobytes()).grey
