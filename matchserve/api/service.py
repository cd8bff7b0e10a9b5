"""The service: what lives as long as the process, and how a request runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request

from matchserve.api.access import Access, KeyRing, RateLimit
from matchserve.api.body import BodyBudget, received
from matchserve.api.events import EventFeed
from matchserve.api.metrics import Metrics
from matchserve.api.requests import FORMATS
from matchserve.clock import Call, ClientDeparted, Deadline, StageClock
from matchserve.decoding.detection import detect_killable
from matchserve.decoding.pool import DecoderPool
from matchserve.engine.admission import Admission
from matchserve.engine.served_models import (
    LoadOptions,
    MatcherResources,
    Models,
    ServedModel,
    load_models,
)
from matchserve.engine.workers import run_in_slot
from matchserve.errors import (
    CapacityError,
    DeadlineExceeded,
    InvalidParameter,
    ModelError,
    ProviderUnavailable,
    ShuttingDown,
    UnknownModel,
)
from matchserve.feature_cache import FeatureCache
from matchserve.feature_store import FeatureStore
from matchserve.jobs.runner import Runner
from matchserve.jobs.service import JobService
from matchserve.jobs.table import Event
from matchserve.libraries import import_faiss, use_matching_device, use_one_opencv_thread
from matchserve.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[Call], T]

PROBE_TIMEOUT_S = 5.0


class Service:
    """The models, the slots that requests run in, and the metrics."""

    def __init__(self, settings: Settings) -> None:
        """Load every model and start the threads.

        Raises:
            ModelError: a model is broken and the settings are strict.
            ProviderUnavailable: the named provider cannot run.
            InvalidParameter: the default model does not exist.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.access = Access(
            KeyRing(settings.keys()), RateLimit(settings.requests_per_s, settings.request_burst)
        )
        use_one_opencv_thread()
        import_faiss()  # here rather than in the first request
        is_cpu = settings.provider == "cpu"
        use_matching_device(None if is_cpu else settings.device_options().numbers[0])
        self.cache = FeatureCache(settings.cache_bytes, self._count_lookup)
        # Each worker would have its own store, and a client reaches any of them.
        self.store = FeatureStore(
            settings.store_bytes if settings.workers == 1 else 0, settings.store_s
        )
        # One thread: only a request that runs alone has both its images described at once.
        self._second_image = ThreadPoolExecutor(1, thread_name_prefix="matchserve-image")
        self.admission = Admission(settings.slots())
        # One per running request, and two for the two images of a lone request.
        self.decoders = DecoderPool(
            max(self.admission.slots.running, min(2, settings.lone_threads())),
            settings.limits(),
            FORMATS,
        )
        self.models = self._load_models()
        # Half for one client: whoever holds back the ends of its bodies must not refuse the others.
        self.budget = BodyBudget(
            settings.max_inflight_bytes,
            max(settings.max_inflight_bytes // 2, settings.max_body_bytes),
        )
        self.is_draining = False
        self.jobs = None if settings.data_dir is None else JobService(settings, settings.data_dir)
        self.events = EventFeed(self._read_events, lambda: self.is_draining)
        self._runner: Runner | None = None
        self._executor = ThreadPoolExecutor(
            self.admission.slots.running, thread_name_prefix="matchserve-request"
        )
        # Few, because every thread keeps its own heap.
        self._helpers = ThreadPoolExecutor(
            max(2, settings.cpus()), thread_name_prefix="matchserve-helper"
        )
        # A probe must not wait behind bodies that are parsed.
        self._prober = ThreadPoolExecutor(1, thread_name_prefix="matchserve-probe")
        self._probing: asyncio.Future[None] | None = None
        self._watch()

    def start(self) -> None:
        """Start the processes that decode images, and the thread that runs jobs."""
        self.decoders.start()
        if self.jobs is not None and self.jobs.cores:
            self._runner = self.jobs.runner()
            self._runner.start()

    def model(self, name: str) -> ServedModel:
        """Return a model by its name, or the default model if the name is empty.

        Raises:
            UnknownModel: there is no model of that name.
            ModelError: the model is broken.
        """
        model = self.models.get(name or self.settings.default_model)
        if model is None:
            raise UnknownModel(f"no model of that name; there are {', '.join(self.models)}")
        if isinstance(model, ModelError):
            raise type(model)(model.message)
        return model

    def start_deadline(self, request: Request) -> None:
        """Start the time of a request, which includes receiving and parsing its body."""
        request.state.deadline = Deadline(self.settings.deadline_s)

    def received(self, request: Request, max_bytes: int) -> AbstractAsyncContextManager[bytearray]:
        """Receive a body of a checked request, as `matchserve.api.body.received` does."""
        return received(request, max_bytes, self.budget, self.access.client(request))

    async def parse(
        self, request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Parse a body on a thread.

        Raises:
            DeadlineExceeded: no thread was free in time.
            MatchServeError: an error of `work`.
        """
        deadline: Deadline = request.state.deadline
        parsed = asyncio.ensure_future(self.run_in_thread(work, *args, **kwargs))
        parsed.add_done_callback(_retrieve)
        try:
            return await asyncio.wait_for(parsed, deadline.remaining_s())
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the request took longer than {deadline.seconds:g} s", limit=deadline.seconds
            ) from error

    async def run(self, request: Request, megapixels: float, work: Work[T]) -> T:
        """Wait for a slot and run `work` in it, as long as the client waits.

        Raises:
            MatchServeError: no slot, no time, the client is gone, or an error of `work`.
        """
        deadline: Deadline = request.state.deadline
        task = asyncio.ensure_future(self._admitted(request, megapixels, deadline, work))
        task.add_done_callback(_retrieve)
        departure = asyncio.ensure_future(_departure(request))
        departure.add_done_callback(_retrieve)
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
        """Send one patch through the default model, as a request would; callers share a probe.

        Raises:
            MatchServeError: the service cannot serve now.
        """
        if self.is_draining:
            raise ShuttingDown("the service is shutting down")
        if self.admission.is_stuck:
            raise CapacityError("every slot is held by a request that is past its deadline")
        if self._probing is None or self._probing.done():
            probe = self.model("").probe
            loop = asyncio.get_running_loop()
            self._probing = loop.run_in_executor(self._prober, probe, PROBE_TIMEOUT_S)
            self._probing.add_done_callback(_retrieve)
        await asyncio.shield(self._probing)

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run short work, such as parsing, on one of a few threads, without a slot."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._helpers, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Refuse new requests and stop the threads."""
        self.is_draining = True
        self.admission.close()
        if self._runner is not None:
            self._runner.stop()
        for executor in (self._executor, self._helpers, self._prober, self._second_image):
            executor.shutdown(wait=False, cancel_futures=True)
        self.decoders.close()
        for model in self.models.values():
            if isinstance(model, ServedModel):
                model.batcher.close()

    async def _admitted(
        self, request: Request, megapixels: float, deadline: Deadline, work: Work[T]
    ) -> T:
        clock = StageClock(deadline)
        slot = await self.admission.enter(megapixels, deadline.remaining_s(), request)
        lone_threads = self.settings.lone_threads()

        def threads() -> int:
            return lone_threads if slot.is_alone else 1

        call = Call(clock, threads)
        return await run_in_slot(self._executor, slot, deadline, lambda: work(call))

    async def _read_events(self, job: str, after: int) -> list[Event]:
        return (
            []
            if self.jobs is None
            else await self.run_in_thread(self.jobs.table.events, job, after)
        )

    def _load_models(self) -> Models:
        settings = self.settings
        resources = MatcherResources(
            settings.limits(), self.cache, self._second_image, self.decoders, detect_killable
        )
        options = LoadOptions(
            settings.models_dir,
            settings.provider,
            settings.batch_policy(),
            settings.device_options(),
            resources,
        )
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
        watch("requests_running", "Number of running requests.", lambda: self.admission.running)
        watch("requests_waiting", "Number of waiting requests.", lambda: self.admission.waiting)
        watch("inflight_bytes", "Size of all held request bodies.", lambda: self.budget.held)
        watch("feature_cache_bytes", "Size of cached features.", lambda: self.cache.bytes_held)
        watch("feature_store_bytes", "Size of stored features.", lambda: self.store.bytes_held)
        watch("decoder_kills", "Number of killed decoders.", lambda: self.decoders.kills)
        if self.jobs is not None:
            watch("jobs_queued", "Number of queued jobs.", lambda: self._job_count("queued"))
            watch("jobs_running", "Number of running jobs.", lambda: self._job_count("running"))
            watch("event_streams", "Number of open event streams.", lambda: self.events.readers)
        watch("queue_patches", "Number of patches that wait.", self._queue_depth)

    def _job_count(self, state: str) -> float:
        return 0 if self.jobs is None else self.jobs.table.counts().get(state, 0)

    def _queue_depth(self) -> float:
        models = [m for m in self.models.values() if isinstance(m, ServedModel)]
        return sum(model.batcher.depth for model in models)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an error as seen: nobody asks for it once the client has left."""
    if not future.cancelled():
        future.exception()


async def _departure(request: Request) -> None:
    """Return when the client closes the connection; its body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
