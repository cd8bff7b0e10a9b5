"""Messages between the service and a decoder process: one JSON line each.

Encoded images and pixels do not travel in messages but in a file in memory that both processes
share: the service writes the encoded image to it, and the decoder replaces it by the pixels.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from matchserve.errors import (
    CorruptImage,
    EmptyImage,
    ImageError,
    ImageTooLarge,
    ImageTooSmall,
    UnsupportedFormat,
)
from matchserve.limits import Limits
from matchserve.vision.pixels import DecodeOptions

READY = b'{"ready":true}\n'
MAX_MESSAGE_BYTES = 65_536

_ERRORS: dict[str, type[ImageError]] = {
    kind.code: kind
    for kind in (CorruptImage, EmptyImage, ImageTooLarge, ImageTooSmall, UnsupportedFormat)
}


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """The number of bytes in the shared file, and how to decode them."""

    size: int
    options: DecodeOptions

    def to_line(self) -> bytes:
        """Return the message."""
        return json.dumps({"size": self.size, **asdict(self.options)}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> DecodeRequest:
        """Parse the message."""
        fields = json.loads(line)
        size = fields.pop("size")
        limits = Limits(**fields.pop("limits"))
        formats = tuple(fields.pop("formats"))
        return cls(size, DecodeOptions(limits=limits, formats=formats, **fields))


def shape_line(shape: tuple[int, ...]) -> bytes:
    """Return the message of a decoder that has written pixels of this shape."""
    return json.dumps({"shape": shape}).encode() + b"\n"


def error_line(error: ImageError) -> bytes:
    """Return the message of a decoder that could not decode."""
    fields = {"error": error.code, "message": error.message[:1000]}
    return json.dumps({**fields, "limit": error.limit, "value": error.value}).encode() + b"\n"


def parse_reply(line: bytes) -> tuple[int, ...]:
    """Return the shape of the pixels that a decoder has written.

    Raises:
        ImageError: the decoder reported this error, or its message is not valid.
    """
    try:
        fields: dict[str, Any] = json.loads(line)
        if "shape" in fields:
            return tuple(int(side) for side in fields["shape"])
        kind = _ERRORS[fields["error"]]
        message, limit, value = str(fields["message"]), fields["limit"], fields["value"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptImage("the image broke its decoder") from error
    raise kind(message, limit=limit, value=value)
