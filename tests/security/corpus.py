"""Hostile files and bodies, all made by code: what a decoder or parser must survive.

Each body is a request to the service of at most 42 MB; each image is an upload of at most 20 MB.
`python -m tests.security.corpus FOLDER` writes the images to a folder, e.g. as seeds of a fuzzer.
"""

from __future__ import annotations

import base64
import io
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from matchserve.pattern import generate
from tests.security import hostile_images as hostile

MAX_IMAGE, MAX_BODY = 20_000_000, 42_000_000


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


@cache
def plain_jpeg() -> bytes:
    return hostile.saved(hostile.scene(), "JPEG")


@cache
def scans_jpeg(scans: int = 3000, side: int = 7000) -> bytes:
    """A progressive JPEG that refines the same coefficients again and again.

    Each scan costs the decoder a pass over all blocks, and the file about a hundred bytes.
    """
    table = bytes((0x10,)) + bytes((1,)) + bytes(15) + bytes((0,))
    luminance = bytes((0,)) + bytes((1,)) + bytes(15) + bytes((0,))
    frame = struct.pack(">BHHB", 8, side, side, 1) + bytes((1, 0x11, 0))
    head = (
        b"\xff\xd8"
        + segment(0xDB, b"\0" + b"\x01" * 64)
        + segment(0xC2, frame)
        + segment(0xC4, luminance)
        + segment(0xC4, table)
    )
    first = segment(0xDA, bytes((1, 1, 0x00, 0, 0, 0x00))) + b"\0" * 64
    more = segment(0xDA, bytes((1, 1, 0x00, 1, 63, 0x00))) + b"\0" * 90
    return head + first + more * (scans - 1) + b"\xff\xd9"


def fill_jpeg(size: int) -> bytes:
    """Fill bytes between two segments, which Pillow reads one by one."""
    whole = plain_jpeg()
    return whole[:2] + b"\xff" * (size - len(whole)) + whole[2:]


def junk_jpeg(size: int) -> bytes:
    """Bytes that are no segment, which Pillow skips one by one."""
    whole = plain_jpeg()
    end = 4 + struct.unpack(">H", whole[4:6])[0] - 2 + 2
    return whole[:end] + b"\x01" * (size - len(whole)) + whole[end:]


