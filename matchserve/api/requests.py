"""Parse request bodies; this runs on a thread, because bodies have megabytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from matchserve.api.body import JSON, MULTIPART
from matchserve.api.errors import MissingImage
from matchserve.api.image_extras import EXTRA_FILES, ImageExtras, extras_of, naming
from matchserve.api.jsonbody import decode_base64, parse_object
from matchserve.api.multipart import Form, FormLimits, parse_form
from matchserve.api.schemas import (
    DescribeFields,
    DescribeJson,
    DetectFields,
    FeaturesJson,
    FeaturesMatchFields,
    FeaturesMatchJson,
    MatchFields,
    MatchJson,
    field_limits,
)
from matchserve.api.strict import validated
from matchserve.encoding import features_from_fields, features_from_npz
from matchserve.errors import ImageTooLarge, InvalidParameter
from matchserve.limits import check_keypoint_count, most_rows
from matchserve.models.card import ModelCard
from matchserve.pipeline.view_search import kept_features
from matchserve.settings import BYTES_PER_MEGAPIXEL, Settings
from matchserve.types import Features
from matchserve.vision.decode_cost import decoding_bytes
from matchserve.vision.pixels import inspect

FORMATS = ("JPEG", "PNG", "WEBP")

MAX_FEATURE_BYTES = 1100
"""Memory of one described keypoint: 256 floats and its position, scale, angle and score."""
MAX_DESCRIPTOR_BYTES = 1 << 26

Fields = TypeVar("Fields", bound=DetectFields)
CardOf = Callable[[str], ModelCard]
"""Returns the card of a model by its name, or raises UnknownModel."""


@dataclass(frozen=True, slots=True)
class Body:
    """A received body, its media type and its multipart boundary."""

    data: bytearray
    media_type: str
    boundary: bytes = b""


@dataclass(frozen=True, slots=True)
class ImagesRequest(Generic[Fields]):
    """Encoded images, options, what belongs to each image, and the megapixels in memory."""

    images: tuple[bytes, ...]
    fields: Fields
    extras: tuple[ImageExtras, ...]
    megapixels: float


@dataclass(frozen=True, slots=True)
class FeaturesRequest:
    """Two described images and options."""

    features: tuple[Features, Features]
    fields: FeaturesMatchFields


def parse_match(
    body: Body, settings: Settings, card_of: CardOf
) -> ImagesRequest[MatchFields] | FeaturesRequest:
    """Parse the body of POST /v1/match.

    Raises:
        MatchServeError: the body does not fit the schema, or an image cannot be used.
    """
    if body.media_type == MULTIPART:
        form = _form(body, settings, "image0", "image1")
        fields = validated(MatchFields, form.fields, is_text=True)
        return _images(form.files, ("image0", "image1"), fields, settings)
    parsed = validated(MatchJson, parse_object(body.data), is_text=False)
    if parsed.features0 or parsed.features1:
        return _features_of(parsed, card_of)
    images = {
        name: decode_base64(text, name, settings.max_image_bytes)
        for name in ("image0", "image1")
        if (text := getattr(parsed, name)) is not None
    }
    return _images(images, ("image0", "image1"), parsed, settings)


def parse_describe(body: Body, settings: Settings) -> ImagesRequest[DescribeFields]:
    """Parse the body of POST /v1/features.

    Raises:
        MatchServeError: the body does not fit the schema, or the image cannot be used.
    """
    if body.media_type == MULTIPART:
        form = _form(body, settings, "image")
        fields = validated(DescribeFields, form.fields, is_text=True)
        return _images(form.files, ("image",), fields, settings)
    content = parse_object(body.data)
    if "image" not in content:
        raise MissingImage("image was not sent")
    parsed = validated(DescribeJson, content, is_text=False)
    image = decode_base64(parsed.image, "image", settings.max_image_bytes)
    return _images({"image": image}, ("image",), parsed, settings)


def parse_features_match(
    body: Body, settings: Settings, card_of: CardOf, stored: Callable[[str], Features]
) -> FeaturesRequest:
    """Parse the body of POST /v1/features/match; `stored` returns features by their id.

    Raises:
        MatchServeError: the body does not fit the schema, or there are no such features.
    """
    files: dict[str, bytes] = {}
    fields: FeaturesMatchFields
    if body.media_type == JSON:
        fields = validated(FeaturesMatchJson, parse_object(body.data), is_text=False)
    else:
        form = _form(body, settings, "features0", "features1")
        fields, files = validated(FeaturesMatchFields, form.fields, is_text=True), form.files
    first, second = (
        _features_side(fields, files, name, settings, card_of, stored)
        for name in ("features0", "features1")
    )
    return FeaturesRequest((first, second), fields)


def _features_side(
    fields: FeaturesMatchFields,
    files: dict[str, bytes],
    name: str,
    settings: Settings,
    card_of: CardOf,
    stored: Callable[[str], Features],
) -> Features:
    """Return the features of one image, which were sent or are stored."""
    sent: FeaturesJson | None = getattr(fields, name, None)
    features_id: str | None = getattr(fields, f"{name}_id")
    given = [source for source in (sent, files.get(name), features_id) if source is not None]
    if len(given) != 1:
        count = "was not sent" if not given else "was sent twice"
        raise InvalidParameter(f"{name} {count}: send {name} or {name}_id")
    with naming(name):
        if features_id is not None:
            return stored(features_id)
        if sent is not None:
            return _features(sent, card_of)
        return features_from_npz(files[name], settings.max_image_bytes)


def parse_features(body: Body, settings: Settings, card_of: CardOf) -> Features:
    """Parse a body that holds the features of one image: JSON, or a form with an npz file.

    Raises:
        MatchServeError: the body does not fit the schema.
    """
    if body.media_type == JSON:
        return _features(validated(FeaturesJson, parse_object(body.data), is_text=False), card_of)
    form = _form(body, settings, "features")
    if "features" not in form.files or form.fields:
        raise InvalidParameter("send one file, features")
    return features_from_npz(form.files["features"], settings.max_image_bytes)


def check_features(features: tuple[Features, ...], card: ModelCard, settings: Settings) -> None:
    """Check that a model can have made these features, and that they are within the limits.

    Raises:
        InvalidParameter: they contradict the model's card or exceed a limit.
    """
    for side in features:
        check_keypoint_count(
            len(side), most_rows(settings.max_keypoints), "the number of keypoints with orientation"
        )
        if side.kind != card.kind or side.descriptors.shape[1] != card.row_length:
            raise InvalidParameter(
                f"descriptors of {card.name} are {card.kind} rows of {card.row_length}"
            )
        if min(side.size) < 1 or max(side.size) > settings.max_side:
            raise InvalidParameter(f"image_size is not in 1..{settings.max_side}")


def _features_of(parsed: MatchJson, card_of: CardOf) -> FeaturesRequest:
    first, second = parsed.features0, parsed.features1
    if first is None or second is None or parsed.image0 or parsed.image1:
        raise InvalidParameter("send features0 and features1, or image0 and image1")
    fields = FeaturesMatchFields(
        ratio=parsed.ratio,
        verify=parsed.verify,
        threshold_px=parsed.threshold_px,
        max_distance=parsed.max_distance,
        min_confidence=parsed.min_confidence,
        camera=parsed.camera,
        camera0=parsed.camera0,
        camera1=parsed.camera1,
    )
    return FeaturesRequest((_features(first, card_of), _features(second, card_of)), fields)


def _features(sent: FeaturesJson, card_of: CardOf) -> Features:
    """Return arrays; the model's card says whether rows are floats or packed bits."""
    card = card_of(sent.model)
    dtype = np.dtype("<f4" if card.kind == "float" else "u1")
    fields: dict[str, Any] = {k: v for k, v in sent.model_dump().items() if v is not None}
    count = len(sent.keypoints)
    if count == 0 and len(sent.descriptors) == 0:  # a flat image has none
        fields["keypoints"] = np.zeros((0, 2), np.float32)
        fields["descriptors"] = np.zeros((0, card.row_length), dtype)
    elif isinstance(sent.descriptors, str):
        raw = decode_base64(sent.descriptors, "descriptors", MAX_DESCRIPTOR_BYTES)
        if count == 0 or len(raw) % (count * dtype.itemsize):
            raise InvalidParameter("descriptors do not divide into one row per keypoint")
        fields["descriptors"] = np.frombuffer(raw, dtype).reshape(count, -1)
    else:
        fields["descriptors"] = _as_rows(sent.descriptors, dtype)
    return features_from_fields(fields)


