"""The server that is attacked."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from matchserve.pattern import generate
from tests.conftest import encoded
from tests.server_process import ServerProcess, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("attacked")
    with running_server(folder, receive_s=2, default_model="rootsift") as running:
        yield running


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def good() -> bytes:
    return encoded(generate((160, 120), seed=1))


@pytest.fixture(scope="session")
def idle_rss(server: ServerProcess, http: httpx.Client, good: bytes) -> int:
    assert http.post("/v1/match", files={"image0": good, "image1": good}).status_code == 200
    return server.rss()
