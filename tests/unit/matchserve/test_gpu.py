"""What is found of the driver and of the CUDA libraries."""

from __future__ import annotations

import ctypes
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from matchserve import gpu
from tests.gpu import driver_stub


class FakeError(Exception):
    """Stands for pynvml.NVMLError."""


def fake_nvml(devices: int = 0, failure: str = "") -> Any:
    def start() -> None:
        if failure:
            raise FakeError(failure)

    return SimpleNamespace(
        NVMLError=FakeError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: devices,
        nvmlSystemGetDriverVersion=lambda: "550.54.14",
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda number: f"NVIDIA L{4 + number}",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=24_000_000_000),
        nvmlDeviceGetCudaComputeCapability=lambda _: [8, 9],
    )


def test_the_driver_names_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2))
    driver = gpu.find_driver()
    assert driver.version == "550.54.14"
    assert [str(device) for device in driver.devices] == [
        "NVIDIA L4, 24 GB, compute 8.9",
        "NVIDIA L5, 24 GB, compute 8.9",
    ]


def test_no_driver_and_no_package_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(failure="NVML Shared Library Not Found"))
    assert "no NVIDIA driver answers" in str(gpu.find_driver().problem)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert ".[gpu]" in str(gpu.find_driver().problem)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder of packages that has one CUDA library, and no other anywhere."""
    if driver_stub.compiler() is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "empty.c").write_text("int matchserve_test_library;\n")
    for name in ("libcudnn.so.9", "libmatchserve-test.so.1"):
        program = str(driver_stub.compiler())
        subprocess.run(
            [program, "-shared", f"-Wl,-soname,{name}", "-o", folder / name, tmp_path / "empty.c"],
            check=True,
        )
    monkeypatch.setattr(gpu, "_site_packages", lambda: tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "9.27.0")
    gpu.load_cuda_libraries.cache_clear()
    yield tmp_path
    gpu.load_cuda_libraries.cache_clear()


def test_libraries_are_found_in_packages_or_missing(packages: Path) -> None:
    *others, cudnn = gpu.load_cuda_libraries()
    assert cudnn.path == packages / "nvidia/cudnn/lib/libcudnn.so.9"
    assert cudnn.version == "9.27.0"
    assert all(loaded.path is None for loaded in others)
    assert [loaded.remedy for loaded in gpu.missing_libraries()][:2] == [
        "pip install nvidia-cuda-runtime-cu12",
        "pip install nvidia-cublas-cu12",
    ]


def test_a_library_that_is_loaded_already_is_found_by_its_name(packages: Path) -> None:
    name = "libmatchserve-test.so.1"
    path = packages / "nvidia/cudnn/lib" / name
    ctypes.CDLL(str(path))
    found = gpu._load(gpu.CudaLibrary(name, "none", "elsewhere"))
    assert found.path == path
    assert found.version is None


class FakeCudart:
    """cudaMallocHost and cudaFreeHost on ordinary memory."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.blocks: list[Any] = []
        self.freed: list[int] = []

    def cudaMallocHost(self, address: Any, size: Any) -> int:  # noqa: N802
        if self.status == 0:
            self.blocks.append(ctypes.create_string_buffer(size.value))
            address._obj.value = ctypes.addressof(self.blocks[-1])
        return self.status

    def cudaFreeHost(self, address: Any) -> None:  # noqa: N802
        self.freed.append(address.value)


def test_page_locked_memory_is_used_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = FakeCudart()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: cudart)
    array = gpu.page_locked_array((4, 3), np.float32)
    array[:] = 7
    assert array.ctypes.data == ctypes.addressof(cudart.blocks[0])
    assert array.shape == (4, 3)
    view = array[1:]
    del array
    assert not cudart.freed, "a view still uses it"
    del view
    assert cudart.freed == [ctypes.addressof(cudart.blocks[0])]


def test_without_page_locked_memory_a_plain_array_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.page_locked_array((2, 2), np.uint8).shape == (2, 2)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeCudart(status=2))
    assert gpu.page_locked_array((2, 2), np.uint8).shape == (2, 2)