def _as_rows(rows: list[list[float]], dtype: np.dtype[Any]) -> NDArray[Any]:
    if len({len(row) for row in rows}) != 1:
        raise InvalidParameter("descriptors are not rows of one length")
    array = np.asarray(rows, np.float64)
    is_byte = dtype != np.uint8 or ((array % 1 == 0) & (array >= 0) & (array <= 255)).all()
    if not is_byte or not (np.abs(array) <= np.finfo(np.float32).max).all():
        raise InvalidParameter("descriptors are out of range")
    return array.astype(dtype)


def _form(body: Body, settings: Settings, *files: str) -> Form:
    """Parse a form with these files, and with what may be sent with each image."""
    extra = [kind + name.removeprefix("image") for name in files if name.startswith("image")
             for kind in EXTRA_FILES]  # fmt: skip
    limits = FormLimits((*files, *extra), settings.max_image_bytes)
    return parse_form(body.data, body.boundary, limits)


def _images(
    files: dict[str, bytes],
    names: tuple[str, ...],
    fields: Fields,
    settings: Settings,
) -> ImagesRequest[Fields]:
    for name in names:
        if name not in files:
            raise MissingImage(f"{name} was not sent")
    check_limits(fields, settings)
    images = tuple(files[name] for name in names)
    extras = tuple(extras_of(fields, files, name, settings) for name in names)
    megapixels = 0.0
    for image, extra in zip(images, extras, strict=True):
        with naming(extra.name):
            megapixels += image_megapixels(image, fields, settings)
        with naming(f"mask of {extra.name}"):
            megapixels += _mask_megapixels(extra.mask, settings)
    if isinstance(fields, MatchFields) and fields.views != 1:
        megapixels += _views_megapixels(fields, settings)
    return ImagesRequest(images, fields, extras, megapixels)