def photoshop_jpeg(size: int) -> bytes:
    """APP13 segments full of empty blocks, which Pillow parses one by one."""
    block = b"8BIM" + struct.pack(">H", 1) + b"\0\0" + struct.pack(">I", 0)
    data = b"Photoshop 3.0\0" + block * ((65_000 - 14) // len(block))
    whole = plain_jpeg()
    return whole[:2] + segment(0xED, data) * (size // 65_100) + whole[2:]


def overlapping_ifd(entries: int, points_to: int) -> bytes:
    """A TIFF directory whose every tag points to the same `points_to` bytes."""
    entry = b"".join(
        struct.pack("<HHII", 0x8000 + n % 0x7000, 7, points_to, 8) for n in range(entries)
    )
    return b"II*\0" + struct.pack("<IH", 8, entries) + entry + struct.pack("<I", 0)


def exif_jpeg(size: int) -> bytes:
    """EXIF in many segments, which Pillow joins: its tags point to hundreds of gigabytes."""
    tiff = overlapping_ifd(5400, size // 2)
    first = segment(0xE1, b"Exif\0\0" + tiff[:65_000])
    more = segment(0xE1, b"Exif\0\0" + bytes(65_000)) * ((size - 66_000) // 65_010)
    whole = plain_jpeg()
    return whole[:2] + first + more + whole[2:]


def chunks_png(size: int, kind: bytes = b"abCd") -> bytes:
    """Empty chunks before the pixels."""
    rows = zlib.compress(b"".join(b"\0" + bytes(range(64)) for _ in range(64)))
    return hostile.png(
        width=64, height=64, idat=rows, extra=hostile.chunk(kind, b"") * (size // 12)
    )


def empty_pixels_png(size: int) -> bytes:
    """Empty pixel chunks."""
    rows = zlib.compress(b"".join(b"\0" + bytes(range(64)) for _ in range(64)))
    good = hostile.png(width=64, height=64, idat=rows)
    whole = hostile.chunk(b"IDAT", rows)
    return good.replace(whole, hostile.chunk(b"IDAT", b"") * (size // 12) + whole)


def exif_png(size: int) -> bytes:
    tiff = overlapping_ifd(60_000, size // 2)
    extra = hostile.chunk(b"eXIf", tiff + bytes(size - len(tiff)))
    rows = zlib.compress(b"".join(b"\0" + bytes(range(64)) for _ in range(64)))
    return hostile.png(width=64, height=64, idat=rows, extra=extra)


def tiny_webp(side: int = 7071) -> bytes:
    """A lossless WebP of a few bytes and 50 megapixels of one colour."""
    return hostile.saved(Pillow.new("RGB", (side, side)), "WEBP", lossless=True)


def frames_webp(size: int) -> bytes:
    """An animation of many frames without content."""
    frame = b"ANMF" + struct.pack("<I", 16) + bytes(16)
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes((2, 0, 0, 0)) + b"\x3f\0\0" * 2
    body = b"WEBP" + canvas + b"ANIM" + struct.pack("<I", 6) + bytes(6) + frame * (size // 24)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tags_tiff(size: int) -> bytes:
    return overlapping_ifd(60_000, size // 2) + bytes(size - 720_020)


IMAGES: dict[str, Callable[[], bytes]] = {
    "scans.jpg": scans_jpeg,
    "scans-few.jpg": lambda: scans_jpeg(90),
    "fill.jpg": lambda: fill_jpeg(MAX_IMAGE),
    "fill-4MB.jpg": lambda: fill_jpeg(4_000_000),
    "junk.jpg": lambda: junk_jpeg(MAX_IMAGE),
    "photoshop.jpg": lambda: photoshop_jpeg(MAX_IMAGE),
    "exif.jpg": lambda: exif_jpeg(MAX_IMAGE),
    "stuffing.jpg": lambda: plain_jpeg()[:-2] + b"\xff\0" * 9_900_000 + b"\xff\xd9",
    "chunks.png": lambda: chunks_png(MAX_IMAGE - 1000),
    "text-chunks.png": lambda: chunks_png(MAX_IMAGE - 1000, b"tEXt"),
    "empty-pixels.png": lambda: empty_pixels_png(MAX_IMAGE - 1000),
    "exif.png": lambda: exif_png(MAX_IMAGE - 1000),
    "text-bomb.png": hostile.text_bomb,
    "bomb-49MP.png": lambda: hostile.bomb(7000, 7000),
    "tiny-50MP.webp": tiny_webp,
    "frames.webp": lambda: frames_webp(MAX_IMAGE - 1000),
    "tags.tif": lambda: tags_tiff(MAX_IMAGE),
    "zeros": lambda: bytes(MAX_IMAGE),
}
"""Images that take far longer, or far more memory, than their size suggests."""


@dataclass(frozen=True)
class Body:
    """A request: path, content type, bytes, method, and the type of the response."""

    path: str
    content_type: str
    make: Callable[[], bytes]
    method: str = "POST"
    accept: str = "*/*"


def filled(head: bytes, item: bytes, tail: bytes, size: int) -> bytes:
    return head + item * ((size - len(head) - len(tail)) // len(item)) + tail


_FEATURES = b'{"features0":{"model":"rootsift","image_size":[64,64],"descriptors":[],"keypoints":['


def json_body(item: bytes, size: int, head: bytes = b'{"a":[', tail: bytes = b"0]}") -> Body:
    return Body("/v1/match", "application/json", lambda: filled(head, item, tail, size))


def many_members() -> bytes:
    """An archive whose directory lists 400,000 members."""
    entry = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 0, 0, 0x21, 0, 0, 0, 1,
                        0, 0, 0, 0, 0, 0) + b"a"  # fmt: skip
    directory = entry * 400_000
    count = 0xFFFF
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), 0, 0)
    return directory + end


def form(name: str, data: bytes, *, other: bytes = b"") -> bytes:
    part = b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\n%s\r\n'
    pair = name[:-1] + ("1" if name.endswith("0") else "0")
    return part % (name.encode(), data) + part % (pair.encode(), other) + b"--x--\r\n"


FORM = "multipart/form-data; boundary=x"

BODIES: dict[str, Body] = {
    "empty lists, 8 MB": json_body(b"[],", 8_000_000, _FEATURES, b"[]]}}"),
    "empty lists": json_body(b"[],", MAX_BODY, _FEATURES, b"[]]}}"),
    "lists in an unknown field": json_body(b"[],", MAX_BODY),
    "numbers": json_body(b"1,", MAX_BODY, _FEATURES, b"1]}}"),
    "wrong points": json_body(b'["a"],', MAX_BODY, _FEATURES, b"[]]}}"),
    "objects": json_body(b"{},", MAX_BODY),
    "strings": json_body(b'"",', MAX_BODY),
    "names": json_body(b'"":0,', MAX_BODY, b"{", b'"":0}'),
    "backslashes": json_body(b"\\\\", MAX_BODY, b'{"a":"', b'"}'),
    "quotes": json_body(b'\\"', MAX_BODY, b'{"a":"', b'"}'),
    "unicode": json_body(b"\\u0041", MAX_BODY, b'{"image0":"', b'"}'),
    "spaces": json_body(b" ", MAX_BODY, b"{", b"}"),
    "not a number": json_body(b"1,", MAX_BODY, b'{"a":[', b"NaN]}"),
    "cut off": json_body(b"[],", MAX_BODY, b'{"a":[', b""),
    "base64": json_body(b"AAAA", MAX_BODY, b'{"image0":"', b'"}'),
    "base64, 26 MB": json_body(b"AAAA", 26_000_000, b'{"image0":"', b'"}'),
    "tensor": Body(
        "/v2/models/rootsift/infer",
        "application/json",
        lambda: filled(
            b'{"inputs":[{"name":"patches","datatype":"UINT8","shape":[1,1,32,32],"data":[',
            b"[],", b"0]}]}", MAX_BODY,
        ),
    ),
    "archive of many members": Body(
        "/v1/features/match", FORM, lambda: form("features0", many_members())
    ),
    "archive of zeros": Body("/v1/features/match", FORM, lambda: form("features0", zeros_npz())),
    "line ends": Body("/v1/match", FORM, lambda: form("image0", b"\r\n" * 10_000_000)),
    "dashes": Body("/v1/match", FORM, lambda: form("image0", b"\r\n--" * 5_000_000)),
    "preamble": Body("/v1/match", FORM, lambda: b"\r\n" * 20_000_000 + form("image0", b"a")),
    "epilogue": Body("/v1/match", FORM, lambda: form("image0", b"a") + b"\r\n" * 20_000_000),
}  # fmt: skip
"""Bodies that take far longer, or far more memory, to parse than their size suggests."""


def zeros_npz() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": (50_000_000, 2)}
        )
        file.writestr("keypoints.npy", header.getvalue() + bytes(400_000_000))
    return buffer.getvalue()


@cache
def good_png() -> bytes:
    return hostile.saved(Pillow.fromarray(generate((160, 120), seed=1)), "PNG")


def image_bodies(good: bytes) -> dict[str, Body]:
    """Each image of the corpus beside a good one, as a form and as base64."""
    bodies = {}
    for name, make in IMAGES.items():
        bodies[name] = Body(
            "/v1/match",
            FORM,
            lambda make=make: form("image0", make(), other=good),  # type: ignore[misc]
        )
    text = base64.b64encode(good)
    bodies["fill.jpg as base64"] = Body(
        "/v1/match",
        "application/json",
        lambda: b'{"image0":"%s","image1":"%s"}' % (base64.b64encode(fill_jpeg(MAX_IMAGE)), text),
    )
    return bodies


def all_bodies() -> dict[str, Body]:
    """Return every hostile request of this module."""
    return {**BODIES, **image_bodies(good_png())}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, make_image in IMAGES.items():
        (folder / file_name).write_bytes(make_image())
