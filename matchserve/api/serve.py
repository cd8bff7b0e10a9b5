"""`matchserve serve`: the service on a socket, until it is told to stop."""

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
# The event loop waits for a busy thread this long before it may go on; 5 ms is the default.
SWITCH_INTERVAL_S = 0.001
EXIT_BIND = 1
RETRY_MODEL_S = 10.0
"""Time after which a worker that could not load the default model is started again."""

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, finish what was taken, and return the exit code.

    Raises:
        MatchServeError: it cannot serve with these settings.
    """
    logs.configure(settings.log_format)
    settings.keys()  # an error here, not in each worker
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
    """Says at once that it is not ready, serves what it took, and then ends with success."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like the original, which raises the signal again at the end: exit code -15, not 0."""
        signals = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains; a second one ends the process at once."""
        if self.should_exit:
            _leave(128 + sig)
        app = _application(self.config)
        if app is not None:
            app.state.service.is_draining = True
        _log.info("draining: no new connections, up to %d s for what was taken",
                  self.config.timeout_graceful_shutdown or 0)  # fmt: skip
        self.should_exit = True


class WorkerServer(DrainingServer):
    """The server of one of several processes; the parent tells it when to end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C reaches every process, and the parent's SIGTERM would be the second signal."""
        if sig != signal.SIGINT:
            super().handle_exit(sig, frame)


class DrainingProcess(multiprocess.Process):
    """A worker that drains and ends as a single process does, and that ends with its parent."""

    @property
    def server(self) -> uvicorn.Server:
        """The server that runs in the worker."""
        if self._server is None:
            self._server = WorkerServer(self.config)
        return self._server

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, in the worker."""
        threading.Thread(target=_end_with_parent, name="matchserve-parent", daemon=True).start()
        super().target(sockets)
        _leave(0)


def _end_with_parent() -> None:
    """Drain when the parent is gone: a new parent could not have the port otherwise."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


class DrainingProcesses(multiprocess.Multiprocess):
    """The parent of several workers."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._failed_at: dict[int, float] = {}

    def exit_code(self) -> int:
        """Return 0, or why it ended: a second signal, or workers that cannot start."""
        if self.signal_queue:
            return 128 + self.signal_queue[0]
        failures = (STARTUP_FAILURE, ModelError.exit_code)
        has_failed = any(worker.exitcode in failures for worker in self.processes)
        return ModelError.exit_code if has_failed else 0

    def keep_subprocess_alive(self) -> None:
        """Replace dead workers; one that lacks its model is tried again later.

        A worker without its default model would take requests that the others can serve.
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
        """Wait for the workers to drain; a second signal ends them at once."""
        while any(worker.process.is_alive() for worker in self.processes):
            if self.signal_queue:
                for worker in self.processes:
                    worker.process.kill()
            time.sleep(0.05)
        super().join_all()


def worker_app() -> FastAPI:
    """The application of one worker process, from the environment that `serve` prepared."""
    settings = load_settings()
    logs.configure(settings.log_format)
    _prepare_process(settings)
    try:
        app = create_app(settings)
        app.state.service.model("")
        return app
    except ModelError as error:
        _log.error("this worker does not serve: %s", error.message)
        _leave(error.exit_code)
        raise
    except MatchServeError as error:
        # The next worker would fail the same way: this code tells the parent to give up.
        _log.error("cannot serve: %s", error.message)
        sys.exit(STARTUP_FAILURE)


def _serve_processes(settings: Settings) -> int:
    """Several processes on one socket; one that dies is replaced."""
    os.environ.update(to_environment(settings))
    config = _config(settings, factory=True)
    sock = config.bind_socket()
    _start_workers_fast()
    multiprocess.Process = DrainingProcess  # type: ignore[misc]  # there is no other way in
    parent = DrainingProcesses(config, sockets=[sock])
    parent.run()
    return parent.exit_code()


def _start_workers_fast() -> None:
    """Fork workers from a process that has imported everything and run nothing.

    Most of the time in which a worker starts is imports, and a killed one is missed meanwhile.
    FAISS and ONNX Runtime are left to the workers: a GPU does not survive a fork.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["matchserve.cli", __name__])
    _subprocess.spawn = context  # type: ignore[assignment]


def _application(config: uvicorn.Config) -> FastAPI | None:
    """The application inside whatever uvicorn has wrapped around it."""
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
    """Every connection is a file; take as many as we are allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leave(code: int) -> None:
    """End now: a thread that hangs in a model would keep the interpreter from leaving."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
