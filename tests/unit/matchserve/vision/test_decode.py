from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import TiffImagePlugin

from matchserve.errors import (
    CorruptImage,
    EmptyImage,
    ImageError,
    ImageTooLarge,
    ImageTooSmall,
    UnsupportedFormat,
)
from matchserve.limits import Limits
from matchserve.types import UInt8
from matchserve.vision import pixels
from matchserve.vision.decode import decode, decode_colour, from_array, read_size
from tests.conftest import encoded


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, bits: int = 8, data: bytes = b"", extra: bytes = b"") -> bytes:
    """A PNG of declared size whose rows are `data`."""
    return png_of_raw(zlib.compress(data, 9), width, height, bits=bits, extra=extra)


def png_of_raw(
    data: bytes, width: int = 64, height: int = 64, *, bits: int = 8, extra: bytes = b""
) -> bytes:
    """A PNG of declared size whose image data is `data` as it stands."""
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", data)
    return b"\x89PNG\r\n\x1a\n" + body + png_chunk(b"IEND", b"")


def bomb(width: int, height: int) -> bytes:
    """A small one-bit PNG that really decodes to width x height."""
    row = b"\0" + bytes((width + 7) // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row * 64) for _ in range(height // 64)) + packer.flush()
    return png_of_raw(data, width, height, bits=1)


@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
def test_lossless_formats_come_back_exactly(pattern: UInt8, image_format: str) -> None:
    image = decode(encoded(pattern, image_format))
    np.testing.assert_array_equal(image.grey, pattern)
    assert image.size == (320, 240)


@pytest.mark.parametrize(("image_format", "options"), [("JPEG", {"quality": 95}), ("WEBP", {})])
def test_lossy_formats_come_back_nearly(
    pattern: UInt8, image_format: str, options: dict[str, Any]
) -> None:
    image = decode(encoded(pattern, image_format, **options))
    assert np.abs(image.grey.astype(int) - pattern).mean() < 4


def test_colour_becomes_bt601_grey(photograph: UInt8) -> None:
    expected = photograph @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decode(encoded(photograph)).grey - expected).max() <= 1.0
    jpeg = decode(encoded(photograph, "JPEG", quality=95)).grey
    assert np.abs(jpeg - expected).mean() < 2.0


def test_cmyk_and_palette_and_one_bit(photograph: UInt8) -> None:
    grey = decode(encoded(photograph)).grey.astype(int)
    cmyk = io.BytesIO()
    Pillow.fromarray(photograph).convert("CMYK").save(cmyk, format="JPEG", quality=95)
    assert np.abs(decode(cmyk.getvalue()).grey - grey).mean() < 3
    palette = io.BytesIO()
    Pillow.fromarray(photograph).quantize(256).save(palette, format="PNG")
    assert np.abs(decode(palette.getvalue()).grey - grey).mean() < 8
    one_bit = io.BytesIO()
    Pillow.fromarray(photograph).convert("1").save(one_bit, format="PNG")
    assert set(np.unique(decode(one_bit.getvalue()).grey)) == {0, 255}


def test_sixteen_bits_keep_their_upper_eight(pattern: UInt8) -> None:
    deep = pattern.astype(np.uint16) * 256 + 77
    np.testing.assert_array_equal(decode(encoded(deep)).grey, pattern)
    np.testing.assert_array_equal(decode(encoded(deep, "TIFF")).grey, pattern)
    np.testing.assert_array_equal(from_array(deep).grey, pattern)


