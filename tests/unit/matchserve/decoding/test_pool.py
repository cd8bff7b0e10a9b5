from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from matchserve.clock import ClientDeparted, Deadline
from matchserve.decoding.child import CPU_S
from matchserve.decoding.pool import DecoderPool
from matchserve.errors import (
    CorruptImage,
    DeadlineExceeded,
    ImageError,
    ImageTooLarge,
    UnsupportedFormat,
)
from matchserve.limits import SERVICE_LIMITS, Limits
from matchserve.types import Image, UInt8
from matchserve.vision.decode import decode, decode_colour
from tests.conftest import encoded
from tests.security import corpus
from tests.security import hostile_images as hostile

FORMATS = ("JPEG", "PNG", "WEBP")


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    pool = DecoderPool(2, SERVICE_LIMITS, FORMATS)
    yield pool
    pool.close()


def decoded(pool: DecoderPool, data: bytes, seconds: float = 60, side: int | None = None) -> Image:
    return pool.decode(data, exif="apply", max_side=side, deadline=Deadline(seconds))


@pytest.mark.parametrize("name", FORMATS)
def test_pixels_are_those_of_this_process(pool: DecoderPool, photograph: UInt8, name: str) -> None:
    data = encoded(photograph, name)
    here = decode(data, max_side=300, limits=SERVICE_LIMITS)
    there = decoded(pool, data, side=300)
    np.testing.assert_array_equal(here.grey, there.grey)
    assert here.size == there.size
    colour = pool.decode_colour(data, exif="apply", max_side=200, deadline=Deadline(60))
    np.testing.assert_array_equal(colour, decode_colour(data, max_side=200))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"not an image", UnsupportedFormat),
        (corpus.plain_jpeg()[:500], CorruptImage),
        (corpus.scans_jpeg(), ImageTooLarge),
    ],
)
def test_errors_travel(pool: DecoderPool, data: bytes, kind: type[ImageError]) -> None:
    kills = pool.kills
    with pytest.raises(ImageError) as here:
        decode(data, limits=SERVICE_LIMITS)
    with pytest.raises(kind) as there:
        decoded(pool, data)
    assert there.value.message.split(":")[0] == here.value.message.split(":")[0].replace(
        ", TIFF", ""
    )
    assert there.value.limit == here.value.limit
    assert pool.kills == kills


def test_a_slow_image_is_killed_at_its_deadline(pool: DecoderPool, pattern: UInt8) -> None:
    decoded(pool, encoded(pattern))  # warm
    kills = pool.kills
    with pytest.raises(DeadlineExceeded):
        decoded(pool, corpus.scans_jpeg(90), seconds=0.2)
    assert pool.kills == kills + 1
    for _ in range(3):  # by the other process, and by the new one
        np.testing.assert_array_equal(decoded(pool, encoded(pattern)).grey, pattern)


def test_a_departed_client_ends_its_decoder(pool: DecoderPool, pattern: UInt8) -> None:
    decoded(pool, encoded(pattern))
    deadline = Deadline(60)
    threading.Timer(0.2, deadline.depart).start()
    start = time.monotonic()
    with pytest.raises(ClientDeparted):
        pool.decode(corpus.scans_jpeg(99), exif="apply", max_side=512, deadline=deadline)
    assert time.monotonic() - start < 20


def test_memory_is_limited(pattern: UInt8) -> None:
    limits = Limits(max_image_bytes=1_000_000, max_pixels=1_000_000)
    pool = DecoderPool(1, limits, FORMATS)
    try:
        # What the limits of the pool allow is far less than this image needs.
        pool._options = type(pool._options)(limits=SERVICE_LIMITS, formats=FORMATS)
        with pytest.raises(ImageTooLarge):
            decoded(pool, hostile.bomb(7000, 7000))
        np.testing.assert_array_equal(decoded(pool, encoded(pattern)).grey, pattern)
    finally:
        pool.close()


def test_processor_time_is_limited(pattern: UInt8) -> None:
    before = set(psutil.Process().children())
    pool = DecoderPool(1, SERVICE_LIMITS, FORMATS)
    try:
        decoded(pool, encoded(pattern))
        (child,) = set(psutil.Process().children()) - before
        first, _ = child.rlimit(psutil.RLIMIT_CPU)
        used = sum(child.cpu_times()[:2])
        assert 0 < first <= used + CPU_S + 1
    finally:
        pool.close()


def test_a_decoder_knows_no_secrets_and_ends_with_the_pool(
    monkeypatch: pytest.MonkeyPatch, pattern: UInt8
) -> None:
    monkeypatch.setenv("MATCHSERVE_API_KEYS", "correct-horse")
    before = set(psutil.Process().children())
    pool = DecoderPool(1, SERVICE_LIMITS, FORMATS)
    decoded(pool, encoded(pattern))
    (child,) = set(psutil.Process().children()) - before
    environment = Path(f"/proc/{child.pid}/environ").read_bytes()
    assert b"correct-horse" not in environment
    files = list(Path(f"/proc/{child.pid}/fd").iterdir())
    assert len(files) <= 6
    pool.close()
    assert not child.is_running()


def test_threads_share_the_processes(pool: DecoderPool, pattern: UInt8) -> None:
    pictures = [np.roll(pattern, shift, axis=1) for shift in range(12)]
    results: dict[int, UInt8] = {}

    def work(number: int) -> None:
        results[number] = decoded(pool, encoded(pictures[number])).grey

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, picture in enumerate(pictures):
        np.testing.assert_array_equal(results[number], picture)
