"""Models that are damaged on disk, or fail while they run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from matchserve.api.service import Service
from matchserve.engine.batcher import BatchPolicy
from matchserve.engine.served_models import ServedModel
from matchserve.models.card import CARD_FILE, MODEL_FILE, read_card, write_card
from matchserve.models.onnx_model import OnnxDescriptor
from tests.in_process import served
from tests.patience import GUARD_S, wait_until
from tests.tiny_models import write_tiny_model

PATCHES = np.random.default_rng(0).integers(0, 256, (8, 32, 32), np.uint8).tobytes()
OCTETS = {"Content-Type": "application/octet-stream"}


def truncated(sixteenths: int) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        data = (model / MODEL_FILE).read_bytes()
        (model / MODEL_FILE).write_bytes(data[: len(data) * sixteenths // 16])

    return damage


def flipped(model: Path) -> None:
    data = bytearray((model / MODEL_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (model / MODEL_FILE).write_bytes(data)


def a_directory(model: Path) -> None:
    (model / MODEL_FILE).unlink()
    (model / MODEL_FILE).mkdir()


def missing(model: Path) -> None:
    (model / MODEL_FILE).unlink()


def bad_card(model: Path) -> None:
    (model / CARD_FILE).write_text("{", encoding="utf-8")


def wrong_sha(model: Path) -> None:
    write_card(read_card(model).model_copy(update={"sha256": "0" * 64}), model)


def wrong_dim(model: Path) -> None:
    write_card(read_card(model).model_copy(update={"dim": 32}), model)


DAMAGES = {
    **{f"cut-{n}": truncated(n) for n in range(16)},
    "flipped": flipped,
    "directory": a_directory,
    "missing": missing,
    "bad-card": bad_card,
    "wrong-sha": wrong_sha,
    "wrong-dim": wrong_dim,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_is_not_ready_and_harms_no_other(tmp_path: Path, name: str) -> None:
    write_tiny_model(tmp_path / "good")
    DAMAGES[name](write_tiny_model(tmp_path / "broken"))
    with served(models_dir=tmp_path) as (client, _):
        assert client.get("/readyz").json()["models"]["broken"] == "not_ready"
        answer = client.post("/v1/patches?model=broken", content=PATCHES, headers=OCTETS)
        assert answer.status_code == 503
        assert answer.json()["code"].startswith("model_")
        assert "broken" in answer.json()["detail"]
        assert str(tmp_path) not in answer.text
        good = client.post("/v1/patches?model=good", content=PATCHES, headers=OCTETS)
        assert good.status_code == 200
    with served(models_dir=tmp_path, default_model="broken") as (client, _):
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_strict_refuses_to_start(tmp_path: Path, workers: str) -> None:
    flipped(write_tiny_model(tmp_path / "broken"))
    done = subprocess.run(
        [sys.executable, "-m", "matchserve", "serve", "--strict", "--port", "0",
         "--models-dir", str(tmp_path), "--default-model", "sift", "--workers", workers],
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 78
    assert "broken" in done.stderr
    assert "Traceback" not in done.stderr


class FakeSession:
    """ONNX Runtime having a bad day."""

    def __init__(self, real: Any, run: Callable[[Any], Any]) -> None:
        self._real, self._run = real, run

    def run(self, outputs: list[str], feed: dict[str, Any]) -> Any:
        return self._run(lambda: self._real.run(outputs, feed))


@contextmanager
def serving_fake(
    tmp_path: Path, run: Callable[[Any], Any], **settings: Any
) -> Iterator[tuple[httpx.Client, Service, list[int]]]:
    """A service whose model `fake` runs through `run`, until it is opened a second time."""
    write_tiny_model(tmp_path / "tiny")
    opened: list[int] = []

    def make() -> OnnxDescriptor:
        descriptor = OnnxDescriptor(tmp_path / "tiny", threads=1)
        opened.append(1)
        if len(opened) == 1:
            descriptor._session = FakeSession(descriptor._session, run)
        return descriptor

    (tmp_path / "none").mkdir()
    with served(models_dir=tmp_path / "none", **settings) as (client, service):
        policy = BatchPolicy(lanes=1, stuck_s=0.5 * service.settings.deadline_s)
        service.models["fake"] = ServedModel(make, policy)
        yield client, service, opened


def ask(client: httpx.Client, model: str = "fake") -> Any:
    return client.post(f"/v1/patches?model={model}", content=PATCHES, headers=OCTETS)


def test_a_session_that_raises_is_503_and_is_opened_anew(tmp_path: Path) -> None:
    def run(real: Any) -> Any:
        raise RuntimeError("[ONNXRuntimeError] : /secret/path : FAIL")

    with serving_fake(tmp_path, run) as (client, _, opened):
        for _ in range(3):
            answer = ask(client)
            assert (answer.status_code, answer.json()["code"]) == (503, "inference_failed")
            assert "secret" not in answer.text
            assert ask(client, "rootsift").status_code == 200
        wait_until(lambda: len(opened) >= 2)
        assert len(opened) == 2
        assert ask(client).status_code == 200


def test_nan_is_never_an_answer(tmp_path: Path) -> None:
    def run(real: Any) -> Any:
        (rows,) = real()
        return [np.full_like(rows, np.nan)]

    with serving_fake(tmp_path, run) as (client, _, _):
        answer = ask(client)
        assert (answer.status_code, answer.json()["code"]) == (503, "inference_failed")


def test_a_hanging_session_costs_one_deadline(tmp_path: Path) -> None:
    release = threading.Event()
    calls: list[int] = []

    def run(real: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            release.wait(2 * GUARD_S)
        return real()

    with serving_fake(tmp_path, run, deadline_s=1.0) as (client, service, _):
        answer = ask(client)
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
        # The first session still hangs. On a busy machine a second may not suffice.
        wait_until(lambda: ask(client).status_code == 200)
        assert not release.is_set()
        assert (service.admission.running, service.admission.waiting) == (0, 0)
        release.set()


def test_an_unexpected_error_is_500_without_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(models_dir=tmp_path) as (client, service):

        def broken(name: str) -> None:
            raise ZeroDivisionError("/a/path/to.py")

        monkeypatch.setattr(service, "model", broken)
        answer = ask(client, "rootsift")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "path" not in answer.text.replace("application", "")
        assert answer.headers["x-request-id"] == answer.json()["request_id"]
