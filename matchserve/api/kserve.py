"""Serve descriptors of patches by the Open Inference Protocol (KServe version 2).

The extension for binary tensors is included, so Triton's clients work.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from fastapi import APIRouter, Depends
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api import openapi
from matchserve.api.body import JSON, OCTETS
from matchserve.api.errors import InvalidJson, UnsupportedMedia, invalid_parameter
from matchserve.api.jsonbody import parse_object
from matchserve.api.routes import FEATURES_MEGAPIXELS, check_access, check_patch_count, service_of
from matchserve.api.routes_info import Name
from matchserve.api.service import Service
from matchserve.clock import Call
from matchserve.encoding import to_json
from matchserve.engine.served_models import ServedModel
from matchserve.errors import InvalidParameter
from matchserve.models.card import ModelCard
from matchserve.types import UInt8

HEADER_LENGTH = "inference-header-content-length"
INPUT, OUTPUT = "patches", "descriptors"

Count = Annotated[int, Field(ge=0, le=1 << 31)]


class _Part(BaseModel):
    """Base of the messages; unknown fields are ignored, because clients send their own."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class TensorParameters(_Part):
    """Parameters of an input: the size of its data after the JSON, if it is binary."""

    binary_data_size: Count | None = None


class InputTensor(_Part):
    """Input tensor of a request."""

    name: str
    shape: Annotated[list[Count], Field(min_length=1, max_length=4)]
    datatype: Literal["UINT8"]
    data: list[Any] | None = None
    parameters: TensorParameters = TensorParameters()


class OutputParameters(_Part):
    """Parameters of one requested output."""

    binary_data: bool = False


class OutputTensor(_Part):
    """Output tensor that a request names."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferParameters(_Part):
    """Parameters of a request: the format of outputs that it does not name."""

    binary_data_output: bool = False


class InferRequest(_Part):
    """Body of an inference request."""

    id: str | None = None
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[OutputTensor], Field(max_length=1)] = []
    parameters: InferParameters = InferParameters()

    @property
    def is_binary_wanted(self) -> bool:
        """Return whether the output tensor follows the JSON as binary data."""
        if self.outputs:
            return self.outputs[0].parameters.binary_data
        return self.parameters.binary_data_output


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    responses = openapi.problems(*statuses)
    for response in responses.values():
        response["content"] = {"application/json": {"schema": schema}}
    return responses


_OK: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Success.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}

health_router = APIRouter(prefix="/v2", tags=["open inference protocol"])
router = APIRouter(
    prefix="/v2", tags=["open inference protocol"], dependencies=[Depends(check_access)]
)


@health_router.get("", responses=_OK)
async def server(request: Request) -> Response:
    """Return the name, version and extensions of the server."""
    extensions = ["binary_tensor_data"]
    return _json({"name": "matchserve", "version": request.app.version, "extensions": extensions})


@health_router.get("/health/live", responses=_OK)
async def live() -> Response:
    """Return that the process is alive."""
    return _json({"live": True})


@health_router.get("/health/ready", responses={**_OK, **_errors(404, 503, 504)})
async def ready(request: Request) -> Response:
    """Check that the default model can describe a patch."""
    await service_of(request).probe()
    return _json({"ready": True})


@router.get("/models/{name}", responses={**_OK, **_errors(401, 404, 422, 429, 503)})
@router.get(
    "/models/{name}/versions/{version}", responses={**_OK, **_errors(401, 404, 422, 429, 503)}
)
async def metadata(request: Request, name: Name, version: str | None = None) -> Response:
    """Return the names, types and shapes of a model's tensors."""
    card = _model(service_of(request), name, version).card
    size = card.patch.size
    return _json(
        {
            "name": card.name,
            "versions": [card.version],
            "platform": "onnx_onnxv1" if card.sha256 else "opencv",
            "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, 1, size, size]}],
            "outputs": [
                {"name": OUTPUT, "datatype": _datatype(card), "shape": [-1, card.row_length]}
            ],
        }
    )


@router.get("/models/{name}/ready", responses={**_OK, **_errors(401, 404, 422, 429, 503)})
@router.get(
    "/models/{name}/versions/{version}/ready", responses={**_OK, **_errors(401, 404, 422, 429, 503)}
)
async def model_ready(request: Request, name: Name, version: str | None = None) -> Response:
    """Check that a model is loaded."""
    _model(service_of(request), name, version)
    return _json({"name": name, "ready": True})


_INFER: dict[str, Any] = {
    "responses": {**_OK, **_errors(400, 401, 404, 413, 415, 422, 429, 503, 504)},
    "openapi_extra": openapi.body(json=InferRequest.model_json_schema()),
}


