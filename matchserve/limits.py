"""Upper and lower bounds that are checked before work is done, defined once."""

from __future__ import annotations

from dataclasses import dataclass

from matchserve.errors import InvalidParameter

MIN_PATCH_SIZE, MAX_PATCH_SIZE = 8, 128
"""Range of the side of a model's patches, in samples."""

MAX_BATCH_IMAGES = 40
"""Largest number of images that a setting may allow in a batch; a form has at most 64 parts."""

MAX_VIEWS = 41
"""Maximum number of pairs of synthetic views that one call matches."""

MIN_WORKING_SIDE = 16
"""Smallest side that an image may be reduced to."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on images and keypoints; the defaults are those of the library and command line.

    Finding keypoints needs 20 bytes of memory per pixel of a large image, 1 GB for the largest
    one allowed by default, and at least 120 MB. Pillow refuses more than 178 megapixels.
    """

    max_image_bytes: int = 200_000_000
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    min_side: int = 16
    max_keypoints: int = 65_536


def check_keypoint_count(count: int, limit: int, what: str = "max_keypoints") -> None:
    """Refuse more keypoints of an image than are allowed.

    Raises:
        InvalidParameter: there are too many.
    """
    if count > limit:
        raise InvalidParameter(
            f"{what} is {count}, at most {limit} are allowed", limit=limit, value=count
        )


def most_rows(max_keypoints: int) -> int:
    """Return how many rows the features of an image have at most.

    A keypoint has a row for each of its orientations that is described; there are at most as many
    further ones as keypoints (`vision.keypoints.DetectOptions`).
    """
    return 2 * max_keypoints


LIBRARY_LIMITS = Limits()
SERVICE_LIMITS = Limits(max_image_bytes=20_000_000, max_keypoints=8192)
"""Defaults of the service; settings can change each of them."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one client of the service may hold: collections, their images and bytes, and jobs."""

    collections: int = 20
    images: int = 100_000
    bytes: int = 50_000_000_000
    queued_jobs: int = 10
    finished_jobs: int = 100
    job_hours: float = 24.0


DEFAULT_QUOTAS = Quotas()
