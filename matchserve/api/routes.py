"""POST /v1/match, /v1/features, /v1/features/match and /v1/patches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
import pydantic
from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api import openapi
from matchserve.api.body import JSON, MULTIPART, OCTETS, boundary, media_type
from matchserve.api.errors import MissingImage, invalid_parameter
from matchserve.api.image_extras import MASK_SIDE
from matchserve.api.jsonbody import decode_base64, parse_object
from matchserve.api.requests import (
    Body,
    FeaturesRequest,
    ImagesRequest,
    check_features,
    parse_describe,
    parse_features_match,
    parse_match,
)
from matchserve.api.response_schemas import (
    FeaturesResponse,
    MatchResponse,
    PatchesResponse,
)
from matchserve.api.responses import (
    ARRAY_TYPES,
    MSGPACK,
    NPZ,
    PNG,
    EncodedResult,
    features_body,
    match_body,
    negotiate,
    patches_body,
    picture,
)
from matchserve.api.schemas import (
    DescribeFields,
    DescribeJson,
    FeaturesMatchFields,
    FeaturesMatchJson,
    MatchFields,
    MatchJson,
    PatchesJson,
    form_schema,
)
from matchserve.api.service import Service
from matchserve.clock import Call
from matchserve.engine.served_models import ServedModel
from matchserve.errors import InvalidParameter
from matchserve.models.card import ModelCard
from matchserve.pipeline.inputs import ImageInput
from matchserve.types import UInt8

T = TypeVar("T")

# Matching without images needs little memory, and about the time of a small image.
FEATURES_MEGAPIXELS = 0.1
_MATCH_TYPES = (JSON, NPZ, MSGPACK, PNG)


def service_of(request: Request) -> Service:
    """Return the service of this application."""
    service: Service = request.app.state.service
    return service


async def check_access(request: Request) -> None:
    """Check the API key and the rate limit; async, because FastAPI runs others on a thread."""
    service_of(request).access.check(request)


router = APIRouter(prefix="/v1", dependencies=[Depends(check_access)], tags=["matching"])


@asynccontextmanager
async def parsed_body(
    request: Request, types: tuple[str, ...], parse: Callable[[Body], T]
) -> AsyncIterator[T]:
    """Receive a body and parse it on a thread; its bytes count as held until the block ends."""
    service = service_of(request)
    service.start_deadline(request)
    with service.admission.arriving(request):
        is_chunked = "transfer-encoding" in request.headers
        if not is_chunked and request.headers.get("content-length", "0") == "0":
            raise MissingImage("the body is empty")
        kind = media_type(request, types)
        mark = boundary(request) if kind == MULTIPART else b""
        async with service.received(request, service.settings.max_body_bytes) as data:
            body = Body(data, kind, mark)
            parsed = await service.parse(request, parse, body)
            del data, body  # the parsed request holds the images; do not keep both while it waits
            yield parsed


@router.post(
    "/match",
    summary="Match two images",
    responses={**openapi.success(MatchResponse, PNG), **openapi.problems()},
    openapi_extra=openapi.body(
        form=form_schema(
            *(MatchFields, "image0", "image1"),
            optional=("mask0", "mask1", "keypoints0", "keypoints1"),
        ),
        json=MatchJson.model_json_schema(),
    ),
)
async def match(request: Request) -> Response:
    """Return the keypoints of both images, their matches, and the geometry of the matches."""
    service, wanted = service_of(request), negotiate(request, _MATCH_TYPES)

    def parse(body: Body) -> ImagesRequest[MatchFields] | FeaturesRequest:
        return parse_match(body, service.settings, lambda name: service.model(name).card)

    async with parsed_body(request, (MULTIPART, JSON), parse) as parsed:
        if isinstance(parsed, FeaturesRequest):
            return await _match_features(request, parsed)
        return await _match_images(request, parsed, wanted)


@router.post(
    "/features",
    summary="Describe an image",
    responses={**openapi.success(FeaturesResponse), **openapi.problems()},
    openapi_extra=openapi.body(
        form=form_schema(DescribeFields, "image", optional=("mask", "keypoints")),
        json=DescribeJson.model_json_schema(),
    ),
)
async def features(request: Request) -> Response:
    """Return the keypoints of an image with scale, orientation, score and descriptor."""
    service, wanted = service_of(request), negotiate(request, ARRAY_TYPES)
    async with parsed_body(
        request, (MULTIPART, JSON), lambda body: parse_describe(body, service.settings)
    ) as parsed:
        fields = parsed.fields
        model, owner = service.model(fields.model), service.access.owner(request)

        def work(call: Call) -> EncodedResult:
            options = fields.options(service.settings)
            described = model.matcher.features(_inputs(parsed, service, call)[0], options, call)
            timings = call.clock.timings_ms()
            extra: dict[str, Any] = {"timings_ms": timings}
            if fields.store:
                extra["id"] = service.store.put(owner, described)
            body = features_body(described, wanted, encoding=fields.descriptors, extra=extra)
            service.metrics.keypoints.observe(len(described))
            service.metrics.observe_stages(timings)
            return EncodedResult(body, wanted, timings)

        return (await service.run(request, parsed.megapixels, work)).response()


@router.post(
    "/features/match",
    summary="Match two described images",
    responses={**openapi.success(MatchResponse), **openapi.problems()},
    openapi_extra=openapi.body(
        form=form_schema(FeaturesMatchFields, optional=("features0", "features1")),
        json=FeaturesMatchJson.model_json_schema(),
    ),
)
async def features_match(request: Request) -> Response:
    """Match like /v1/match, with features that were computed before: sent, or stored by id."""
    service = service_of(request)
    stored = partial(service.store.get, service.access.owner(request))

    def parse(body: Body) -> FeaturesRequest:
        cards = lambda name: service.model(name).card  # noqa: E731
        return parse_features_match(body, service.settings, cards, stored)

    async with parsed_body(request, (MULTIPART, JSON), parse) as parsed:
        return await _match_features(request, parsed)


@router.post(
    "/patches",
    summary="Describe patches",
    responses={**openapi.success(PatchesResponse), **openapi.problems()},
    openapi_extra=openapi.body(
        octets={
            "type": "string",
            "format": "binary",
            "description": "N x S x S grey values, one byte each; S is the model's patch size.",
        },
        json=PatchesJson.model_json_schema(),
    ),
)
async def patches(request: Request, model: Annotated[str, Query(max_length=256)] = "") -> Response:
    """Return the descriptors of patches that were cut by the client."""
    service, wanted = service_of(request), negotiate(request, ARRAY_TYPES)

    def parse(body: Body) -> tuple[ServedModel, UInt8, bool]:
        if body.media_type == OCTETS:
            served = service.model(model)
            return served, as_patches(body.data, served.card, service), False
        try:
            parsed = PatchesJson.model_validate(parse_object(body.data), strict=True)
        except pydantic.ValidationError as error:
            raise invalid_parameter(error) from error
        served = service.model(parsed.model or model)
        data = decode_base64(parsed.patches, "patches", service.settings.max_body_bytes)
        return served, as_patches(data, served.card, service), parsed.descriptors == "base64"

    async with parsed_body(request, (OCTETS, JSON), parse) as (served, array, as_base64):

        def work(call: Call) -> EncodedResult:
            rows = served.batched.describe_patches(array, call)
            timings = call.clock.timings_ms()
            service.metrics.observe_stages(timings)
            body = patches_body(rows, served.card, wanted, as_base64=as_base64, timings_ms=timings)
            return EncodedResult(body, wanted, timings)

        return (await service.run(request, FEATURES_MEGAPIXELS, work)).response()


def as_patches(data: bytes | bytearray, card: ModelCard, service: Service) -> UInt8:
    """Return raw grey values as an array (N, 1, S, S).

    Raises:
        InvalidParameter: the bytes are not a whole number of patches, or too many.
    """
    size = card.patch.size
    count, rest = divmod(len(data), size * size)
    if rest or count == 0:
        raise InvalidParameter(
            f"{len(data)} bytes are not one or more patches of {size}x{size} bytes"
        )
    check_patch_count(count, service)
    return np.frombuffer(data, np.uint8).reshape(count, 1, size, size)


def check_patch_count(count: int, service: Service) -> None:
    """Refuse more patches than one request may describe.

    Raises:
        InvalidParameter: there are too many.
    """
    limit = service.settings.max_patches
    if count > limit:
        raise InvalidParameter(
            f"{count} patches, at most {limit} are allowed", limit=limit, value=count
        )


def _inputs(parsed: ImagesRequest[Any], service: Service, call: Call) -> tuple[ImageInput, ...]:
    """Return the images of a request with their masks and keypoints."""

    def decode_mask(mask: bytes) -> UInt8:
        return service.decoders.decode(
            mask, exif=parsed.fields.exif, max_side=MASK_SIDE, deadline=call.clock.deadline
        ).grey

    pairs = zip(parsed.images, parsed.extras, strict=True)
    return tuple(extras.input(image, decode_mask) for image, extras in pairs)


async def _match_images(
    request: Request, parsed: ImagesRequest[MatchFields], wanted: str
) -> Response:
    service, fields = service_of(request), parsed.fields
    model = service.model(fields.model)
    images = (parsed.images[0], parsed.images[1])

    def work(call: Call) -> EncodedResult:
        def decode_colour(image: bytes, max_side: int) -> UInt8:
            return service.decoders.decode_colour(
                image, exif=fields.exif, max_side=max_side, deadline=call.clock.deadline
            )

        options = fields.options(service.settings)
        first, second = _inputs(parsed, service, call)
        result = model.matcher.match(first, second, options, call)
        with call.clock.stage("encode"):
            draw = partial(picture, images, result, decode_colour)
            body = match_body(result, wanted, draw, details=fields.details)
        service.metrics.observe_result(result)
        return EncodedResult(body, wanted, call.clock.timings_ms())

    return (await service.run(request, parsed.megapixels, work)).response()


async def _match_features(request: Request, parsed: FeaturesRequest) -> Response:
    service, wanted = service_of(request), negotiate(request, ARRAY_TYPES)
    first, second = parsed.features
    model = service.model(first.model)
    check_features(parsed.features, model.card, service.settings)

    def work(call: Call) -> EncodedResult:
        result = model.matcher.match_features(first, second, parsed.fields.options(), call)
        body = match_body(result, wanted, lambda: b"")
        service.metrics.observe_result(result)
        return EncodedResult(body, wanted, call.clock.timings_ms())

    return (await service.run(request, FEATURES_MEGAPIXELS, work)).response()
