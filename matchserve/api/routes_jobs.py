"""Jobs on collections: /v1/jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Header, Query
from fastapi import Path as PathParameter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from matchserve.api import openapi
from matchserve.api.body import JSON, media_type
from matchserve.api.errors import invalid_parameter
from matchserve.api.jsonbody import parse_object
from matchserve.api.routes import check_access, service_of
from matchserve.api.routes_collections import jobs_of, owner_of
from matchserve.encoding import to_json
from matchserve.jobs.kinds import JobRequest
from matchserve.jobs.names import JOB_PATTERN, MAX_NAME_BYTES, RESULT_PATTERN
from matchserve.jobs.pairs import image_file, pair_fields
from matchserve.jobs.table import Job, State

MAX_JOB_BYTES = 65_536
"""Maximum size of the body of a new job."""

_EVENTS = "text/event-stream"

router = APIRouter(prefix="/v1/jobs", dependencies=[Depends(check_access)], tags=["jobs"])

Name = Annotated[str, PathParameter(pattern=JOB_PATTERN, description="Id of the job.")]
ImageParameter = Annotated[str, Query(min_length=1, max_length=MAX_NAME_BYTES)]


class ResultFields(BaseModel):
    """A file to download."""

    name: str
    bytes: int
    url: str


class JobFields(BaseModel):
    """A job and how far it is."""

    id: str
    kind: str
    state: State
    request: dict[str, Any]
    progress: dict[str, Any] | None
    results: list[ResultFields]
    error: dict[str, Any] | None
    attempts: int
    created: str
    started: str | None
    finished: str | None


class JobsResponse(BaseModel):
    """Jobs, newest first; `next` is the value of `before` for older ones."""

    jobs: list[JobFields]
    next: str | None


@router.post(
    "",
    summary="Start a job",
    status_code=202,
    responses={
        200: {"model": JobFields, "description": "The idempotency key was used before."},
        202: {"model": JobFields, "description": "Queued."},
        **openapi.problems(400, 401, 404, 413, 415, 422, 429, 503, 504, 507),
    },
    openapi_extra=openapi.body(json=JobRequest.model_json_schema()),
)
async def submit(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=128,
            pattern=r"^[!-~]+$",
            description="The same key with the same body returns the job of the first request.",
        ),
    ] = None,
) -> Response:
    """Queue a job, which matches or reconstructs the images of a collection."""
    jobs, owner, service = jobs_of(request), owner_of(request), service_of(request)
    service.start_deadline(request)
    media_type(request, (JSON,))

    def parse(data: bytes) -> tuple[Job, bool]:
        try:
            parsed = JobRequest.model_validate(parse_object(data), strict=True)
        except pydantic.ValidationError as error:
            raise invalid_parameter(error) from error
        return jobs.submit(owner, parsed, idempotency_key)

    async with service.received(request, MAX_JOB_BYTES) as body:
        job, is_new = await service.parse(request, parse, bytes(body))
    headers = {"Location": f"/v1/jobs/{job.id}"}
    return _json(job_fields(job), 202 if is_new else 200, headers)


@router.get(
    "",
    summary="List the jobs",
    responses={200: {"model": JobsResponse}, **openapi.problems(401, 404, 422, 429)},
)
async def list_jobs(
    request: Request,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    before: Annotated[
        str | None, Query(pattern=JOB_PATTERN, description="Only jobs older than this one.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of jobs.")] = 20,
) -> Response:
    """Return the jobs of this API key, newest first."""
    jobs, owner = jobs_of(request), owner_of(request)
    found = await service_of(request).run_in_thread(
        jobs.table.newest, owner, state=state, before=before, limit=limit
    )
    following = found[-1].id if len(found) == limit else None
    return _json({"jobs": [job_fields(job) for job in found], "next": following})


@router.get(
    "/{job}",
    summary="Show a job",
    responses={200: {"model": JobFields}, **openapi.problems(401, 404, 422, 429)},
)
async def show(request: Request, job: Name) -> Response:
    """Return a job, its progress, and its results or error."""
    return _json(job_fields(await _job(request, job)))


@router.delete(
    "/{job}",
    summary="Cancel a job",
    status_code=202,
    responses={202: {"model": JobFields}, **openapi.problems(401, 404, 422, 429, 507)},
)
async def cancel(request: Request, job: Name) -> Response:
    """Cancel a job that waits or runs; what it has done is kept, and used by the next job."""
    jobs, owner = jobs_of(request), owner_of(request)
    cancelled = await service_of(request).run_in_thread(jobs.table.cancel, owner, job)
    return _json(job_fields(cancelled), 202)


@router.get(
    "/{job}/events",
    summary="Follow a job",
    responses={
        200: {
            "description": "Server-sent events: queued, running, progress, and one of succeeded, "
            "failed and cancelled, after which the stream ends.",
            "content": {_EVENTS: {"schema": {"type": "string"}}},
        },
        **openapi.problems(401, 404, 422, 429),
    },
)
async def events(
    request: Request,
    job: Name,
    last_event_id: Annotated[
        int, Header(ge=0, le=2**53, description="Number of the last event that was received.")
    ] = 0,
) -> Response:
    """Stream the events of a job, those that happened before included."""
    await _job(request, job)
    feed, client = service_of(request).events, service_of(request).access.client(request)
    feed.check_room(client)
    # A proxy that collects the response would hold back every event.
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(feed.stream(job, last_event_id, client), 200, headers, _EVENTS)


@router.get(
    "/{job}/results/{name}",
    summary="Download a result",
    response_class=FileResponse,
    responses={
        200: {"description": "The file.", "content": {"application/octet-stream": {}}},
        206: {"description": "A range of the file.", "content": {"application/octet-stream": {}}},
        304: {"description": "The file is the one whose ETag was sent."},
        400: {"description": "The range is malformed.", "content": {"text/plain": {}}},
        416: {"description": "The range is outside of the file.", "content": {"text/plain": {}}},
        **openapi.problems(401, 404, 422, 429),
    },
)
async def result(
    request: Request,
    job: Name,
    name: Annotated[str, PathParameter(pattern=RESULT_PATTERN, description="Name of the file.")],
) -> Response:
    """Return a file of a finished job, or a range of it."""
    path = jobs_of(request).result(await _job(request, job), name)
    return _file(request, FileResponse(path, filename=name, stat_result=path.stat()))


@router.get(
    "/{job}/pair",
    summary="Show the matches of a pair",
    responses={200: openapi.OBJECT, **openapi.problems(401, 404, 422, 429, 503)},
)
async def pair(
    request: Request, job: Name, image0: ImageParameter, image1: ImageParameter
) -> Response:
    """Return the matched points of two images of a job, in the order in which they were matched."""
    found = await _job(request, job)
    order = jobs_of(request).order(found)
    fields = await service_of(request).run_in_thread(pair_fields, order, image0, image1)
    return _json(fields)


@router.get(
    "/{job}/image",
    summary="Show an image of a job",
    response_class=FileResponse,
    responses={
        200: {"description": "The image as it was uploaded.", "content": {"image/*": {}}},
        304: {"description": "The image is the one whose ETag was sent."},
        **openapi.problems(401, 404, 422, 429),
    },
)
async def image(request: Request, job: Name, name: ImageParameter) -> Response:
    """Return an image that the job has described."""
    order = jobs_of(request).order(await _job(request, job))
    path, kind = await service_of(request).run_in_thread(image_file, order, name)
    return _file(request, FileResponse(path, media_type=kind, stat_result=path.stat()))


def job_fields(job: Job) -> dict[str, Any]:
    """Return a job as the API shows it."""
    outcome: Mapping[str, Any] = job.outcome or {}
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "request": job.body,
        "progress": job.progress,
        "results": [
            {**file, "url": f"/v1/jobs/{job.id}/results/{file['name']}"}
            for file in outcome.get("results", ())
        ],
        "error": outcome.get("error"),
        "attempts": job.attempts,
        "created": _time(job.created),
        "started": _time(job.started),
        "finished": _time(job.finished),
    }


async def _job(request: Request, name: str) -> Job:
    jobs, owner = jobs_of(request), owner_of(request)
    return await service_of(request).run_in_thread(jobs.table.get, owner, name)


def _file(request: Request, response: FileResponse) -> Response:
    """Return the file, or 304 if the client has it."""
    response.headers["Cache-Control"] = "private, no-cache"
    sent = request.headers.get("if-none-match", "")
    etag = response.headers["etag"]
    if sent.strip() == "*" or etag in [tag.strip().removeprefix("W/") for tag in sent.split(",")]:
        return Response(status_code=304, headers={"ETag": etag})
    return response


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _json(fields: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(fields), status, headers, media_type="application/json")
