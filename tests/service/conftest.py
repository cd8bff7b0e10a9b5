"""One real server for all tests of this folder, and pairs of images to send to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from matchserve.types import UInt8
from tests.conftest import encoded
from tests.server_process import ServerProcess, running_server
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / "tiny")
    write_tiny_model(folder / "tiny-bits", kind="binary")
    return folder


@pytest.fixture(scope="session")
def server(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, models_dir=models_dir, receive_s=3) as running:
        yield running


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def jpeg(photograph: UInt8) -> bytes:
    return encoded(photograph[:360, :400], "JPEG", quality=92)


@pytest.fixture(scope="session")
def turned_jpeg(photograph: UInt8) -> bytes:
    """The same scene, turned by 25 degrees."""
    turn = cv2.getRotationMatrix2D((200, 180), 25, 0.9)
    turned = cv2.warpAffine(photograph[:360, :400], turn, (400, 360))
    return encoded(np.asarray(turned, np.uint8), "JPEG", quality=92)


@pytest.fixture(scope="session")
def pair(jpeg: bytes, turned_jpeg: bytes) -> dict[str, bytes]:
    return {"image0": jpeg, "image1": turned_jpeg}