def _views_megapixels(fields: MatchFields, settings: Settings) -> float:
    """Return the memory of the features that are kept of synthetic views, as megapixels.

    The views themselves have no more pixels than the images, and exist one after the other.
    """
    keypoints = fields.options(settings).detect.max_keypoints
    return kept_features() * keypoints * MAX_FEATURE_BYTES / BYTES_PER_MEGAPIXEL


def check_limits(fields: DetectFields, settings: Settings) -> None:
    """Check the fields that settings limit.

    Raises:
        InvalidParameter: a field exceeds its limit.
    """
    for name, limits in field_limits(settings).items():
        value = getattr(fields, name)
        if value is not None and value > limits["maximum"]:
            raise InvalidParameter(
                f"{name} is {value}, at most {limits['maximum']} is allowed",
                limit=limits["maximum"],
                value=value,
            )


def image_megapixels(image: bytes, fields: DetectFields, settings: Settings) -> float:
    """Return the megapixels that decide the memory: of the working copy or of the decoder.

    Raises:
        ImageError: the image cannot be used, or decoding it would take too much memory.
    """
    (width, height), decoding = decoding_megapixels(image, settings)
    side = fields.options(settings).max_side
    scale = min(1.0, side / max(width, height)) if side else 1.0
    return max(width * height * scale * scale / 1e6, decoding)


def _mask_megapixels(mask: bytes, settings: Settings) -> float:
    """Return the megapixels that decoding a mask counts for."""
    return decoding_megapixels(mask, settings)[1] if mask else 0.0


def decoding_megapixels(image: bytes, settings: Settings) -> tuple[tuple[int, int], float]:
    """Return the size of an image, and the megapixels that decoding it counts for.

    Raises:
        ImageError: the image cannot be used, or decoding it would take too much memory.
    """
    name, size = inspect(image, formats=FORMATS, limits=settings.limits())
    needed, limit = decoding_bytes(image, name, size), settings.max_decode_bytes
    if needed > limit:
        allowed = size[0] * size[1] * limit / needed / 1e6
        raise ImageTooLarge(
            f"decoding this {name} of {size[0]}x{size[1]} takes {needed // 1_000_000} MB, at most "
            f"{limit // 1_000_000} MB are allowed: reduce it to {allowed:.1f} megapixels, or send "
            "a JPEG that is not progressive",
            limit=limit,
            value=needed,
        )
    return size, needed / BYTES_PER_MEGAPIXEL
