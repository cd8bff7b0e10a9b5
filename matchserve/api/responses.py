"""Encode results in the media type that the client prefers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api.errors import NotAcceptable
from matchserve.drawing import draw_matches, png_bytes
from matchserve.encoding import features_fields, npz_bytes, result_fields, result_npz, to_json
from matchserve.models.card import ModelCard
from matchserve.types import Features, MatchResult, UInt8

JSON = "application/json"
NPZ = "application/x-npz"
MSGPACK = "application/msgpack"
PNG = "image/png"

ARRAY_TYPES = (JSON, NPZ, MSGPACK)
"""Media types of results that are arrays."""

DRAWING_SIDE = 1600


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """An encoded result, its media type and its timings."""

    body: bytes
    media_type: str
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    def response(self) -> Response:
        """Return the HTTP response."""
        timing = ", ".join(f"{name};dur={ms:.1f}" for name, ms in self.timings_ms.items())
        return Response(self.body, 200, {"Server-Timing": timing}, self.media_type)


def negotiate(request: Request, offered: tuple[str, ...]) -> str:
    """Return the offered media type that the client prefers; the first one by default.

    Raises:
        NotAcceptable: the client accepts none of them.
    """
    preferences = []
    for position, part in enumerate(request.headers.get("accept", "*/*").split(",")):
        name, *options = (piece.strip().lower() for piece in part.split(";"))
        preferences.append((-_quality(options), position, name))
    for quality, _, name in sorted(preferences):
        fitting = [offer for offer in offered if _fits(name, offer)]
        if quality < 0 and fitting:
            return fitting[0]
    raise NotAcceptable(f"the response can be {', '.join(offered)}")


def _quality(options: list[str]) -> float:
    for option in options:
        if option.startswith("q="):
            try:
                return float(option[2:])
            except ValueError:
                return 0.0
    return 1.0


def _fits(name: str, offer: str) -> bool:
    return name in (offer, "*/*", "") or (name.endswith("/*") and offer.startswith(name[:-1]))


def match_body(
    result: MatchResult, media_type: str, draw: Callable[[], bytes], *, details: bool = False
) -> bytes:
    """Encode a match as `media_type`; `draw` is called only for a picture.

    `details` adds the scale, orientation and score of each keypoint.
    """
    if media_type == PNG:
        return draw()
    if media_type == NPZ:
        return result_npz(result, details=details)
    return encoded(result_fields(result, details=details), media_type)


def picture(
    images: tuple[bytes, ...], result: MatchResult, decode_colour: Callable[[bytes, int], UInt8]
) -> bytes:
    """Draw the matches on both images, as PNG."""
    colour0, colour1 = (decode_colour(image, DRAWING_SIDE) for image in images)
    return png_bytes(draw_matches(colour0, colour1, result))


def features_body(
    features: Features, media_type: str, *, encoding: str, extra: Mapping[str, Any]
) -> bytes:
    """Encode a described image as `media_type`; `encoding` says how JSON holds descriptors.

    The encoding "none" leaves the descriptors away in every media type.
    """
    fields = features_fields(features)
    if encoding == "none":
        del fields["descriptors"]
    if media_type == NPZ:
        named = {"id": extra["id"]} if "id" in extra else {}
        return npz_bytes({name: np.asarray(value) for name, value in {**fields, **named}.items()})
    if encoding == "base64" and media_type == JSON:
        fields["descriptors"] = base64.b64encode(features.descriptors.tobytes())
    return encoded({**_text_fields(fields), **extra}, media_type)


def patches_body(
    rows: NDArray[Any],
    card: ModelCard,
    media_type: str,
    *,
    as_base64: bool,
    timings_ms: Mapping[str, float],
) -> bytes:
    """Encode described patches as `media_type`."""
    if media_type == NPZ:
        return npz_bytes({"model": np.array(card.name), "descriptors": rows})
    fields: dict[str, Any] = {
        "model": card.name,
        "kind": card.kind,
        "dim": card.dim,
        "count": len(rows),
        "descriptors": rows,
        "timings_ms": dict(timings_ms),
    }
    if as_base64 and media_type == JSON:
        fields["descriptors"] = base64.b64encode(rows.tobytes())
    return encoded(_text_fields(fields), media_type)


def encoded(fields: dict[str, Any], media_type: str) -> bytes:
    """Encode fields and arrays as JSON or msgpack."""
    if media_type == MSGPACK:
        return bytes(msgpack.packb(fields, default=_packed_array))
    return to_json(fields)


def _text_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()}


def _packed_array(value: Any) -> dict[str, Any]:
    """Return an array for msgpack: its dtype, shape and bytes in C order."""
    array = np.ascontiguousarray(value)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": array.tobytes()}
