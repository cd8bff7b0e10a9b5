"""JSON bodies, and the base64 in them."""

from __future__ import annotations

import binascii
import json
from typing import Any, NoReturn

import orjson

from matchserve.api.body import too_large
from matchserve.api.errors import InvalidJson
from matchserve.errors import InvalidParameter

_DATA_URL = "data:"


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; of keys given twice the last one holds.

    Raises:
        InvalidJson: it is not JSON.
        InvalidParameter: it is something else than an object, or holds NaN or an infinity.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        _refuse_not_a_number(body)
        raise InvalidJson(f"the body is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise InvalidParameter("the body must be a JSON object")
    return value


def decode_base64(text: str, what: str, max_bytes: int) -> bytes:
    """Bytes of base64, or of a data URL that holds base64.

    Raises:
        InvalidParameter: it is neither.
        PayloadTooLarge: more than `max_bytes` come out.
    """
    if text[: len(_DATA_URL)].lower() == _DATA_URL:
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidParameter(f"{what} is a data URL without base64")
    if 3 * (len(text) // 4) > max_bytes + 3:
        raise too_large(3 * (len(text) // 4), max_bytes)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidParameter(f"{what} is not base64") from error


def _refuse_not_a_number(body: bytes) -> None:
    """NaN and Infinity are not JSON, but every other parser lets them in: say so by name."""

    def refuse(name: str) -> NoReturn:
        raise InvalidParameter(f"{name} is not a number that can be used")

    try:
        json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        return
