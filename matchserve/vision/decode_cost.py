"""Estimate how much memory decoding an image takes, from its header alone."""

from __future__ import annotations

from matchserve.vision.headers import Encoded, jpeg_frame

# Measured with images of 49 megapixels: the pixels as Pillow holds them, what its decoder holds
# besides, and the grey copy.
_BYTES_PER_PIXEL = {"WEBP": 16.0, "TIFF": 10.0}
_COLOUR_PNG, _DEEP_GREY_PNG, _GREY_PNG = 5.5, 3.5, 2.1
_GREY_JPEG, _CMYK_JPEG = 2.1, 5.1
# A progressive decoder holds the coefficients of all components, of 2 bytes each.
_COEFFICIENT_BYTES = 2.0


def decoding_bytes(data: Encoded, image_format: str, size: tuple[int, int]) -> int:
    """Return the memory that decoding an image to grey takes, above that of the encoded image.

    `image_format` and `size` are what `matchserve.vision.pixels.inspect` returned.
    """
    return int(size[0] * size[1] * _bytes_per_pixel(data, image_format))


def _bytes_per_pixel(data: Encoded, image_format: str) -> float:
    if image_format == "PNG":
        depth, colour = data[24], data[25]  # of the header chunk
        if colour not in (0, 3):  # neither grey nor a palette
            return _COLOUR_PNG
        return _DEEP_GREY_PNG if depth == 16 else _GREY_PNG
    if image_format != "JPEG":
        return _BYTES_PER_PIXEL[image_format]
    frame = jpeg_frame(data)
    cost = _CMYK_JPEG if len(frame.blocks) > 3 else _GREY_JPEG
    if frame.is_progressive:
        largest = max(frame.blocks, default=1)
        cost += _COEFFICIENT_BYTES * sum(frame.blocks) / max(1, largest)
    return cost
