"""POST /v1/match/batch: several pairs of images in one request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack
import orjson
from fastapi import APIRouter, Depends
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api import openapi
from matchserve.api.body import JSON, MULTIPART
from matchserve.api.errors import MissingImage, problem_fields
from matchserve.api.image_extras import named
from matchserve.api.jsonbody import decode_base64, parse_object
from matchserve.api.multipart import FormLimits, parse_form
from matchserve.api.requests import Body, check_limits, image_megapixels
from matchserve.api.response_schemas import BatchResponse
from matchserve.api.responses import MSGPACK, encoded, negotiate
from matchserve.api.routes import check_access, parsed_body, service_of
from matchserve.api.schemas import (
    PairFields,
)
from matchserve.api.service import Service
from matchserve.api.strict import Base64, parse_text, validated
from matchserve.clock import Call, ClientDeparted
from matchserve.encoding import result_fields
from matchserve.errors import CapacityError, DeadlineExceeded, InvalidParameter, MatchServeError
from matchserve.limits import MAX_BATCH_IMAGES
from matchserve.options import Options
from matchserve.settings import Settings

router = APIRouter(prefix="/v1", dependencies=[Depends(check_access)], tags=["matching"])
Pair = tuple[int, int]


IndexPair = Annotated[list[int], Field(min_length=2, max_length=2, fail_fast=True)]


class BatchFields(PairFields):
    """Which images are matched with which, and the options of all pairs."""

    pairs: Annotated[
        Annotated[list[IndexPair], Field(max_length=4096, fail_fast=True)] | None,
        BeforeValidator(parse_text),
        Field(
            description="Pairs of image numbers, such as [[0, 1], [0, 2]]; every two images if "
            "unset. JSON in a form field."
        ),
    ] = None


class BatchJson(BatchFields):
    """Images, pairs and options."""

    images: Annotated[list[Base64], Field(max_length=MAX_BATCH_IMAGES, fail_fast=True)]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Encoded images, their megapixels or what is wrong with them, the pairs, and options."""

    images: tuple[bytes, ...]
    megapixels: tuple[float | MatchServeError, ...]
    pairs: tuple[Pair, ...]
    fields: BatchFields
    options: Options


def _form_schema() -> dict[str, Any]:
    schema = BatchFields.model_json_schema()
    image = {"type": "string", "format": "binary", "description": "JPEG, PNG or WebP."}
    schema["properties"] |= {"image0": image, "image1": image, "image2": image}
    schema["required"] = ["image0", "image1"]
    return schema


@router.post(
    "/match/batch",
    summary="Match several pairs of images",
    responses={
        200: {
            "model": BatchResponse,
            "description": "Done; each pair has its result or its error.",
            "content": {MSGPACK: {"schema": {"type": "string", "format": "binary"}}},
        },
        **openapi.problems(),
    },
    openapi_extra=openapi.body(form=_form_schema(), json=BatchJson.model_json_schema()),
)
async def match_batch(request: Request) -> Response:
    """Match pairs of images that are sent once: image0, image1, ... in a form, or `images`.

    The pairs run one after the other within the deadline of the request, and each waits for its
    turn as a request of its own would. A pair that fails has an error; the others are returned.
    Each pair counts as a request for the rate limit.
    """
    service, wanted = service_of(request), negotiate(request, (JSON, MSGPACK))

    def parse(body: Body) -> BatchRequest:
        return parse_batch(body, service.settings)

    async with parsed_body(request, (MULTIPART, JSON), parse) as batch:
        service.access.charge(request, len(batch.pairs) - 1)
        start = time.perf_counter()
        items: list[bytes] = []
        errors: list[MatchServeError] = []
        for pair in batch.pairs:
            try:
                if errors and isinstance(errors[-1], DeadlineExceeded):
                    raise DeadlineExceeded(errors[-1].message, limit=errors[-1].limit)
                items.append(await _matched(request, batch, pair, wanted))
            except ClientDeparted:
                raise
            except MatchServeError as error:
                errors.append(error)
                problem = problem_fields(error, request.state.request_id)
                items.append(encoded({"pair": pair, "result": None, "error": problem}, wanted))
        if len(errors) == len(items) and all(isinstance(e, CapacityError) for e in errors):
            raise errors[0]  # nothing was done: try again later
        total_ms = round(1e3 * (time.perf_counter() - start), 3)
        return Response(_joined(items, {"total": total_ms}, wanted), media_type=wanted)


