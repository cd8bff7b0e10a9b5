from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from matchserve.errors import CorruptImage, ImageTooLarge, UnsupportedFormat
from matchserve.types import UInt8
from matchserve.vision import headers
from matchserve.vision.headers import jpeg_parts, read_header
from matchserve.vision.orientation import read_orientation
from tests.security import corpus

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF")


def saved(pixels: UInt8, name: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, name, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"quality": 100, "subsampling": 0, "comment": b"\xff\xd8\xff\xda"}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0II*\0"}),
    ],
)
@pytest.mark.parametrize("size", [(64, 48), (333, 1001)])
def test_the_size_is_that_of_the_decoder(
    name: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    data = saved(pixels, name, **options)
    header = read_header(data, FORMATS)
    assert (header.format, header.size) == (name, size)


def test_scans_are_counted_in_the_image_only() -> None:
    thumbnail = corpus.scans_jpeg(200, side=64)[:60_000]
    whole = corpus.plain_jpeg()
    head = corpus.segment(0xE5, thumbnail)
    assert read_header(whole[:2] + head + whole[2:], FORMATS).size == (160, 120)
    # A file may carry anything behind its image, as phones append a video.
    assert read_header(whole + corpus.scans_jpeg(200, side=64), FORMATS).size == (160, 120)
    assert read_header(corpus.scans_jpeg(headers.MAX_SCANS), FORMATS).size == (7000, 7000)
    with pytest.raises(ImageTooLarge):
        read_header(corpus.scans_jpeg(headers.MAX_SCANS + 1), FORMATS)


def comments_jpeg(count: int) -> bytes:
    whole = corpus.plain_jpeg()
    return whole[:2] + corpus.segment(0xFE, b"") * count + whole[2:]


@pytest.mark.parametrize(
    ("allowed", "refused", "message"),
    [
        (
            lambda: corpus.fill_jpeg(len(corpus.plain_jpeg()) + headers.MAX_STRAY_BYTES),
            lambda: corpus.fill_jpeg(len(corpus.plain_jpeg()) + headers.MAX_STRAY_BYTES + 2),
            "between its segments",
        ),
        (
            lambda: corpus.junk_jpeg(len(corpus.plain_jpeg()) + headers.MAX_STRAY_BYTES),
            lambda: corpus.junk_jpeg(len(corpus.plain_jpeg()) + headers.MAX_STRAY_BYTES + 2),
            "between its segments",
        ),
        (
            lambda: comments_jpeg(headers.MAX_JPEG_SEGMENTS - 100),
            lambda: comments_jpeg(headers.MAX_JPEG_SEGMENTS),
            "segments",
        ),
        (
            lambda: corpus.chunks_png(12 * (headers.MAX_PNG_HEAD_CHUNKS - 10)),
            lambda: corpus.chunks_png(12 * headers.MAX_PNG_HEAD_CHUNKS),
            "too many chunks",
        ),
        (
            lambda: corpus.empty_pixels_png(12 * (headers.MAX_PNG_CHUNKS - 10)),
            lambda: corpus.empty_pixels_png(12 * headers.MAX_PNG_CHUNKS),
            "too many chunks",
        ),
        (
            lambda: corpus.frames_webp(24 * (headers.MAX_WEBP_CHUNKS - 10)),
            lambda: corpus.frames_webp(24 * headers.MAX_WEBP_CHUNKS),
            "too many chunks",
        ),
        (
            lambda: corpus.overlapping_ifd(headers.MAX_TIFF_TAGS, 1),
            lambda: corpus.overlapping_ifd(headers.MAX_TIFF_TAGS + 1, 1),
            "tags",
        ),
        (
            lambda: corpus.overlapping_ifd(2, 10),
            lambda: corpus.overlapping_ifd(2, 20),
            "more bytes than the file",
        ),
    ],
    ids=["fill", "junk", "segments", "chunks", "pixels", "frames", "tags", "bytes of tags"],
)
def test_the_parts_of_a_file_are_counted(
    allowed: Callable[[], bytes], refused: Callable[[], bytes], message: str
) -> None:
    read_header(allowed(), FORMATS)
    with pytest.raises(CorruptImage, match=message):
        read_header(refused(), FORMATS)


@pytest.mark.parametrize("end", range(2, 400, 7))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_cut_off_headers_are_typed_errors(name: str, end: int, pattern: UInt8) -> None:
    data = saved(pattern, name)[:end]
    try:
        read_header(data, FORMATS)
    except (CorruptImage, UnsupportedFormat):
        return


def test_other_formats_are_not_looked_at(pattern: UInt8) -> None:
    with pytest.raises(UnsupportedFormat):
        read_header(saved(pattern, "TIFF"), ("JPEG", "PNG"))


def test_pixels_do_not_depend_on_dropped_metadata(photograph: UInt8) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    data = saved(photograph, "JPEG", exif=exif, icc_profile=bytes(200_000), comment=b"hello")
    kept, metadata = jpeg_parts(data)
    assert len(kept) < len(data) - 200_000
    assert read_orientation(metadata) == 6
    np.testing.assert_array_equal(
        np.asarray(Pillow.open(io.BytesIO(kept))), np.asarray(Pillow.open(io.BytesIO(data)))
    )


@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("order", ["little", "big"])
def test_orientations_are_those_that_pillow_reads(turn: int, order: str) -> None:
    exif = Pillow.Exif()
    exif.endian = "<" if order == "little" else ">"
    exif[0x010F] = "a maker"
    exif[0x0112] = turn
    assert read_orientation({"exif": exif.tobytes()}) == (turn if 1 <= turn <= 8 else 1)


@pytest.mark.parametrize(
    "data", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM"]
)
def test_damaged_exif_costs_nothing(data: bytes) -> None:
    assert read_orientation({"exif": data}) == 1


def test_an_orientation_in_xmp_counts_when_exif_has_none() -> None:
    assert read_orientation({"xmp": b'<x tiff:Orientation="8"/>'}) == 8
    assert read_orientation({"xmp": b"<tiff:Orientation>3</tiff:Orientation>"}) == 3
