"""A service in this process, over real HTTP, whose inside a test can reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from matchserve.api.app import create_app
from matchserve.api.service import Service
from matchserve.settings import Settings


@contextmanager
def served(**settings: Any) -> Iterator[tuple[httpx.Client, Service]]:
    if "models_dir" in settings:  # a folder of one's own lacks the shipped default
        settings = {"default_model": "rootsift", **settings}
    app = create_app(Settings(**settings))
    config = uvicorn.Config(app, port=0, log_config=None, ws="none", http="h11")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 30
        while not server.started and time.monotonic() < end:
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client, app.state.service
    finally:
        server.should_exit = True
        thread.join()
