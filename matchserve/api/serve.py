"""Run the service on a socket until a signal stops it (`matchserve serve`)."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn import _subprocess
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from matchserve.api import logs
from matchserve.api.app import create_app
from matchserve.api.protocol import BoundedProtocol, ConnectionLimits, set_limits
from matchserve.errors import MatchServeError, ModelError
from matchserve.memory import share_heaps
from matchserve.settings import Settings, load_settings, to_environment

MAX_HEADER_BYTES = 65_536
# Longest wait of the event loop for a thread that computes; Python's default is 5 ms.
SWITCH_INTERVAL_S = 0.001
EXIT_BIND = 1
RETRY_MODEL_S = 10.0
"""Time after which a worker that could not load the default model is started again."""

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, finish the accepted requests, and return the exit code.

    Raises:
        MatchServeError: the service cannot start with these settings.
    """
    logs.configure(settings.log_format)
    settings.keys()  # fail here once, and not in each worker
    _raise_file_limit()
    if settings.workers > 1:
        return _serve_processes(settings)
    _prepare_process(settings)
    server = DrainingServer(_config(settings, factory=False))
    server.run()
    if not server.started:
        return EXIT_BIND
    _leave(0)
    return 0


class DrainingServer(uvicorn.Server):
    """On a signal, report that it is not ready, finish the accepted requests, and exit with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again, as uvicorn does: the exit code is 0."""
        signals = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish the accepted requests; a second signal ends the process at once."""
        if self.should_exit:
            _leave(128 + sig)
        app = _application(self.config)
        if app is not None:
            app.state.service.is_draining = True
        _log.info("draining: no new connections, up to %d s for accepted requests",
                  self.config.timeout_graceful_shutdown or 0)  # fmt: skip
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections, also those that are accepted while the others are closed."""
        BoundedProtocol.is_shutting_down = True
        try:
            await super().shutdown(sockets)
        finally:
            BoundedProtocol.is_shutting_down = False


class WorkerServer(DrainingServer):
    """Server of a worker process; the parent process ends it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignore SIGINT: Ctrl-C reaches all processes, and the SIGTERM of the parent follows."""
        if sig != signal.SIGINT:
            super().handle_exit(sig, frame)


class DrainingProcess(multiprocess.Process):
    """Worker process that finishes accepted requests, and that ends when its parent does."""

    @property
    def server(self) -> uvicorn.Server:
        """Return the server that runs in the worker."""
        if self._server is None:
            self._server = WorkerServer(self.config)
        return self._server

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; this runs in the worker."""
        threading.Thread(target=_end_with_parent, name="matchserve-parent", daemon=True).start()
        super().target(sockets)
        _leave(0)


def _end_with_parent() -> None:
    """Stop when the parent has ended; otherwise a new parent could not bind the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


class DrainingProcesses(multiprocess.Multiprocess):
    """Parent process that starts, replaces and ends the workers."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._failed_at: dict[int, float] = {}

    def exit_code(self) -> int:
        """Return 0, or the code for a second signal or for workers that cannot start."""
        if self.signal_queue:
            return 128 + self.signal_queue[0]
        failures = (STARTUP_FAILURE, ModelError.exit_code)
        has_failed = any(worker.exitcode in failures for worker in self.processes)
        return ModelError.exit_code if has_failed else 0

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended; retry one that could not load the model after a while.

        A worker without the default model ends, because the others can serve its requests.
        """
        lacking = [w.exitcode == ModelError.exit_code for w in self.processes]
        if all(lacking):
            _log.error("no worker can load the default model")
            self.should_exit.set()
            return
        now = time.monotonic()
        kept = list(self.processes)
        for index, is_lacking in enumerate(lacking):
            if is_lacking and now - self._failed_at.setdefault(index, now) >= RETRY_MODEL_S:
                del self._failed_at[index]
                lacking[index] = False
        self.processes = [w for w, is_lacking in zip(kept, lacking, strict=True) if not is_lacking]
        super().keep_subprocess_alive()
        replaced = iter(self.processes)
        self.processes = [
            w if is_lacking else next(replaced) for w, is_lacking in zip(kept, lacking, strict=True)
        ]

    def join_all(self) -> None:
        """Wait until the workers have ended; a second signal kills them."""
        while any(worker.process.is_alive() for worker in self.processes):
            if self.signal_queue:
                for worker in self.processes:
                    worker.process.kill()
            time.sleep(0.05)
        super().join_all()


def worker_app() -> FastAPI:
    """Create the application of a worker from the environment that `serve` has set."""
    settings = load_settings()
    logs.configure(settings.log_format)
    _prepare_process(settings)
    try:
        app = create_app(settings)
        app.state.service.model("")
        return app
    except ModelError as error:
        _log.error("this worker cannot serve: %s", error.message)
        _leave(error.exit_code)
        raise
    except MatchServeError as error:
        # The next worker would fail too: this exit code tells the parent to stop.
        _log.error("cannot serve: %s", error.message)
        sys.exit(STARTUP_FAILURE)


def _serve_processes(settings: Settings) -> int:
    """Run several worker processes on one socket."""
    os.environ.update(to_environment(settings))
    config = _config(settings, factory=True)
    sock = config.bind_socket()
    _start_workers_fast()
    multiprocess.Process = DrainingProcess  # type: ignore[misc]  # uvicorn has no option for it
    parent = DrainingProcesses(config, sockets=[sock])
    parent.run()
    return parent.exit_code()


def _start_workers_fast() -> None:
    """Fork workers from a process that has imported all modules and started no threads.

    Imports take most of the time in which a killed worker is replaced.
    Workers import FAISS and ONNX Runtime themselves: a GPU cannot be used after a fork.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["matchserve.cli", __name__])
    _subprocess.spawn = context  # type: ignore[assignment]


def _application(config: uvicorn.Config) -> FastAPI | None:
    """Return the application, without the layers that uvicorn adds."""
    app = getattr(config, "loaded_app", None)
    while app is not None and not isinstance(app, FastAPI):
        app = getattr(app, "app", None)
    return app


def _config(settings: Settings, *, factory: bool) -> uvicorn.Config:
    app = "matchserve.api.serve:worker_app" if factory else create_app(settings)
    return uvicorn.Config(
        app,
        factory=factory,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        http=BoundedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies()),
        forwarded_allow_ips=list(settings.proxies()),
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.drain_s,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )


def _prepare_process(settings: Settings) -> None:
    share_heaps(max(2, settings.cpus()))
    set_limits(
        ConnectionLimits(
            receive_s=settings.receive_s,
            send_s=settings.send_s,
            per_address=settings.max_connections_per_address
            or max(1, settings.max_connections // 4),
            trusted_proxies=settings.proxies(),
        )
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def _raise_file_limit() -> None:
    """Raise the limit of open files, which includes connections, to the maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leave(code: int) -> None:
    """End the process at once; a thread that hangs in a model would delay a normal exit."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