def test_twelve_bits_in_sixteen_keep_their_grey_levels(pattern: UInt8) -> None:
    twelve = pattern.astype(np.uint16) * 16 + 5
    twelve[0, 0] = 4095
    for grey in (decode(encoded(twelve)).grey, from_array(twelve).grey):
        np.testing.assert_array_equal(grey[1:], pattern[1:])


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1", "CMYK", "I;16"])
def test_bands_are_converted_as_the_whole_is(
    photograph: UInt8, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "I;16":
        # The highest value, which decides the shift, is in the first band only.
        deep = photograph[..., 0].astype(np.uint16) * 8
        deep[0, 0] = 4095
        picture = Pillow.fromarray(deep)
    else:
        picture = Pillow.fromarray(photograph).convert(mode)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG" if mode == "CMYK" else "PNG")
    data = buffer.getvalue()
    whole = decode(data).grey
    monkeypatch.setattr(pixels, "_BAND_PIXELS", 7 * picture.width)
    np.testing.assert_array_equal(decode(data).grey, whole)


def test_a_jpeg_with_a_second_picture_is_a_jpeg(pattern: UInt8) -> None:
    """As phones write them: Pillow calls such a file MPO."""
    buffer = io.BytesIO()
    first, second = Pillow.fromarray(pattern), Pillow.fromarray(pattern[::2, ::2].copy())
    first.save(buffer, format="MPO", save_all=True, append_images=[second], quality=95)
    assert decode(buffer.getvalue()).size == read_size(buffer.getvalue()) == (320, 240)


def test_transparency_lies_on_white() -> None:
    rgba = np.zeros((32, 32, 4), np.uint8)
    rgba[:, 16:] = (0, 0, 0, 255)
    grey = decode(encoded(rgba)).grey
    assert grey[0, 0] == 255
    assert grey[0, 31] == 0


@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_orientation_is_undone_or_ignored(turn: int, image_format: str) -> None:
    upright = np.arange(40 * 24, dtype=np.uint32).reshape(24, 40) % 251
    upright = upright.astype(np.uint8)
    methods = {
        2: Pillow.Transpose.FLIP_LEFT_RIGHT,
        3: Pillow.Transpose.ROTATE_180,
        4: Pillow.Transpose.FLIP_TOP_BOTTOM,
        5: Pillow.Transpose.TRANSPOSE,
        6: Pillow.Transpose.ROTATE_90,
        7: Pillow.Transpose.TRANSVERSE,
        8: Pillow.Transpose.ROTATE_270,
    }
    picture = Pillow.fromarray(upright)
    stored = picture.transpose(methods[turn]) if turn in methods else picture
    exif = Pillow.Exif()
    exif[0x0112] = turn
    buffer = io.BytesIO()
    stored.save(buffer, format=image_format, exif=exif)
    image = decode(buffer.getvalue())
    np.testing.assert_array_equal(image.grey, upright)
    assert image.size == (40, 24)
    ignored = decode(buffer.getvalue(), exif="ignore")
    np.testing.assert_array_equal(ignored.grey, np.asarray(stored))
    for policy, expected in (("apply", upright), ("ignore", np.asarray(stored))):
        colour = decode_colour(buffer.getvalue(), exif=policy, max_side=400)  # type: ignore[arg-type]
        np.testing.assert_array_equal(colour[:, :, 0], expected)


@pytest.mark.parametrize("turn", [0, 9, 60000])
def test_senseless_exif_orientation_is_ignored(pattern: UInt8, turn: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = turn
    np.testing.assert_array_equal(decode(encoded(pattern, exif=exif)).grey, pattern)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_costs_nothing(pattern: UInt8) -> None:
    data = encoded(pattern, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xee" * 40)
    assert decode(data).size == (320, 240)


def test_animation_gives_its_first_frame(pattern: UInt8) -> None:
    frames = [Pillow.fromarray(np.roll(pattern, k, axis=0)) for k in range(4)]
    buffer = io.BytesIO()
    frames[0].save(buffer, format="PNG", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(buffer.getvalue()).grey, pattern)


def test_a_working_size_too_thin_to_hold_a_keypoint_is_refused() -> None:
    with pytest.raises(ImageTooSmall):
        from_array(np.zeros((20, 4000), np.uint8), max_side=64)


def test_max_side_reduces_the_working_image_only(pattern: UInt8) -> None:
    image = decode(encoded(pattern), max_side=160)
    assert image.grey.shape == (120, 160)
    assert image.size == (320, 240)
    np.testing.assert_allclose(image.to_sent(np.array([[0.0, 0.0]])), [[0.5, 0.5]])
    np.testing.assert_allclose(image.to_working(image.to_sent(np.array([[7.0, 9.0]]))), [[7, 9]])


def test_colour_decoding_turns_and_reduces(photograph: UInt8) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    data = encoded(photograph[:300], exif=exif)
    colour = decode_colour(data, max_side=128)
    assert colour.shape == (128, 75, 3)


COLOUR_SCRIPT = """
import sys
from pathlib import Path
from matchserve.vision.decode import decode_colour

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])

data = Path(sys.argv[1]).read_bytes()
Path("/proc/self/clear_refs").write_text("5")
before = peak()
decode_colour(data, max_side=200)
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("mode", "bytes_per_pixel"), [("I;16", 3.5), ("RGB", 5.5), ("RGBA", 5.5), ("P", 3.0)]
)
def test_a_picture_in_colour_takes_little_more_memory_than_a_grey_one(
    tmp_path: Path, mode: str, bytes_per_pixel: float
) -> None:
    """It is reduced band by band: the whole in three or four channels would be another copy."""
    file = tmp_path / "large.png"
    Pillow.new(mode, (4000, 4000)).save(file)
    done = subprocess.run(
        [sys.executable, "-c", COLOUR_SCRIPT, file], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) * 1024 < 16e6 * bytes_per_pixel + 30e6


def test_a_reduced_picture_in_colour_is_that_of_pillow(photograph: UInt8) -> None:
    large = Pillow.fromarray(photograph).resize((1000, 800))
    expected = large.copy()
    expected.thumbnail((130, 130))
    found = decode_colour(encoded(np.asarray(large)), max_side=130)
    difference = np.abs(found.astype(int) - np.asarray(expected).astype(int))
    assert found.shape == (104, 130, 3)
    assert difference.mean() < 2


def truncated(data: bytes, share: float = 0.5) -> bytes:
    return data[: int(len(data) * share)]


def tiff_float() -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(np.zeros((32, 32), np.float32)).save(buffer, format="TIFF")
    return buffer.getvalue()


def text_bomb() -> bytes:
    inflated = zlib.compress(b"a" * 80_000_000, 9)
    chunk = png_chunk(b"zTXt", b"Comment\0\0" + inflated)
    return png(64, 64, data=bytes(65 * 64), extra=chunk)


def flipped_crc(data: bytes) -> bytes:
    position = data.index(b"IDAT") + 12
    return data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :]


def tiff_with_offset(offset: int) -> bytes:
    return b"II*\0" + struct.pack("<I", offset) + bytes(64)


def _padded(magic: bytes, _: UInt8) -> bytes:
    return magic + bytes(200)


def _cut(image_format: str, share: float, picture: UInt8) -> bytes:
    return truncated(encoded(picture, image_format), share)


def _header(image_format: str, picture: UInt8) -> bytes:
    return encoded(picture, image_format)[:24]


def malformed() -> dict[str, tuple[Callable[[UInt8], bytes], type[ImageError]]]:
    """Name -> (bytes from a good image, the error it must give)."""
    magic = {
        "gif": b"GIF89a",
        "bmp": b"BM",
        "ico": b"\0\0\1\0",
        "psd": b"8BPS",
        "pdf": b"%PDF-1.7",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0",
        "svg": b"<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///x'>]><svg>&x;</svg>",
        "html": b"<html><body>hello</body></html>",
        "zip": b"PK\3\4",
        "elf": b"\x7fELF",
        "heif": b"\0\0\0\x18ftypheic",
        "jp2": b"\0\0\0\x0cjP  \r\n\x87\n",
        "ppm": b"P6 32 32 255\n",
        "text": b"this is not an image, whatever its name says\n",
    }
    cases: dict[str, tuple[Callable[[UInt8], bytes], type[ImageError]]] = {
        f"other format {name}": (partial(_padded, m), UnsupportedFormat)
        for name, m in magic.items()
    }
    for name, image_format in (
        ("png", "PNG"),
        ("jpeg", "JPEG"),
        ("webp", "WEBP"),
        ("tiff", "TIFF"),
    ):
        for share in (0.3, 0.5, 0.9):
            cases[f"{name} cut at {share}"] = (
                partial(_cut, image_format, share),
                CorruptImage if name != "webp" else ImageError,
            )
        cases[f"{name} header only"] = (
            partial(_header, image_format),
            ImageError,
        )
    cases |= {
        "empty": (lambda _: b"", EmptyImage),
        "one byte": (lambda _: b"\xff", UnsupportedFormat),
        "zeros": (lambda _: bytes(1000), UnsupportedFormat),
        "random": (lambda _: np.random.default_rng(0).bytes(1000), UnsupportedFormat),
        "png bad crc": (lambda p: flipped_crc(encoded(p)), CorruptImage),
        "png not zlib": (lambda _: png_of_raw(b"\1\2\3\4\5\6\7\x08"), CorruptImage),
        "png without data": (lambda _: png(64, 64), CorruptImage),
        "png of zero size": (lambda _: png(0, 0), ImageError),
        "png of bad depth": (lambda _: png(64, 64, bits=7), ImageError),
        "png 2^31-1 square": (lambda _: png(2**31 - 1, 2**31 - 1), ImageTooLarge),
        "png 169 megapixels": (lambda _: bomb(13000, 13000), ImageTooLarge),
        "png 88 megapixels": (lambda _: bomb(9408, 9408), ImageTooLarge),
        "png 40000 x 1": (lambda _: png(40000, 1, data=bytes(40001)), ImageTooLarge),
        "png 1 x 1": (lambda _: png(1, 1, data=bytes(2)), ImageTooSmall),
        "png 7 x 7": (lambda _: png(7, 7, data=bytes(56)), ImageTooSmall),
        "png 15 x 400": (lambda _: png(15, 400, data=bytes(6400)), ImageTooSmall),
        "png text bomb": (lambda _: text_bomb(), CorruptImage),
        "tiff of floats": (lambda _: tiff_float(), UnsupportedFormat),
        "tiff directory far away": (lambda _: tiff_with_offset(2**31), ImageError),
        "tiff directory of itself": (lambda _: tiff_with_offset(4), ImageError),
    }
    return cases


CASES = malformed()


def test_there_are_at_least_forty_malformed_inputs() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_malformed_input_gives_its_error(name: str, pattern: UInt8) -> None:
    make, expected = CASES[name]
    data = make(pattern)
    with pytest.raises(expected) as caught:
        decode(data)
    assert caught.value.status in (413, 415, 422)
    assert "\n" not in caught.value.message


def peak_mb_of(code: str) -> float:
    """How far a process's peak memory rises while it runs `code`."""
    script = (
        "import pathlib, re, sys\n"
        "from matchserve.vision.decode import decode\n"
        "from matchserve.errors import ImageError\n"
        "from matchserve.limits import Limits\n"
        "data = sys.stdin.buffer.read()\n"
        "status = pathlib.Path('/proc/self/status')\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', status.read_text())[1]) / 1024\n"
        # A process starts with its parent's peak; 5 sets it back to what it uses now.
        "pathlib.Path('/proc/self/clear_refs').write_text('5')\n"
        "before = peak()\n"
        f"{code}\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        input=bomb(13000, 13000), capture_output=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def test_a_bomb_costs_no_memory_and_would_without_the_check() -> None:
    refused = "try: decode(data)\nexcept ImageError as e: assert e.code == 'image_too_large'"
    assert peak_mb_of(refused) < 10
    allowed = "decode(data, limits=Limits(max_pixels=10**9))"
    assert peak_mb_of(allowed) > 150


def test_a_small_file_that_declares_169_megapixels_is_refused_from_its_header() -> None:
    data = bomb(13000, 13000)
    assert len(data) < 30_000
    with pytest.raises(ImageTooLarge, match="megapixels") as caught:
        decode(data)
    assert caught.value.limit == 50_000_000


def test_limits_are_parameters(pattern: UInt8) -> None:
    with pytest.raises(ImageTooLarge, match="bytes"):
        decode(encoded(pattern), limits=Limits(max_image_bytes=100))
    with pytest.raises(ImageTooLarge, match="side"):
        decode(encoded(pattern), limits=Limits(max_side=300))
    assert decode(encoded(pattern), limits=Limits(max_pixels=320 * 240)).size == (320, 240)


def test_memory_error_is_an_image_error(pattern: UInt8, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(TiffImagePlugin.TiffImageFile, "load", fail)
    with pytest.raises(ImageTooLarge, match="memory"):
        decode(encoded(pattern, "TIFF"))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((32, 32), np.float32),
        np.zeros((32, 32, 4), np.uint8),
        np.zeros(32, np.uint8),
        np.zeros((2, 32, 32, 3), np.uint8),
    ],
)
def test_arrays_of_other_kinds_are_refused(array: np.ndarray) -> None:
    with pytest.raises(UnsupportedFormat):
        from_array(array)
