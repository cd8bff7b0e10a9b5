"""How much of anything one call may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds checked before work is done; the defaults suit a machine of a few gigabytes."""

    max_image_bytes: int = 200_000_000
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    min_side: int = 16
    max_keypoints: int = 65_536


DEFAULT_LIMITS = Limits()
