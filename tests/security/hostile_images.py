"""Files that a decoder must refuse, or read without harm."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image as Pillow
from PIL import PngImagePlugin

from matchserve.pattern import generate


def saved(picture: Pillow.Image, image_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


def scene(seed: int = 1, size: tuple[int, int] = (160, 120)) -> Pillow.Image:
    return Pillow.fromarray(generate(size, seed=seed))


def chunk(kind: bytes, data: bytes, *, crc_error: int = 0) -> bytes:
    crc = zlib.crc32(kind + data) ^ crc_error
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def png(*, width: int, height: int, idat: bytes, depth: int = 8, extra: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", idat)
        + chunk(b"IEND", b"")
    )


def bomb(width: int, height: int) -> bytes:
    """A one-bit PNG of many pixels in few bytes."""
    row = b"\0" * (1 + (width + 7) // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width=width, height=height, idat=data, depth=1)


def text_bomb() -> bytes:
    """A small compressed text chunk that unpacks to 100 MB."""
    body = b"Comment\0\0" + zlib.compress(b"a" * 100_000_000, 9)
    rows = zlib.compress(b"".join(b"\0" + bytes(range(64)) for _ in range(64)))
    return png(width=64, height=64, idat=rows, extra=chunk(b"zTXt", body))


def bad_crc() -> bytes:
    rows = zlib.compress(b"".join(b"\0" + bytes(range(64)) for _ in range(64)))
    good = png(width=64, height=64, idat=rows)
    return good.replace(chunk(b"IDAT", rows), chunk(b"IDAT", rows, crc_error=1))


def animated(image_format: str, frames: int) -> bytes:
    tiny = [scene(i % 3, (64, 64)) for i in range(frames)]
    return saved(tiny[0], image_format, save_all=True, append_images=tiny[1:], duration=10)


def exif_jpeg(orientation: int) -> bytes:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    return saved(scene(), "JPEG", exif=exif)


def looped_exif_jpeg() -> bytes:
    """An IFD whose next IFD is itself."""
    entry = struct.pack("<HHII", 0x0112, 3, 1, 6)
    tiff = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 1) + entry + struct.pack("<I", 8)
    return saved(scene(), "JPEG", exif=b"Exif\0\0" + tiff)


def unusual_modes() -> dict[str, bytes]:
    grey = np.asarray(scene())
    deep = Pillow.fromarray(grey.astype(np.uint16) * 257)
    palette = scene().convert("RGB").quantize(32)
    return {
        "cmyk": saved(scene().convert("CMYK"), "JPEG"),
        "16bit": saved(deep, "PNG"),
        "palette-alpha": saved(palette, "PNG", transparency=3),
        "L": saved(scene(), "PNG"),
        "LA": saved(scene().convert("LA"), "PNG"),
        "1bit": saved(scene().convert("1"), "PNG"),
    }


def with_long_text() -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "x" * 1000)
    return saved(scene(), "PNG", pnginfo=info)
