"""How much of anything one call may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds checked before work is done.

    Finding keypoints takes 240 bytes a pixel, 12 GB for the largest image allowed by default;
    lower `max_pixels` on smaller machines. Pillow itself refuses more than 178 megapixels.
    """

    max_image_bytes: int = 200_000_000
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    min_side: int = 16
    max_keypoints: int = 65_536


DEFAULT_LIMITS = Limits()
