"""The table of bad inputs: each request, and the status and code that must come back."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from PIL import Image as Pillow

from matchserve.pattern import generate
from tests.conftest import encoded
from tests.security import hostile_images as hostile

GOOD = encoded(generate((160, 120), seed=1))


@dataclass(frozen=True)
class Case:
    """One request and what must come back."""

    name: str
    status: int | tuple[int, ...]
    code: str | tuple[str, ...] | None = None
    files: Callable[[], Any] | None = None
    data: dict[str, str] = field(default_factory=dict)
    content: Callable[[], bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    path: str = "/v1/match"


def image(name: str, status: int, code: str, make: Callable[[], bytes]) -> Case:
    return Case(name, status, code, files=lambda: {"image0": make(), "image1": GOOD})


def parameter(name: str, status: int | tuple[int, ...], code: str, **data: str) -> Case:
    return Case(name, status, code, files=lambda: {"image0": GOOD, "image1": GOOD}, data=data)


FORM_END = b"--x--\r\n"


def form(count: int, name: bytes = b"f%d", options: bytes = b"") -> bytes:
    """A whole form: sent part by part, it would be refused for its small pieces."""
    part = b'--x\r\nContent-Disposition: form-data; name="%s"' + options + b"\r\n\r\n1\r\n"
    names = (name % i if b"%" in name else name for i in range(count))
    return b"".join(part % n for n in names) + FORM_END


def body(
    name: str,
    status: int | tuple[int, ...],
    code: str | tuple[str, ...] | None,
    content: Callable[[], bytes],
    content_type: str = "application/json",
) -> Case:
    return Case(name, status, code, content=content, headers={"Content-Type": content_type})


def images_json(**fields: Any) -> bytes:
    text = base64.b64encode(GOOD).decode()
    return json.dumps({"image0": text, "image1": text, **fields}).encode()


FORM = "multipart/form-data"


CASES = [
    Case("1 no body", 422, "missing_image"),
    Case("2 one image", 422, "missing_image", files=lambda: {"image0": GOOD}),
    image("3 empty file", 422, "empty_image", lambda: b""),
    image("4 one byte", 415, "unsupported_format", lambda: b"\xff"),
    image("5 random", 415, "unsupported_format", lambda: np.random.default_rng(1).bytes(1024)),
    image("6 text", 415, "unsupported_format", lambda: b"this is not a photograph\n" * 20),
    image(
        "7 svg",
        415,
        "unsupported_format",
        lambda: (
            b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
            b'<svg xmlns="http://www.w3.org/2000/svg"><text>&e;</text></svg>'
        ),
    ),
    image("8 eps", 415, "unsupported_format", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%EOF"),
    image("8 pdf", 415, "unsupported_format", lambda: b"%PDF-1.7\n%%EOF"),
    image("8 psd", 415, "unsupported_format", lambda: b"8BPS\0\1" + b"\0" * 60),
    *(
        image(
            f"9 {kind}",
            415,
            "unsupported_format",
            lambda kind=kind: hostile.saved(hostile.scene(), kind),  # type: ignore[misc]
        )
        for kind in ("TIFF", "BMP", "ICO", "GIF")
    ),
    image("10 half png", 422, "corrupt_image", lambda: GOOD[: len(GOOD) // 2]),
    image(
        "11 half jpeg",
        422,
        "corrupt_image",
        lambda: (whole := hostile.saved(hostile.scene(), "JPEG"))[: len(whole) // 2],
    ),
    image("12 png crc", 422, "corrupt_image", hostile.bad_crc),
    image(
        "13 png idat",
        422,
        "corrupt_image",
        lambda: hostile.png(width=64, height=64, idat=b"not zlib at all"),
    ),
    image(
        "14 png 2^31",
        413,
        "image_too_large",
        lambda: hostile.png(width=2**31 - 1, height=2**31 - 1, idat=b""),
    ),
    image("15 169 MP", 413, "image_too_large", lambda: hostile.bomb(13000, 13000)),
    image("16 88 MP", 413, "image_too_large", lambda: hostile.bomb(9400, 9400)),
    image("17 40000x1", 413, "image_too_large", lambda: hostile.bomb(40000, 1)),
    image(
        "18 1x1",
        422,
        "image_too_small",
        lambda: hostile.saved(Pillow.new("L", (1, 1)), "PNG"),
    ),
    image(
        "18 7x7",
        422,
        "image_too_small",
        lambda: hostile.saved(Pillow.new("L", (7, 7)), "PNG"),
    ),
    image("19 text bomb", 422, "corrupt_image", hostile.text_bomb),
    body("20 no boundary", 400, "invalid_multipart", lambda: b"--x\r\n\r\n", FORM),
    body(
        "21 unterminated",
        (400, 422),
        ("invalid_multipart", "missing_image"),
        lambda: b"--x\r\nContent-Disposition: form-data; name=image0; filename=a\r\n\r\nabc",
        FORM + "; boundary=x",
    ),
    body("22 1500 fields", 400, "invalid_multipart", lambda: form(1500), FORM + "; boundary=x"),
    body(
        "23 1000 files",
        400,
        "invalid_multipart",
        lambda: form(1, b"image0", b'; filename="a"')[: -len(FORM_END)] + form(999),
        FORM + "; boundary=x",
    ),
    body(
        "24 50 MB part header",
        (400, 413),
        ("invalid_multipart", "payload_too_large"),
        lambda: b"--x\r\nX-A: " + b"a" * 50_000_000,
        FORM + "; boundary=x",
    ),
    body(
        "24 5 MB part header",
        400,
        "invalid_multipart",
        lambda: b"--x\r\nX-A: " + b"a" * 5_000_000,
        FORM + "; boundary=x",
    ),
    image("25 30 MB file", 413, "payload_too_large", lambda: b"\0" * 30_000_000),
    *(
        Case(
            f"27 filename {name[:6]!r}",
            200,
            files=partial(dict, image0=(name, GOOD), image1=(name, GOOD)),
        )
        for name in ("a\r\nb.jpg", "a\0b.jpg", "x" * 10_000, "\u202egpj.exe", "../../etc/passwd")
    ),
    Case(
        "28 animated png",
        200,
        files=lambda: {"image0": hostile.animated("PNG", 100), "image1": GOOD},
    ),
    Case(
        "28 animated webp",
        200,
        files=lambda: {"image0": hostile.animated("WEBP", 100), "image1": GOOD},
    ),
    *(
        Case(
            f"29 exif {value}",
            200,
            files=partial(dict, image0=hostile.exif_jpeg(value), image1=GOOD),
        )
        for value in (0, 9)
    ),
    Case(
        "29 looped exif",
        200,
        files=lambda: {"image0": hostile.looped_exif_jpeg(), "image1": GOOD},
    ),
    *(
        parameter(f"30-33 max_keypoints {v}", 422, "invalid_parameter", max_keypoints=v)
        for v in ("0", "-1", "1000000000", str(2**63), "1e400", "many", "8193")
    ),
    body(
        "32 1e400 in JSON",
        (400, 422),
        ("invalid_json", "invalid_parameter"),
        lambda: images_json().replace(b'"image0"', b'"max_keypoints": 1e400, "image0"'),
    ),
    *(
        parameter(f"34 ratio {v}", 422, "invalid_parameter", ratio=v)
        for v in ("0", "1.5", "-1", "nan", "inf")
    ),
    *(
        parameter(f"35 threshold {v}", 422, "invalid_parameter", threshold_px=v)
        for v in ("0", "1e9", "nan")
    ),
    body("37 deep", 400, "invalid_json", lambda: b"[" * 100_000),
    body(
        "37 deep object",
        400,
        "invalid_json",
        lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ),
    *(
        body(
            f"38 {v}",
            422,
            "invalid_parameter",
            lambda v=v: images_json().replace(  # type: ignore[misc]
                b'"image0"', b'"ratio": ' + v.encode() + b', "image0"'
            ),
        )
        for v in ("NaN", "Infinity", "-Infinity")
    ),
    body(
        "39 long integer",
        (400, 422),
        ("invalid_json", "invalid_parameter"),
        lambda: images_json().replace(
            b'"image0"', b'"max_keypoints": ' + b"9" * 5000 + b', "image0"'
        ),
    ),
    body(
        "40 duplicate keys: the last holds",
        200,
        None,
        lambda: images_json().replace(
            b'"image0"', b'"max_keypoints": 9, "max_keypoints": 50, "image0"', 1
        ),
    ),
    body("41 unknown field", 422, "invalid_parameter", lambda: images_json(keypoints=5)),
    parameter("41 unknown form field", 422, "invalid_parameter", keypoints="5"),
    body("42 not utf-8", 400, "invalid_json", lambda: b'{"model": "\xff\xfe"}'),
    body("43 utf-16", 400, "invalid_json", lambda: '{"model": "sift"}'.encode("utf-16")),
    *(
        body(f"44 {v.decode()}", 422, "invalid_parameter", lambda v=v: v)  # type: ignore[misc]
        for v in (b"[]", b"null", b"5", b'"x"')
    ),
    *(
        body(
            f"45 base64 {v!r}",
            422,
            "invalid_parameter",
            lambda v=v: images_json(image0=v),  # type: ignore[misc]
        )
        for v in ("!!!!", "abc", "data:image/png,abc", "http://127.0.0.1/a.png")
    ),
    body(
        "46 30 MB of base64", 413, "payload_too_large", lambda: images_json(image0="A" * 30_000_000)
    ),
    body("47 text/plain", 415, "unsupported_media", lambda: b"hello", "text/plain"),
    Case("47 no content type", 415, "unsupported_media", content=lambda: b"hello"),
    *(
        parameter(f"48-51 model {v!r}", 404, "unknown_model", model=v)
        for v in (
            "../../etc/passwd",
            "%2e%2e%2f",
            "a/b",
            "a\0b",
            "ROOTSIFT",
            "rооtsift",
            "/etc/passwd",
        )
    ),
    parameter("50 long model", 422, "invalid_parameter", model="m" * 10_000),
    Case("52 GET", 405, "method_not_allowed", method="GET"),
    *(
        Case(f"53 {p}", 404, "not_found", path=p)
        for p in ("/nothing", "//v1/match", "/v1/match/", "/assets/../settings.py")
    ),
    Case(
        "59 gzip",
        415,
        "unsupported_media",
        content=lambda: gzip.compress(images_json()),
        headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ),
    *(
        Case(f"63 {mode}", 200, files=partial(dict, image0=data, image1=GOOD))
        for mode, data in hostile.unusual_modes().items()
    ),
]