async def _matched(request: Request, batch: BatchRequest, pair: Pair, wanted: str) -> bytes:
    """Match one pair in a slot of its own, and encode its item."""
    service: Service = service_of(request)
    megapixels = 0.0
    for index in pair:
        size = batch.megapixels[index]
        if isinstance(size, MatchServeError):
            raise size
        megapixels += size
    model = service.model(batch.fields.model)

    def work(call: Call) -> bytes:
        image0, image1 = (batch.images[index] for index in pair)
        result = model.matcher.match(image0, image1, batch.options, call)
        service.metrics.observe_result(result)
        fields = result_fields(result, details=batch.fields.details)
        return encoded({"pair": pair, "result": fields, "error": None}, wanted)

    return await service.run(request, megapixels, work)


def parse_batch(body: Body, settings: Settings) -> BatchRequest:
    """Parse the body of POST /v1/match/batch.

    Raises:
        MatchServeError: the body does not fit the schema, or there are too many images or pairs.
    """
    if body.media_type == MULTIPART:
        names = tuple(f"image{number}" for number in range(settings.max_batch_images))
        form = parse_form(body.data, body.boundary, FormLimits(names, settings.max_image_bytes))
        fields = validated(BatchFields, form.fields, is_text=True)
        count = len(form.files)
        if set(form.files) != set(names[:count]):
            raise MissingImage("images must be sent as image0, image1, ... without a gap")
        images = [form.files[name] for name in names[:count]]
    else:
        parsed = validated(BatchJson, parse_object(body.data), is_text=False)
        check_count(len(parsed.images), settings.max_batch_images, "images")
        fields = parsed
        images = [
            decode_base64(text, f"images.{number}", settings.max_image_bytes)
            for number, text in enumerate(parsed.images)
        ]
    if len(images) < 2:
        raise MissingImage("send at least two images")
    check_limits(fields, settings)
    # Wrong options are an error of the request, not of each pair.
    options = fields.options(settings)
    pairs = _pairs(fields.pairs, len(images), settings)
    sizes = [_size(image, n, fields, settings) for n, image in enumerate(images)]
    return BatchRequest(tuple(images), tuple(sizes), pairs, fields, options)


def _size(
    image: bytes, number: int, fields: BatchFields, settings: Settings
) -> float | MatchServeError:
    """Return the megapixels of an image, or the error of all pairs that it is part of."""
    try:
        return image_megapixels(image, fields, settings)
    except MatchServeError as error:
        return named(error, f"image{number}")


def _pairs(
    sent: Sequence[Sequence[int]] | None, count: int, settings: Settings
) -> tuple[Pair, ...]:
    if sent is None:
        sent = list(itertools.combinations(range(count), 2))
    check_count(len(sent), settings.max_batch_pairs, "pairs")
    if not sent:
        raise InvalidParameter("pairs: there are none")
    for first, second in sent:
        if not (0 <= first < count and 0 <= second < count) or first == second:
            raise InvalidParameter(
                f"pairs: [{first}, {second}] are not the numbers of two of {count} images"
            )
    return tuple((first, second) for first, second in sent)


def check_count(count: int, limit: int, what: str) -> None:
    """Refuse more images or pairs than a batch may have.

    Raises:
        InvalidParameter: there are too many.
    """
    if count > limit:
        raise InvalidParameter(
            f"{count} {what}, at most {limit} are allowed in a batch", limit=limit, value=count
        )


def _joined(items: list[bytes], timings_ms: dict[str, float], media_type: str) -> bytes:
    """Return the whole body from encoded items."""
    if media_type == JSON:
        return b'{"results":[%s],"timings_ms":%s}' % (b",".join(items), orjson.dumps(timings_ms))
    packer = msgpack.Packer(autoreset=False)
    packer.pack_map_header(2)
    packer.pack("timings_ms")
    packer.pack(timings_ms)
    packer.pack("results")
    packer.pack_array_header(len(items))
    return bytes(packer.bytes()) + b"".join(items)
