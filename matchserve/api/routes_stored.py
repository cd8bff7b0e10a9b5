"""Features that a client stores here once and names by their id afterwards."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi import Path as PathParameter
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api import openapi
from matchserve.api.body import JSON, MULTIPART
from matchserve.api.requests import Body, check_features, parse_features
from matchserve.api.response_schemas import FeaturesResponse, StoredResponse
from matchserve.api.responses import ARRAY_TYPES, features_body, negotiate
from matchserve.api.routes import check_access, parsed_body, service_of
from matchserve.api.schemas import (
    FeaturesJson,
    form_schema,
)
from matchserve.api.strict import FEATURES_ID, Strict
from matchserve.encoding import to_json
from matchserve.types import Features

router = APIRouter(
    prefix="/v1/features/stored", dependencies=[Depends(check_access)], tags=["matching"]
)
Id = Annotated[str, PathParameter(pattern=FEATURES_ID)]


@router.post(
    "",
    summary="Store features",
    responses={
        200: {"model": StoredResponse, "description": "Stored."},
        **openapi.problems(),
    },
    openapi_extra=openapi.body(
        form=form_schema(Strict, "features"), json=FeaturesJson.model_json_schema()
    ),
)
async def store(request: Request) -> Response:
    """Keep features for later requests, which name them by the id that is returned.

    They are kept for the API key that stored them, while they are used from time to time and
    there is room; see `store_s` and `store_bytes` of /info.
    """
    service = service_of(request)
    owner = service.access.owner(request)

    def parse(body: Body) -> tuple[Features, str]:
        features = parse_features(body, service.settings, lambda name: service.model(name).card)
        check_features((features,), service.model(features.model).card, service.settings)
        return features, service.store.put(owner, features)

    async with parsed_body(request, (MULTIPART, JSON), parse) as (features, name):
        fields = {
            "id": name,
            "model": features.model,
            "count": len(features),
            "keep_s": service.store.keep_s,
        }
        return Response(to_json(fields), media_type=JSON)


@router.get(
    "/{features_id}",
    summary="Get stored features",
    responses={**openapi.success(FeaturesResponse), **openapi.problems(401, 404, 406, 422, 429)},
)
async def get(request: Request, features_id: Id) -> Response:
    """Return features that were stored before, as POST /v1/features returns them."""
    service, wanted = service_of(request), negotiate(request, ARRAY_TYPES)
    features = service.store.get(service.access.owner(request), features_id)
    extra = {"id": features_id, "timings_ms": {}}
    body = await service.run_in_thread(
        features_body, features, wanted, encoding="list", extra=extra
    )
    return Response(body, media_type=wanted)


@router.delete(
    "/{features_id}",
    summary="Delete stored features",
    status_code=204,
    responses=openapi.problems(401, 404, 422, 429),
)
async def delete(request: Request, features_id: Id) -> Response:
    """Remove features that were stored before."""
    service = service_of(request)
    service.store.delete(service.access.owner(request), features_id)
    return Response(status_code=204)
