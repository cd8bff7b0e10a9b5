"""JSON bodies, and the base64 in them."""

from __future__ import annotations

import binascii
import re
from typing import Any

import numpy as np
import orjson

from matchserve.api.body import too_large
from matchserve.api.errors import InvalidJson
from matchserve.errors import InvalidParameter, PayloadTooLarge

# A parser holds the interpreter's lock for the whole body: 8 MB of `[],[],` stop every other
# thread for a second and take gigabytes. Base64 is one string, so images are not affected.
MAX_STRUCTURE_BYTES = 8_000_000
"""Maximum size of JSON outside of strings."""
MAX_VALUES = 600_000
"""Maximum number of values; 2048 keypoints with 128 floats each, twice, are 540,000."""
MAX_CONTAINERS = 50_000
"""Maximum number of arrays and objects."""
MAX_STRINGS = 10_000
"""Maximum number of strings, including names."""
MAX_STRING_BYTES = 30_000_000
"""Maximum size of a string; 20 MB are 27 MB of base64."""

_DATA_URL = "data:"
_BASE64_BLOCK = 1 << 20
_NOT_A_NUMBER = re.compile(rb"NaN|-?Infinity")


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object; if a key is given twice, the last value is used.

    Raises:
        InvalidJson: the body is not JSON.
        InvalidParameter: the body is not an object, or holds NaN or an infinity.
        PayloadTooLarge: there is too much JSON outside of strings.
    """
    structure = _outside_strings(body)
    _check_structure(structure)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if found := _NOT_A_NUMBER.search(structure):
            name = found[0].decode()
            raise InvalidParameter(f"{name} is not a number that can be used") from error
        raise InvalidJson(f"the body is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise InvalidParameter("the body must be a JSON object")
    return value


def decode_base64(text: str, what: str, max_bytes: int) -> bytes:
    """Decode base64, or a data URL that holds base64.

    Raises:
        InvalidParameter: the text is neither.
        PayloadTooLarge: the decoded data has more than `max_bytes`.
    """
    if text[: len(_DATA_URL)].lower() == _DATA_URL:
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidParameter(f"{what} is a data URL without base64")
    if 3 * (len(text) // 4) > max_bytes + 3:
        raise too_large(3 * (len(text) // 4), max_bytes)
    try:
        return b"".join(_decode_block(text, start) for start in range(0, len(text), _BASE64_BLOCK))
    except (binascii.Error, ValueError) as error:
        raise InvalidParameter(f"{what} is not base64") from error


def _decode_block(text: str, start: int) -> bytes:
    """Decode a part of base64; in parts, because decoding holds the interpreter's lock."""
    block = text[start : start + _BASE64_BLOCK]
    if block.endswith("=") and start + _BASE64_BLOCK < len(text):
        raise ValueError("padding before the end")
    return binascii.a2b_base64(block, strict_mode=True)


def _outside_strings(body: bytes | bytearray) -> bytes:
    """Return the JSON without the contents of its strings."""
    # NumPy releases the interpreter's lock, unlike regular expressions.
    is_quote = np.frombuffer(body, np.uint8) == ord('"')
    if np.count_nonzero(is_quote) > 2 * MAX_STRINGS:
        raise InvalidJson(f"the body has more than {MAX_STRINGS} strings")
    quotes = [at for at in np.flatnonzero(is_quote).tolist() if not _is_escaped(body, at)]
    ends = [0, *(at + 1 for at in quotes[1::2])]
    starts = [*quotes[::2], len(body)]
    longest = max((end - start for start, end in zip(starts, ends[1:], strict=False)), default=0)
    if longest > MAX_STRING_BYTES:
        raise too_large(longest, MAX_STRING_BYTES)
    view = memoryview(body)
    parts = [view[end:start] for end, start in zip(ends, starts, strict=False)]
    if sum(map(len, parts)) > MAX_STRUCTURE_BYTES:
        raise _too_much(
            sum(map(len, parts)), MAX_STRUCTURE_BYTES, "bytes of JSON outside of strings"
        )
    return b'""'.join(parts)


def _is_escaped(body: bytes | bytearray, at: int) -> bool:
    """Return whether an odd number of backslashes precedes a quote."""
    before = at - 1
    while before >= 0 and body[before] == ord("\\"):
        before -= 1
        if at - before > 1000:
            raise InvalidJson("the body has too many backslashes in a row")
    return (at - before) % 2 == 0


def _check_structure(structure: bytes) -> None:
    if structure.count(b"[") + structure.count(b"{") > MAX_CONTAINERS:
        raise InvalidJson(f"the body has more than {MAX_CONTAINERS} arrays and objects")
    values = structure.count(b",") + 1
    if values > MAX_VALUES:
        raise _too_much(values, MAX_VALUES, "JSON values")


def _too_much(value: int, limit: int, what: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{value} {what}, at most {limit} are allowed; send arrays as base64, npz or binary",
        limit=limit,
        value=value,
    )
