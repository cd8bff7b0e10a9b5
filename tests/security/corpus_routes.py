"""Hostile bodies for batches, stored features, masks and keypoints, uploads and jobs."""

from __future__ import annotations

import base64
from collections.abc import Callable

from PIL import Image as Pillow

from tests.security import hostile_images as hostile
from tests.security.corpus import (
    FORM,
    IMAGES,
    MAX_BODY,
    MAX_IMAGE,
    Body,
    chunks_png,
    exif_jpeg,
    fill_jpeg,
    filled,
    many_members,
    scans_jpeg,
    zeros_npz,
)

COLLECTION = "attacked"
"""The collection that uploads go to; whoever sends the bodies creates it."""
BATCH, STORED, MATCH, JOBS = "/v1/match/batch", "/v1/features/stored", "/v1/match", "/v1/jobs"
JSON = "application/json"
BATCH_IMAGES = 16


def form_of(parts: dict[str, bytes], *, fields: dict[str, bytes] | None = None) -> bytes:
    """A form of files and of fields without a file name."""
    file = b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\n%s\r\n'
    field = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    made = [file % (name.encode(), data) for name, data in parts.items()]
    made += [field % (name.encode(), data) for name, data in (fields or {}).items()]
    return b"".join(made) + b"--x--\r\n"


def batch_of(make: Callable[[], bytes], count: int = BATCH_IMAGES) -> Body:
    """A batch whose images are all the same."""

    def body() -> bytes:
        data = make()
        return form_of({f"image{number}": data for number in range(count)})

    return Body(BATCH, FORM, body)


def json_to(path: str, head: bytes, item: bytes, tail: bytes, size: int = MAX_BODY) -> Body:
    return Body(path, JSON, lambda: filled(head, item, tail, size))


def upload_of(name: str) -> Body:
    kind = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp"}[name.rpartition(".")[2]]
    return Body(f"/v1/collections/{COLLECTION}/images/{name}", kind, IMAGES[name], "PUT")


def two_of(mode: str, side: int, image_format: str, accept: str = "*/*", **options: object) -> Body:
    """Two large images that are accepted; for a picture of the matches both are decoded twice."""

    def body() -> bytes:
        data = hostile.saved(Pillow.new(mode, (side, side)), image_format, **options)
        return form_of({"image0": data, "image1": data})

    return Body(MATCH, FORM, body, accept=accept)


def route_bodies(good: bytes) -> dict[str, Body]:
    """Return every hostile request to these routes; `good` is an image beside a hostile mask."""
    text = base64.b64encode(good)
    pair = {"image0": good, "image1": good}
    images = b'{"image0":"%s","image1":"%s",' % (text, text)
    return {
        "two: transparent": two_of("RGBA", 6000, "PNG"),
        "two: 16 bits": two_of("I;16", 6000, "PNG"),
        "two: lossless": two_of("RGB", 3500, "WEBP", lossless=True),
        "two: sequential": two_of("RGB", 7000, "JPEG"),
        "two: progressive": two_of("RGB", 4900, "JPEG", progressive=True, subsampling=0),
        "two: CMYK": two_of("CMYK", 6200, "JPEG"),
        "picture: transparent": two_of("RGBA", 6000, "PNG", "image/png"),
        "picture: 16 bits": two_of("I;16", 7000, "PNG", "image/png"),
        "batch: fill bytes": batch_of(lambda: fill_jpeg(2_500_000)),
        "batch: EXIF": batch_of(lambda: exif_jpeg(2_500_000)),
        "batch: chunks": batch_of(lambda: chunks_png(2_500_000)),
        "batch: scans": batch_of(scans_jpeg),
        "batch: bombs": batch_of(lambda: hostile.bomb(7000, 7000), 3),
        "batch: pairs": json_to(BATCH, b'{"images":[],"pairs":[', b"[0,1],", b"[0,1]]}"),
        "batch: pairs of nothing": json_to(BATCH, b'{"images":[],"pairs":[', b"[],", b"[]]}"),
        "batch: images of nothing": json_to(BATCH, b'{"images":[', b'"",', b'""]}'),
        "batch: pairs in a form": Body(
            BATCH,
            FORM,
            lambda: form_of(pair, fields={"pairs": filled(b"[", b"[0,1],", b"[0,1]]", MAX_IMAGE)}),
        ),
        "stored: empty lists": json_to(
            STORED, b'{"model":"rootsift","image_size":[64,64],"descriptors":[],"keypoints":[',
            b"[],", b"[]]}",
        ),
        "stored: archive of many members": Body(
            STORED, FORM, lambda: form_of({"features": many_members()})
        ),
        "stored: archive of zeros": Body(STORED, FORM, lambda: form_of({"features": zeros_npz()})),
        "named features": json_to(MATCH, b'{"features0":"', b"a", b'","features1":"a"}'),
        "mask: scans": Body(MATCH, FORM, lambda: form_of({**pair, "mask0": scans_jpeg()})),
        "mask: bomb": Body(
            MATCH, FORM, lambda: form_of({**pair, "mask0": hostile.bomb(7000, 7000)})
        ),
        "mask: fill bytes": Body(
            MATCH, FORM, lambda: form_of({**pair, "mask0": fill_jpeg(MAX_IMAGE)})
        ),
        "shapes": json_to(MATCH, images + b'"ignore0":[', b"[0,0,1,1],", b"[0,0,1,1]]}"),
        "corners": json_to(MATCH, images + b'"ignore0":[[', b"[0,0],", b"[0,0]]]}"),
        "points": json_to(MATCH, images + b'"keypoints0":{"keypoints":[', b"[],", b"[]]}}"),
        "points: archive of zeros": Body(
            MATCH, FORM, lambda: form_of({**pair, "keypoints0": zeros_npz()})
        ),
        "job: lists": json_to(JOBS, b'{"kind":[', b"[],", b"[]]}"),
        "job: deep": Body(JOBS, JSON, lambda: b'{"kind":' + b"[" * 60_000),
        **{
            f"upload: {name}": upload_of(name)
            for name in IMAGES
            if name.endswith((".jpg", ".png", ".webp"))
        },
    }  # fmt: skip
