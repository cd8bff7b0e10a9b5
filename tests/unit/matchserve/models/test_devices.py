"""A learned descriptor on devices that ONNX Runtime's CPU stands in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matchserve.engine.batcher import BatchPolicy
from matchserve.engine.served_models import ServedModel, policy_for
from matchserve.errors import DeviceLost, DeviceOutOfMemory, ProviderUnavailable
from matchserve.models import model_files
from matchserve.models.execution import CPU_BATCH, DEVICE_BATCH, DeviceOptions
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.providers import Placement, ProviderChoice, start_session
from matchserve.settings import Settings

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class DeviceSession:
    """A real session that says it runs on a device, and counts its batches."""

    def __init__(self, session: Any, number: int, machine: Machine) -> None:
        self._session, self._number, self._machine = session, number, machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]

    def run_with_iobinding(self, binding: Any) -> None:
        if self._machine.failure:
            raise RuntimeError(self._machine.failure)
        self._machine.batches.append(self._number)
        self._session.run_with_iobinding(binding)


class Machine:
    """A machine with some devices."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.placements: list[tuple[str, Placement]] = []
        self.batches: list[int] = []
        self.failure = ""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(2)
    real = start_session

    def start(model: bytes, choice: ProviderChoice, threads: int, placement: Placement) -> Any:
        made.placements.append((choice, placement))
        if placement.device >= made.devices:
            raise ProviderUnavailable("no device of that number")
        return DeviceSession(real(model, "cpu", threads), placement.device, made)

    monkeypatch.setattr(model_files, "start_session", start)
    return made


def patches(descriptor: OnnxDescriptor, count: int) -> np.ndarray:
    size = descriptor.card.patch.size
    return np.random.default_rng(0).integers(0, 256, (count, 1, size, size), np.uint8)


@pytest.mark.parametrize("fixture", ["tiny_model", "tiny_binary_model"])
def test_rows_are_those_of_the_cpu(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    directory: Path = request.getfixturevalue(fixture)
    on_device = OnnxDescriptor(directory, provider="auto", threads=1)
    given = patches(on_device, 300)
    rows = on_device.describe_patches(given)
    assert on_device.provider == CUDA
    assert on_device.batch == DEVICE_BATCH
    monkeypatch.undo()
    on_cpu = OnnxDescriptor(directory, provider="cpu", threads=1)
    assert on_cpu.batch == CPU_BATCH
    np.testing.assert_array_equal(rows, on_cpu.describe_patches(given))


def test_each_device_has_a_session_and_is_used(tiny_model: Path, machine: Machine) -> None:
    options = DeviceOptions((0, 1), batch=50, engine_cache=tiny_model)
    descriptor = OnnxDescriptor(tiny_model, provider="auto", threads=1, devices=options)
    size = descriptor.card.patch.size
    # `auto` would take the CPU for a second device that does not run.
    assert [choice for choice, _ in machine.placements] == ["auto", "cuda"]
    assert machine.placements[1][1] == Placement(1, (size, 50), tiny_model)
    assert descriptor.concurrency == 4
    held = [descriptor._devices._take() for _ in range(2)]  # type: ignore[union-attr]
    numbers = {session._session._number for session in held}
    descriptor.describe_patches(patches(descriptor, 120))
    assert len(numbers | set(machine.batches)) == 2


def test_a_device_that_is_not_there_is_an_error(tiny_model: Path, machine: Machine) -> None:
    with pytest.raises(ProviderUnavailable, match="that number"):
        OnnxDescriptor(tiny_model, provider="auto", threads=1, devices=DeviceOptions((0, 2)))


def test_failures_of_a_device_are_typed(tiny_model: Path, machine: Machine) -> None:
    descriptor = OnnxDescriptor(tiny_model, provider="cuda", threads=1)
    machine.failure = "CUDA failure 2: out of memory ; GPU=0"
    with pytest.raises(DeviceOutOfMemory):
        descriptor.describe_patches(patches(descriptor, 100))
    machine.failure = "CUDA failure 719: unspecified launch failure ; GPU=0"
    with pytest.raises(DeviceLost):
        descriptor.describe_patches(patches(descriptor, 1))


def test_the_service_feeds_a_device_with_larger_batches(tiny_model: Path, machine: Machine) -> None:
    policy = BatchPolicy(lanes=8, max_patches=64)
    served = ServedModel(lambda: OnnxDescriptor(tiny_model, provider="auto", threads=1), policy)
    try:
        assert (served.batcher.policy.lanes, served.batcher.policy.max_patches) == (2, DEVICE_BATCH)
        served.probe(10)
    finally:
        served.batcher.close()


def test_the_cpu_keeps_its_policy(tiny_model: Path) -> None:
    policy = BatchPolicy(lanes=3, max_patches=32)
    assert policy_for(OnnxDescriptor(tiny_model, provider="cpu", threads=1), policy) == policy


def test_settings_name_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATCHSERVE_DEVICES", "0,1,1")
    monkeypatch.setenv("MATCHSERVE_BATCH_PATCHES", "512")
    settings = Settings()
    assert settings.device_options() == DeviceOptions((0, 1), 512, None)
    assert Settings(threads=4).slots().running == 4
    assert Settings(threads=4, provider="cuda").slots().running == 8
    with pytest.raises(ValueError, match="devices"):
        Settings(devices="first")
