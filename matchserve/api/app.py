"""Build the FastAPI application from settings; there are no globals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from matchserve import __version__
from matchserve.api import (
    kserve,
    openapi,
    routes,
    routes_batch,
    routes_collections,
    routes_info,
    routes_jobs,
    routes_stored,
)
from matchserve.api.errors import from_http_exception, problem_response
from matchserve.api.middleware import RequestContext
from matchserve.api.schemas import field_limits
from matchserve.api.service import Service
from matchserve.engine.idle import IdleWatch
from matchserve.errors import CapacityError, InvalidParameter, MatchServeError
from matchserve.memory import return_freed
from matchserve.settings import Settings, load_settings

CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST", "PUT", "DELETE"),
    "allow_headers": ("Authorization", "Content-Type", "X-API-Key", "X-Request-ID"),
    "expose_headers": ("Retry-After", "Server-Timing", "X-Request-ID"),
    "max_age": 600,
}
LAG_PERIOD_S = 0.25
IDLE_S = 5.0

ROUTERS = (
    routes.router,
    routes_batch.router,
    routes_stored.router,
    routes_collections.router,
    routes_jobs.router,
    routes_info.models_router,
    routes_info.health_router,
    kserve.health_router,
    kserve.router,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build an application with its own models, threads and metrics.

    Raises:
        MatchServeError: the service cannot run with these settings.
    """
    service = Service(settings or load_settings())

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        watch = asyncio.create_task(_watch(service))
        yield
        watch.cancel()
        service.close()

    app = FastAPI(
        title="matchserve",
        version=__version__,
        description=openapi.DESCRIPTION,
        docs_url=None,  # its page loads scripts from other hosts; routes_info has ours
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/assets", StaticFiles(directory=routes_info.WEB), name="assets")
    if origins := service.settings.origins():
        # Inside of the context, so that preflight requests are logged and counted too.
        app.add_middleware(CORSMiddleware, allow_origins=origins, **CORS)
    app.add_middleware(RequestContext, metrics=service.metrics)
    app.add_exception_handler(MatchServeError, _handle)
    app.add_exception_handler(HTTPException, _handle)
    app.add_exception_handler(RequestValidationError, _handle)
    _complete_schema(app)
    return app


async def _handle(request: Request, error: Exception) -> Response:
    """Turn an exception into a response; the only place that does so."""
    if isinstance(error, HTTPException):
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error.headers = {"Allow": ", ".join(_allowed_methods(request))}
        error = from_http_exception(error)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        error = InvalidParameter(f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")
    if not isinstance(error, MatchServeError):
        raise error
    request.state.problem = error.code
    if isinstance(error, CapacityError):
        service: Service = request.app.state.service
        service.metrics.rejected.labels(error.code).inc()
    return problem_response(error, request)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of this path; the framework names those of the first one."""
    known = [*request.app.routes, *(route for router in ROUTERS for route in router.routes)]
    here = [r for r in known if isinstance(r, Route) and r.path_regex.match(request.url.path)]
    return sorted({method for route in here for method in route.methods or ()})


async def _watch(service: Service) -> None:
    """Measure the delay of the event loop, and return freed memory when the service is idle."""
    loop = asyncio.get_running_loop()
    idle = IdleWatch(IDLE_S)
    released = 0
    while True:
        due = loop.time() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        service.metrics.loop_lag.observe(max(0.0, loop.time() - due))
        # Freed slots count too: a short request may start and end between two checks.
        is_busy = service.admission.running > 0 or service.admission.released != released
        released = service.admission.released
        if idle.has_become_idle(is_busy=is_busy):
            await service.run_in_thread(return_freed)


def _complete_schema(app: FastAPI) -> None:
    """Add what FastAPI does not know: limits of the settings, the problem schema, API keys."""
    generate = app.openapi
    service: Service = app.state.service

    def complete() -> dict[str, Any]:
        schema = openapi.with_limits(generate(), field_limits(service.settings))
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = openapi.problem_schema()
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        return schema

    app.openapi = complete  # type: ignore[method-assign]