@router.post("/models/{name}/infer", **_INFER)
@router.post("/models/{name}/versions/{version}/infer", **_INFER)
async def infer(request: Request, name: Name, version: str | None = None) -> Response:
    """Compute the descriptors of a tensor of patches."""
    service = service_of(request)
    service.start_deadline(request)
    with service.admission.arriving(request):
        model = _model(service, name, version)
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, OCTETS):
            raise UnsupportedMedia(f"the content type must be {JSON} or {OCTETS}")
        async with service.received(request, service.settings.max_body_bytes) as body:
            parsed, patches = await service.parse(
                request, _parse, body, request.headers.get(HEADER_LENGTH), model.card
            )
            del body
            check_patch_count(len(patches), service)

            def work(call: Call) -> Response:
                rows = model.batched.describe_patches(patches, call)
                return _response(parsed, rows, model.card)

            return await service.run(request, FEATURES_MEGAPIXELS, work)


def _model(service: Service, name: str, version: str | None) -> ServedModel:
    model = service.model(name)
    if version is not None and version != model.card.version:
        raise InvalidParameter(f"the only version of {model.card.name} is {model.card.version}")
    return model


def _parse(
    body: bytearray, header_length: str | None, card: ModelCard
) -> tuple[InferRequest, UInt8]:
    """Parse the JSON and the patches, which are in the JSON or follow it as binary data."""
    length = len(body)
    if header_length is not None:
        # int() refuses thousands of digits, and isdigit() accepts characters such as "²".
        if not re.fullmatch("[0-9]{1,10}", header_length) or int(header_length) > len(body):
            raise InvalidJson(
                "Inference-Header-Content-Length is not a number, or larger than the body"
            )
        length = int(header_length)
    try:
        parsed = InferRequest.model_validate(parse_object(body[:length]), strict=True)
    except pydantic.ValidationError as error:
        raise invalid_parameter(error) from error
    patches = _patches(parsed.inputs[0], body[length:], card)
    # A list of numbers takes eight times the memory of the patches: drop it before waiting.
    return parsed.model_copy(update={"inputs": []}), patches


def _patches(tensor: InputTensor, tail: bytearray, card: ModelCard) -> UInt8:
    size = card.patch.size
    count = tensor.shape[0]
    if tensor.name != INPUT or tensor.shape[1:] not in ([1, size, size], [size, size]):
        raise InvalidParameter(f"the input must be {INPUT!r} with shape [N, 1, {size}, {size}]")
    total = math.prod(tensor.shape)
    if tensor.parameters.binary_data_size is not None:
        if tensor.parameters.binary_data_size != len(tail) or len(tail) != total:
            raise InvalidParameter(
                f"{len(tail)} bytes follow the JSON, but the shape needs {total}"
            )
        return np.frombuffer(tail, np.uint8).reshape(count, 1, size, size)
    values = _flat(tensor.data or [])
    if len(values) != total:
        raise InvalidParameter(f"data has {len(values)} values, but the shape needs {total}")
    if not all(type(v) is int and 0 <= v <= 255 for v in values):
        raise InvalidParameter("UINT8 values must be whole numbers from 0 to 255")
    return np.array(values, np.uint8).reshape(count, 1, size, size)


def _flat(data: list[Any]) -> list[Any]:
    """Flatten data that is nested like its shape; flat data is returned as it is."""
    while data and isinstance(data[0], list):
        if not all(isinstance(item, list) for item in data):
            raise InvalidParameter("data has lists and numbers on the same level")
        data = [value for item in data for value in item]
    return data


def _response(parsed: InferRequest, rows: NDArray[Any], card: ModelCard) -> Response:
    output: dict[str, Any] = {
        "name": OUTPUT,
        "datatype": _datatype(card),
        "shape": list(rows.shape),
    }
    fields: dict[str, Any] = {
        "model_name": card.name,
        "model_version": card.version,
        "outputs": [output],
    }
    if parsed.id is not None:
        fields["id"] = parsed.id
    if not parsed.is_binary_wanted:
        output["data"] = rows.ravel()
        return _json(fields)
    tail = rows.tobytes()
    output["parameters"] = {"binary_data_size": len(tail)}
    head = to_json(fields)
    headers = {HEADER_LENGTH: str(len(head))}
    return Response(head + tail, headers=headers, media_type=OCTETS)


def _datatype(card: ModelCard) -> str:
    return "FP32" if card.kind == "float" else "UINT8"


def _json(fields: dict[str, Any]) -> Response:
    return Response(to_json(fields), media_type="application/json")
