"""Routes for models, limits, health, metrics and the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi import Path as PathParameter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from matchserve.api import openapi
from matchserve.api.routes import check_access, service_of
from matchserve.api.service import Service
from matchserve.encoding import to_json
from matchserve.engine.served_models import ServedModel
from matchserve.errors import ModelError
from matchserve.hardware import available_cpus

WEB = Path(__file__).resolve().parent.parent / "web"

Name = Annotated[str, PathParameter(max_length=256)]

models_router = APIRouter(dependencies=[Depends(check_access)], tags=["models"])
health_router = APIRouter(tags=["operation"])


@models_router.get(
    "/v1/models",
    summary="List the models",
    responses={200: openapi.OBJECT, **openapi.problems(401, 429)},
)
async def models(request: Request) -> Response:
    """Return the card of every model; a model that cannot be used has an error instead."""
    service = service_of(request)
    fields = {
        "default": service.settings.default_model,
        "models": [_model_fields(service, name) for name in service.models],
    }
    return _json(fields)


@models_router.get(
    "/v1/models/{name}",
    summary="Show a model's card",
    responses={200: openapi.OBJECT, **openapi.problems(401, 404, 422, 429, 503)},
)
async def model(request: Request, name: Name) -> Response:
    """Return a model's card: its version, how patches are cut, and its measured quality."""
    service = service_of(request)
    service.model(name)
    return _json(_model_fields(service, name))


@models_router.get(
    "/info",
    summary="Show limits and devices",
    responses={200: openapi.OBJECT, **openapi.problems(401, 429)},
)
async def info(request: Request) -> Response:
    """Return the limits of requests, the number of threads, and the device of each model."""
    service = service_of(request)
    settings, slots = service.settings, service.admission.slots
    return _json(
        {
            "name": "matchserve",
            "version": request.app.version,
            "default_model": settings.default_model,
            "limits": {
                "max_image_bytes": settings.max_image_bytes,
                "max_body_bytes": settings.max_body_bytes,
                "max_pixels": settings.max_pixels,
                "max_side": settings.max_side,
                "min_side": settings.min_side,
                "max_keypoints": settings.max_keypoints,
                "max_patches": settings.max_patches,
                "max_batch_images": settings.max_batch_images,
                "max_batch_pairs": settings.max_batch_pairs,
                "store_bytes": service.store.max_bytes,
                "store_s": settings.store_s,
                "working_side": settings.working_side,
                "deadline_s": settings.deadline_s,
                "running": slots.running,
                "waiting": slots.waiting,
                "running_megapixels": round(slots.megapixels, 1),
            },
            "threads": {
                "available": available_cpus(),
                "lanes": settings.cpus(),
                "lone_request": settings.lone_threads(),
            },
            "models": {name: _status(found) for name, found in service.models.items()},
            "collections": service.jobs is not None,
        }
    )


@health_router.head("/healthz", include_in_schema=False)
@health_router.get(
    "/healthz", summary="Check that the process is alive", responses={200: openapi.OBJECT}
)
async def healthz() -> Response:
    """Return 200 as long as the event loop runs."""
    return _json({"status": "ok"})


@health_router.get(
    "/readyz",
    summary="Check that the service can serve",
    responses={200: openapi.OBJECT, **openapi.problems(404, 503, 504)},
)
async def readyz(request: Request) -> Response:
    """Describe a patch with the default model; return 503 or 504 if that fails."""
    service = service_of(request)
    await service.probe()
    statuses = {name: _status(found)["status"] for name, found in service.models.items()}
    return _json({"status": "ready", "models": statuses})


@health_router.get(
    "/metrics",
    summary="Show metrics for Prometheus",
    responses={200: {"description": "Metrics as text.", "content": {"text/plain": {}}}},
)
async def metrics(request: Request) -> Response:
    """Return the metrics of this process in the text format of Prometheus."""
    return Response(
        service_of(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


@health_router.get("/", include_in_schema=False)
async def page() -> Response:
    """Return the web page."""
    return FileResponse(WEB / "index.html", headers={"Cache-Control": "no-cache"})


@health_router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """Return the page of the HTTP API."""
    return FileResponse(WEB / "docs.html", headers={"Cache-Control": "no-cache"})


def _model_fields(service: Service, name: str) -> dict[str, Any]:
    found = service.models[name]
    if isinstance(found, ModelError):
        return {"name": name, "ready": False, "error": found.message}
    return {"ready": True, **_status(found), **found.card.model_dump(mode="json")}


def _status(found: ServedModel | ModelError) -> dict[str, str]:
    if isinstance(found, ModelError):
        return {"status": "not_ready", "cause": found.message}
    return {"status": "ready", "provider": found.descriptor.provider}


def _json(fields: Any) -> Response:
    return Response(to_json(fields), media_type="application/json")
