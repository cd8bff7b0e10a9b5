"""POST /v1/match, /v1/features, /v1/features/match and /v1/patches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import numpy as np
import pydantic
from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api import openapi
from matchserve.api.answers import (
    MSGPACK,
    NPZ,
    PNG,
    Answer,
    accepted,
    features_answer,
    match_answer,
    patches_answer,
    picture,
)
from matchserve.api.asks import (
    Body,
    FeaturesAsk,
    ImagesAsk,
    check_features,
    describe_ask,
    features_match_ask,
    match_ask,
)
from matchserve.api.body import JSON, MULTIPART, OCTETS, boundary, media_type, received
from matchserve.api.errors import MissingImage, invalid_parameter
from matchserve.api.jsonbody import decode_base64, parse_object
from matchserve.api.schemas import (
    DescribeFields,
    DescribeJson,
    FeaturesAnswer,
    FeaturesMatchFields,
    FeaturesMatchJson,
    MatchAnswer,
    MatchFields,
    MatchJson,
    PatchesAnswer,
    PatchesJson,
    form_schema,
)
from matchserve.api.service import Service
from matchserve.engine.deadline import DeadlineClock
from matchserve.engine.patch_queue import Threads
from matchserve.engine.pipeline import Task
from matchserve.engine.served import ServedModel
from matchserve.errors import InvalidParameter
from matchserve.models.card import ModelCard
from matchserve.types import UInt8

T = TypeVar("T")

# Matching alone holds two sets of descriptors: little memory, and the time of a small image.
FEATURES_MEGAPIXELS = 0.1
_MATCH_TYPES = (JSON, NPZ, MSGPACK, PNG)
_ARRAY_TYPES = (JSON, NPZ, MSGPACK)


def service_of(request: Request) -> Service:
    """The service that this application runs."""
    service: Service = request.app.state.service
    return service


async def check_access(request: Request) -> None:
    """Ask for a key and count the request; a plain function would be sent to a thread."""
    service_of(request).access.check(request)


router = APIRouter(prefix="/v1", dependencies=[Depends(check_access)], tags=["matching"])


@asynccontextmanager
async def _asked(
    request: Request, types: tuple[str, ...], parse: Callable[[Body], T]
) -> AsyncIterator[T]:
    """Receive a body and parse it on a thread; its bytes count as held until the block ends."""
    service = service_of(request)
    with service.admission.arriving(request):
        is_chunked = "transfer-encoding" in request.headers
        if not is_chunked and request.headers.get("content-length", "0") == "0":
            raise MissingImage("the body is empty")
        kind = media_type(request, types)
        mark = boundary(request) if kind == MULTIPART else b""
        async with received(request, service.settings.max_body_bytes, service.budget) as data:
            body = Body(data, kind, mark)
            ask = await service.aside(parse, body)
            del data, body  # what was parsed holds the images; who waits need not hold both
            yield ask


@router.post(
    "/match",
    summary="Match two images",
    responses={**openapi.answers(MatchAnswer, PNG), **openapi.problems()},
    openapi_extra=openapi.body(
        form=form_schema(MatchFields, "image0", "image1"), json=MatchJson.model_json_schema()
    ),
)
async def match(request: Request) -> Response:
    """Keypoints of both images, which of them match, and the geometry that the matches agree on."""
    service, wanted = service_of(request), accepted(request, _MATCH_TYPES)

    def parse(body: Body) -> ImagesAsk[MatchFields] | FeaturesAsk:
        return match_ask(body, service.settings, lambda name: service.model(name).card)

    async with _asked(request, (MULTIPART, JSON), parse) as ask:
        if isinstance(ask, FeaturesAsk):
            return await _match_features(request, ask)
        return await _match_images(request, ask, wanted)


@router.post(
    "/features",
    summary="Describe an image",
    responses={**openapi.answers(FeaturesAnswer), **openapi.problems()},
    openapi_extra=openapi.body(
        form=form_schema(DescribeFields, "image"), json=DescribeJson.model_json_schema()
    ),
)
async def features(request: Request) -> Response:
    """Keypoints of an image with scale, orientation, strength and descriptor."""
    service, wanted = service_of(request), accepted(request, _ARRAY_TYPES)
    async with _asked(
        request, (MULTIPART, JSON), lambda body: describe_ask(body, service.settings)
    ) as ask:
        fields = ask.fields
        model = service.model(fields.model)

        def work(clock: DeadlineClock, threads: Threads) -> Answer:
            options = fields.options(service.settings.working_side)
            found = service.pipeline.features(ask.images[0], Task(model, options, clock, threads))
            timings = clock.timings_ms()
            extra = {"truncated": len(found) >= fields.max_keypoints, "timings_ms": timings}
            as_base64 = fields.descriptors == "base64"
            body = features_answer(found, wanted, as_base64=as_base64, extra=extra)
            service.metrics.keypoints.observe(len(found))
            service.metrics.observe_stages(timings)
            return Answer(body, wanted, timings)

        return (await service.run(request, ask.megapixels, work)).response()


@router.post(
    "/features/match",
    summary="Match two described images",
    responses={**openapi.answers(MatchAnswer), **openapi.problems()},
    openapi_extra=openapi.body(
        form=form_schema(FeaturesMatchFields, "features0", "features1"),
        json=FeaturesMatchJson.model_json_schema(),
    ),
)
async def features_match(request: Request) -> Response:
    """The same as /v1/match, from features that were computed before."""
    service = service_of(request)

    def parse(body: Body) -> FeaturesAsk:
        return features_match_ask(body, service.settings, lambda name: service.model(name).card)

    async with _asked(request, (MULTIPART, JSON), parse) as ask:
        return await _match_features(request, ask)


@router.post(
    "/patches",
    summary="Describe patches",
    responses={**openapi.answers(PatchesAnswer), **openapi.problems()},
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
    """Descriptors of patches that any detector, in any language, has cut."""
    service, wanted = service_of(request), accepted(request, _ARRAY_TYPES)

    def parse(body: Body) -> tuple[ServedModel, UInt8, bool]:
        if body.media_type == OCTETS:
            served = service.model(model)
            return served, as_patches(body.data, served.card, service), False
        try:
            ask = PatchesJson.model_validate(parse_object(body.data), strict=True)
        except pydantic.ValidationError as error:
            raise invalid_parameter(error) from error
        served = service.model(ask.model or model)
        data = decode_base64(ask.patches, "patches", service.settings.max_body_bytes)
        return served, as_patches(data, served.card, service), ask.descriptors == "base64"

    async with _asked(request, (OCTETS, JSON), parse) as (served, array, as_base64):

        def work(clock: DeadlineClock, threads: Threads) -> Answer:
            rows = served.bound(clock, threads).describe_patches(array)
            timings = clock.timings_ms()
            service.metrics.observe_stages(timings)
            body = patches_answer(
                rows, served.card, wanted, as_base64=as_base64, timings_ms=timings
            )
            return Answer(body, wanted, timings)

        return (await service.run(request, FEATURES_MEGAPIXELS, work)).response()


def as_patches(data: bytes, card: ModelCard, service: Service) -> UInt8:
    """Raw grey values as (N, 1, S, S).

    Raises:
        InvalidParameter: they do not divide into patches, or are too many.
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
        InvalidParameter: there are more.
    """
    limit = service.settings.max_patches
    if count > limit:
        raise InvalidParameter(
            f"{count} patches, at most {limit} are allowed", limit=limit, value=count
        )


async def _match_images(request: Request, ask: ImagesAsk[MatchFields], wanted: str) -> Response:
    service, fields = service_of(request), ask.fields
    model = service.model(fields.model)
    images = (ask.images[0], ask.images[1])

    def work(clock: DeadlineClock, threads: Threads) -> Answer:
        options = fields.options(service.settings.working_side)
        result = service.pipeline.match(images, Task(model, options, clock, threads))
        with clock.stage("encode"):
            body = match_answer(
                result, wanted, fields.max_keypoints, lambda: picture(images, result, fields.exif)
            )
        service.metrics.observe_result(result)
        return Answer(body, wanted, clock.timings_ms())

    return (await service.run(request, ask.megapixels, work)).response()


async def _match_features(request: Request, ask: FeaturesAsk) -> Response:
    service, wanted = service_of(request), accepted(request, _ARRAY_TYPES)
    first, second = ask.features
    model = service.model(first.model)
    check_features(ask.features, model.card, service.settings)

    def work(clock: DeadlineClock, threads: Threads) -> Answer:
        task = Task(model, ask.fields.options(), clock, threads)
        result = service.pipeline.match_features(first, second, task)
        body = match_answer(result, wanted, None, lambda: b"")
        service.metrics.observe_result(result)
        return Answer(body, wanted, clock.timings_ms())

    return (await service.run(request, FEATURES_MEGAPIXELS, work)).response()
