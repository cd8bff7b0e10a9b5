"""Everything that lives as long as the process, and the way of one request through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from matchserve.api.access import Access, KeyRing, RateLimit
from matchserve.api.body import BodyBudget
from matchserve.api.metrics import Metrics
from matchserve.engine.admission import Admission
from matchserve.engine.cache import FeatureCache
from matchserve.engine.deadline import ClientDeparted, Deadline, DeadlineClock
from matchserve.engine.patch_queue import Threads
from matchserve.engine.pipeline import Pipeline
from matchserve.engine.served import LoadOptions, Models, ServedModel, load_models
from matchserve.engine.workers import run_in_place
from matchserve.errors import (
    InvalidParameter,
    ModelError,
    ProviderUnavailable,
    ShuttingDown,
    UnknownModel,
)
from matchserve.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[DeadlineClock, Threads], T]

PROBE_TIMEOUT_S = 5.0


class Service:
    """The models, the places to run in, and what is counted."""

    def __init__(self, settings: Settings) -> None:
        """Load every model and start the threads.

        Raises:
            ModelError: a model is broken and the settings are strict.
            ProviderUnavailable: the named provider cannot run.
            InvalidParameter: the default model does not exist.
        """
        self.settings = settings
        self.limits = settings.limits()
        self.metrics = Metrics()
        self.access = Access(
            KeyRing(settings.keys()), RateLimit(settings.requests_per_s, settings.request_burst)
        )
        self.models = self._load_models()
        self.admission = Admission(settings.places())
        self.budget = BodyBudget(settings.max_inflight_bytes)
        self.cache = FeatureCache(settings.cache_bytes, self._count_lookup)
        self.pipeline = Pipeline(self.limits, self.cache)
        self.is_draining = False
        self._executor = ThreadPoolExecutor(
            self.admission.places.running, thread_name_prefix="matchserve-request"
        )
        # Few, since every thread keeps memory of its own; two, so that a probe delays no parsing.
        self._helpers = ThreadPoolExecutor(
            max(2, settings.cpus()), thread_name_prefix="matchserve-helper"
        )
        self._probing: asyncio.Future[None] | None = None
        self._watch()

    def model(self, name: str) -> ServedModel:
        """A model by its name, the default one if it is empty; a client's name is only looked up.

        Raises:
            UnknownModel: there is none of that name.
            ModelError: there is, and it is broken.
        """
        found = self.models.get(name or self.settings.default_model)
        if found is None:
            raise UnknownModel(f"no model of that name; there are {', '.join(self.models)}")
        if isinstance(found, ModelError):
            raise type(found)(found.message)
        return found

    async def run(self, request: Request, megapixels: float, work: Work[T]) -> T:
        """Wait for a place and do `work` there, as long as the client waits.

        Raises:
            MatchServeError: no place, no time, nobody there, or whatever `work` raises.
        """
        deadline = Deadline(self.settings.deadline_s)
        task = asyncio.ensure_future(self._admitted(request, megapixels, deadline, work))
        departure = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait({task, departure}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            departure.cancel()
            if not task.done():
                deadline.depart()
                task.cancel()
        raise ClientDeparted("the client closed the connection")

    async def probe(self) -> None:
        """Send one patch through the default model, as a request would; all who ask share it.

        Raises:
            MatchServeError: it cannot serve now.
        """
        if self.is_draining:
            raise ShuttingDown("the service is shutting down")
        if self._probing is None or self._probing.done():
            probe = self.model("").probe
            self._probing = asyncio.ensure_future(self.aside(probe, PROBE_TIMEOUT_S))
        await asyncio.shield(self._probing)

    async def aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something short, such as parsing, on one of a few threads; needs no place."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._helpers, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Refuse what is new and end the threads."""
        self.is_draining = True
        self.admission.close()
        for threads in (self._executor, self._helpers):
            threads.shutdown(wait=False, cancel_futures=True)
        self.pipeline.close()
        for model in self.models.values():
            if isinstance(model, ServedModel):
                model.batcher.close()

    async def _admitted(
        self, request: Request, megapixels: float, deadline: Deadline, work: Work[T]
    ) -> T:
        clock = DeadlineClock(deadline)
        place = await self.admission.enter(megapixels, deadline.remaining_s(), request)
        lone_threads = self.settings.lone_threads()

        def threads() -> int:
            return lone_threads if place.is_alone else 1

        return await run_in_place(self._executor, place, deadline, lambda: work(clock, threads))

    def _load_models(self) -> Models:
        settings = self.settings
        options = LoadOptions(settings.models_dir, settings.provider, settings.batch_policy())
        models = load_models(options, self.metrics.observe_batch)
        if settings.default_model not in models:
            raise InvalidParameter(
                f"the default model {settings.default_model!r} is not one of {', '.join(models)}"
            )
        for name, model in models.items():
            if isinstance(model, ModelError):
                # A provider that was named runs, or the service does not start.
                if settings.strict or isinstance(model, ProviderUnavailable):
                    raise type(model)(f"model {name!r}: {model.message}")
                continue
            card, provider = model.card, model.descriptor.provider
            self.metrics.model_info.labels(name, card.version, card.sha256 or "", provider).set(1)
        return models

    def _count_lookup(self, is_hit: bool) -> None:  # noqa: FBT001  a callback of one value
        self.metrics.cache.labels("hit" if is_hit else "miss").inc()

    def _watch(self) -> None:
        watch = self.metrics.watch
        watch("requests_running", "Requests that run.", lambda: self.admission.running)
        watch("requests_waiting", "Requests that wait.", lambda: self.admission.waiting)
        watch("inflight_bytes", "Bytes of request bodies.", lambda: self.budget.held)
        watch("feature_cache_bytes", "Bytes of cached features.", lambda: self.cache.bytes_held)
        watch("queue_patches", "Patches that wait for a lane.", self._queue_depth)

    def _queue_depth(self) -> float:
        models = [m for m in self.models.values() if isinstance(m, ServedModel)]
        return sum(model.batcher.depth for model in models)


async def _departure(request: Request) -> None:
    """Return when the client hangs up; its body has been read by now."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
