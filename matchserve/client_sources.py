"""What the Python client sends: images as files, bytes or arrays, masks, keypoints and options."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matchserve.errors import InvalidParameter
from matchserve.files import read_file

Source: TypeAlias = bytes | str | PathLike[str] | NDArray[Any]
"""Encoded bytes, a path to an image file, or a uint8 or uint16 array, grey or RGB."""


def image_bytes(source: Source) -> bytes:
    """Return an encoded image; arrays are sent as PNG, which loses nothing.

    Raises:
        InvalidParameter: the array is not an image.
        MissingInput: the file cannot be read.
    """
    if isinstance(source, np.ndarray):
        return _png(source)
    return source if isinstance(source, bytes) else read_file(Path(source))


def _png(array: NDArray[Any]) -> bytes:
    from PIL import Image  # needed for arrays only

    is_grey = array.ndim == 2 and array.dtype in (np.uint8, np.uint16)
    is_colour = array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8
    if not (is_grey or is_colour):
        raise InvalidParameter(
            "an image array must be uint8 (H, W) or (H, W, 3), or uint16 (H, W), not "
            f"{array.dtype} {array.shape}"
        )
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def form(images: Mapping[str, bytes], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files and fields of a request for httpx; None means the service's default.

    `mask`, `mask0` and `mask1` are images. `keypoints`, `keypoints0` and `keypoints1` are arrays
    (N, 2) of points, or mappings with `keypoints`, `scales` and `orientations`.
    """
    files, fields = dict(images), {}
    for name, value in options.items():
        if value is None:
            continue
        kind = name.rstrip("01")
        if kind == "mask":
            files[name] = image_bytes(value)
        elif kind == "keypoints":
            files[name] = _keypoints(value)
        elif kind == "ignore":
            fields[name] = json.dumps([np.asarray(shape).tolist() for shape in value])
        else:
            fields[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return {"files": files, "data": fields}


def _keypoints(value: Any) -> bytes:
    arrays = value if isinstance(value, Mapping) else {"keypoints": value}
    buffer = io.BytesIO()
    named: dict[str, Any] = {n: np.asarray(array, np.float32) for n, array in arrays.items()}
    np.savez(buffer, **named)
    return buffer.getvalue()
