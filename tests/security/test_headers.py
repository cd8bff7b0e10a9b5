"""Reading a header costs about as much as reading the bytes, whatever they are."""

from __future__ import annotations

import hashlib
import time

import pytest

from matchserve.errors import ImageError
from matchserve.limits import SERVICE_LIMITS
from matchserve.vision.decode import decode, read_size
from tests.security.corpus import IMAGES

FORMATS = ("JPEG", "PNG", "WEBP")
# In multiples of the time that the file's checksum takes, and of one for small files.
HEADER_COST, DECODE_COST = 30, 60
SLOW = {"bomb-49MP.png", "tiny-50MP.webp", "scans-few.jpg", "text-bomb.png"}
"""Files that are small for their pixels: decoding them takes longer than reading them."""


def cost_of_reading(data: bytes) -> float:
    return max(0.005, min(timed(lambda: hashlib.sha256(data).digest()) for _ in range(5)))


def timed(work: object) -> float:
    assert callable(work)
    start = time.thread_time()
    work()
    return time.thread_time() - start


def attempted_size(data: bytes) -> None:
    try:
        read_size(data, formats=FORMATS, limits=SERVICE_LIMITS)
    except ImageError:
        return


def attempted_decode(data: bytes) -> None:
    try:
        decode(data, max_side=512, limits=SERVICE_LIMITS)
    except ImageError:
        return


@pytest.mark.parametrize("name", list(IMAGES))
def test_headers_are_read_in_the_time_of_a_checksum(name: str) -> None:
    data = IMAGES[name]()
    assert min(timed(lambda: attempted_size(data)) for _ in range(3)) < (
        HEADER_COST * cost_of_reading(data)
    )


@pytest.mark.parametrize("name", [name for name in IMAGES if name not in SLOW])
def test_metadata_does_not_delay_decoding(name: str) -> None:
    data = IMAGES[name]()
    assert min(timed(lambda: attempted_decode(data)) for _ in range(3)) < (
        DECODE_COST * cost_of_reading(data)
    )
