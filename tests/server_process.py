"""A real service in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

START_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """`matchserve serve` as anybody starts it."""

    def __init__(
        self,
        log: Path,
        *,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        module: str = "matchserve",
        **settings: object,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log
        if "models_dir" in settings:  # a folder of one's own lacks the shipped default
            settings = {"default_model": "rootsift", **settings}
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MATCHSERVE_")}
        set_here = {f"MATCHSERVE_{k.upper()}": str(v) for k, v in settings.items()}
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "serve", *options, "--port", str(self.port)],
                env={**clean, **set_here, **(variables or {}), "MATCHSERVE_LOG_FORMAT": "json"},
                cwd=cwd,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def wait_until_alive(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log()}")

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def rss(self) -> int:
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        return sum(process.memory_info().rss for process in tree)

    def cpu_s(self, *, with_children: bool = False) -> float:
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True) if with_children else []
        times = [process.cpu_times() for process in tree]
        return float(sum(t.user + t.system for t in times))

    def raw(self, data: bytes, timeout_s: float = 20.0) -> bytes:
        """Send bytes and read until the server closes or says nothing for a while."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            connection.sendall(data)
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while chunk := connection.recv(65536):
                    answer += chunk
            return answer

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@contextlib.contextmanager
def running_server(folder: Path, **settings: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(folder / f"server-{time.monotonic_ns()}.log", **settings)
    try:
        server.wait_until_alive()
        yield server
    finally:
        server.stop()
