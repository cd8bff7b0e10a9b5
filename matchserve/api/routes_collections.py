"""Collections of uploaded images: /v1/collections."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParameter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from matchserve.api import openapi
from matchserve.api.body import media_type
from matchserve.api.errors import MissingImage
from matchserve.api.requests import decoding_megapixels
from matchserve.api.routes import check_access, service_of
from matchserve.encoding import to_json
from matchserve.errors import CollectionsDisabled
from matchserve.jobs.names import (
    COLLECTION_PATTERN,
    MAX_NAME_BYTES,
    checked_collection_name,
    checked_image_name,
)
from matchserve.jobs.service import JobService
from matchserve.jobs.uploads import CollectionInfo

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")

router = APIRouter(prefix="/v1/collections", dependencies=[Depends(check_access)],
                   tags=["collections"])  # fmt: skip

Name = Annotated[
    str, PathParameter(pattern=COLLECTION_PATTERN, description="Name of the collection.")
]
ImageName = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=MAX_NAME_BYTES,
        description="Name of the image in the collection, with / between folders, such as "
        "flight/0001.jpg.",
    ),
]
_NO_CONTENT: dict[int | str, dict[str, Any]] = {204: {"description": "Removed."}}


class CollectionFields(BaseModel):
    """A collection of uploaded images."""

    name: str
    images: int
    bytes: int


class CollectionsResponse(BaseModel):
    """All collections of this API key."""

    collections: list[CollectionFields]


class ImagesResponse(CollectionFields):
    """A collection with names of its images; `next` is the value of `after` for more of them."""

    names: list[str]
    next: str | None


class UploadedFields(BaseModel):
    """An uploaded image, by the name under which it is stored."""

    name: str


def jobs_of(request: Request) -> JobService:
    """Return the collections and jobs of this service.

    Raises:
        CollectionsDisabled: it has none.
    """
    jobs = service_of(request).jobs
    if jobs is None:
        raise CollectionsDisabled(
            "this service has no folder for collections and jobs; start it with --data-dir FOLDER"
        )
    return jobs


def owner_of(request: Request) -> str:
    """Return the name of the client: each API key has its own collections and jobs."""
    return service_of(request).access.owner(request)


@router.get(
    "",
    summary="List the collections",
    responses={200: {"model": CollectionsResponse}, **openapi.problems(401, 404, 429)},
)
async def list_collections(request: Request) -> Response:
    """Return all collections of this API key."""
    jobs, owner = jobs_of(request), owner_of(request)
    found = await service_of(request).run_in_thread(jobs.uploads.collections, owner)
    return _json({"collections": [_fields(info) for info in found]})


@router.put(
    "/{name}",
    summary="Create a collection",
    responses={
        200: {"model": CollectionFields, "description": "It existed before."},
        201: {"model": CollectionFields, "description": "Created."},
        **openapi.problems(401, 404, 422, 429, 507),
    },
)
async def create_collection(request: Request, name: Name) -> Response:
    """Create a collection, if there is none of that name."""
    jobs, owner, service = jobs_of(request), owner_of(request), service_of(request)
    name = checked_collection_name(name)
    is_new = await service.run_in_thread(jobs.uploads.create, owner, name)
    info = await service.run_in_thread(jobs.uploads.info, owner, name)
    return _json(_fields(info), 201 if is_new else 200)


@router.get(
    "/{name}",
    summary="Describe a collection",
    responses={200: {"model": ImagesResponse}, **openapi.problems(401, 404, 422, 429)},
)
async def show_collection(
    request: Request,
    name: Name,
    after: Annotated[
        str, Query(max_length=MAX_NAME_BYTES, description="Return names after this one.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of names.")] = 1000,
) -> Response:
    """Return the number of images, their bytes and their names."""
    jobs, owner, service = jobs_of(request), owner_of(request), service_of(request)
    info = await service.run_in_thread(jobs.uploads.info, owner, checked_collection_name(name))
    names = await service.run_in_thread(jobs.uploads.images, owner, name, after, limit)
    following = names[-1] if len(names) == limit else None
    return _json({**_fields(info), "names": names, "next": following})


@router.delete(
    "/{name}",
    summary="Remove a collection",
    status_code=204,
    responses={**_NO_CONTENT, **openapi.problems(401, 404, 409, 422, 429)},
)
async def remove_collection(request: Request, name: Name) -> Response:
    """Remove a collection with its images, features and matches; results of jobs stay."""
    jobs, owner = jobs_of(request), owner_of(request)
    await service_of(request).run_in_thread(
        jobs.uploads.remove, owner, checked_collection_name(name)
    )
    return Response(status_code=204)


@router.put(
    "/{name}/images/{image:path}",
    summary="Upload an image",
    responses={
        200: {"model": UploadedFields, "description": "The same bytes were there before."},
        201: {"model": UploadedFields, "description": "Stored."},
        **openapi.problems(400, 401, 404, 409, 413, 415, 422, 429, 503, 504, 507),
    },
    openapi_extra=openapi.binary_body(*IMAGE_TYPES),
)
async def upload_image(
    request: Request,
    name: Name,
    image: ImageName,
    *,
    replace: Annotated[bool, Query(description="Replace another image of this name.")] = False,
) -> Response:
    """Store a JPEG, PNG or WebP image in a collection; it is decoded when a job runs."""
    jobs, owner, service = jobs_of(request), owner_of(request), service_of(request)
    name, image = checked_collection_name(name), checked_image_name(image)
    service.start_deadline(request)
    media_type(request, IMAGE_TYPES)
    settings = service.settings

    def store(data: bytes) -> bool:
        # Only the header is read here; pixels are decoded by the processes of jobs.
        decoding_megapixels(data, settings)
        return jobs.uploads.put(owner, name, image, data, replace=replace)

    limit = min(settings.max_image_bytes, settings.max_body_bytes)
    async with service.received(request, limit) as body:
        if not body:
            raise MissingImage("the body is empty")
        is_new = await service.parse(request, store, bytes(body))
    return _json({"name": image}, 201 if is_new else 200)


@router.delete(
    "/{name}/images/{image:path}",
    summary="Remove an image",
    status_code=204,
    responses={**_NO_CONTENT, **openapi.problems(401, 404, 422, 429)},
)
async def remove_image(request: Request, name: Name, image: ImageName) -> Response:
    """Remove an image from a collection."""
    jobs, owner = jobs_of(request), owner_of(request)
    name, image = checked_collection_name(name), checked_image_name(image)
    await service_of(request).run_in_thread(jobs.uploads.remove_image, owner, name, image)
    return Response(status_code=204)


def _fields(info: CollectionInfo) -> dict[str, object]:
    return {"name": info.name, "images": info.images, "bytes": info.bytes}


def _json(fields: dict[str, object], status: int = 200) -> Response:
    return Response(to_json(fields), status, media_type="application/json")
