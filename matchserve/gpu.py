"""The NVIDIA driver, its devices, and the CUDA libraries that ONNX Runtime and FAISS load."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import re
import sysconfig
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

INSTALL_GPU = "pip install '.[gpu]' -c constraints.txt -c constraints-gpu.txt"
# CUDA 12 runs on any driver from this version on (NVIDIA's minor version compatibility).
MIN_DRIVER = "525.60"


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """A shared library, the package that has it, and the package's folder below `nvidia/`."""

    name: str
    package: str
    folder: str


# In the order of loading: each needs only those before it.
CUDA_LIBRARIES = (
    CudaLibrary("libcudart.so.12", "nvidia-cuda-runtime-cu12", "cuda_runtime"),
    CudaLibrary("libcublasLt.so.12", "nvidia-cublas-cu12", "cublas"),
    CudaLibrary("libcublas.so.12", "nvidia-cublas-cu12", "cublas"),
    CudaLibrary("libcurand.so.10", "nvidia-curand-cu12", "curand"),
    CudaLibrary("libcufft.so.11", "nvidia-cufft-cu12", "cufft"),
    CudaLibrary("libnvrtc.so.12", "nvidia-cuda-nvrtc-cu12", "cuda_nvrtc"),
    CudaLibrary("libcudnn.so.9", "nvidia-cudnn-cu12", "cudnn"),
)


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """Where a library was found and in which version; `path` is None when it is missing."""

    library: CudaLibrary
    path: Path | None
    version: str | None

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return f"pip install {self.library.package}"


@functools.cache
def load_cuda_libraries() -> tuple[LoadedLibrary, ...]:
    """Load the CUDA libraries of the installed wheels, or of the system, into this process.

    Wheels put them where the dynamic linker does not look; a library that is loaded already
    is found by its name. `onnxruntime.preload_dlls` does the same and prints to standard output.
    """
    return tuple(_load(library) for library in CUDA_LIBRARIES)


def missing_libraries() -> list[LoadedLibrary]:
    """List the CUDA libraries that were not found."""
    return [loaded for loaded in load_cuda_libraries() if loaded.path is None]


def _load(library: CudaLibrary) -> LoadedLibrary:
    packaged = _site_packages() / "nvidia" / library.folder / "lib" / library.name
    for name in (packaged, Path(library.name)):
        try:
            ctypes.CDLL(str(name))
        except OSError:
            continue
        if name == packaged:
            return LoadedLibrary(library, packaged, importlib.metadata.version(library.package))
        return LoadedLibrary(library, _mapped_file(library.name), None)
    return LoadedLibrary(library, None, None)


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _mapped_file(name: str) -> Path:
    """Return the file from which the dynamic linker took a loaded library."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    match = re.search(rf"\s(/\S*/{re.escape(name)}[\d.]*)$", maps, re.MULTILINE)
    return Path(match[1]) if match else Path(name)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU; `compute` is its compute capability, e.g. (8, 9)."""

    name: str
    memory_bytes: int
    compute: tuple[int, int]

    def __str__(self) -> str:
        major, minor = self.compute
        return f"{self.name}, {self.memory_bytes / 1e9:.0f} GB, compute {major}.{minor}"


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: its version and devices, or why there is none."""

    version: str | None
    devices: tuple[Device, ...]
    problem: str | None = None


def find_driver() -> Driver:
    """Ask the driver for its version and devices; starts no CUDA context."""
    try:
        import pynvml
    except ImportError:
        return Driver(None, (), f"nvidia-ml-py is not installed; {INSTALL_GPU}")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(None, (), f"no NVIDIA driver answers: {error}")
    try:
        count = pynvml.nvmlDeviceGetCount()
        devices = tuple(_device(pynvml, number) for number in range(count))
        return Driver(str(pynvml.nvmlSystemGetDriverVersion()), devices)
    except pynvml.NVMLError as error:
        return Driver(None, (), f"the NVIDIA driver fails: {error}")
    finally:
        pynvml.nvmlShutdown()


def _device(pynvml: Any, number: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    return Device(
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )


def page_locked_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Allocate an array that a device reads and writes directly; a plain one without CUDA."""
    plain = np.empty(shape, dtype)
    address = ctypes.c_void_p()
    try:
        cudart = ctypes.CDLL(CUDA_LIBRARIES[0].name)
        status = cudart.cudaMallocHost(ctypes.byref(address), ctypes.c_size_t(plain.nbytes))
    except OSError:
        return plain
    if status != 0 or not address.value:
        return plain
    memory = (ctypes.c_uint8 * plain.nbytes).from_address(address.value)
    weakref.finalize(memory, cudart.cudaFreeHost, address)
    return np.ndarray(shape, dtype, memoryview(memory))


# Numbers of cudaError_t, https://docs.nvidia.com/cuda/cuda-runtime-api.
_INSUFFICIENT_DRIVER, _NO_DEVICE, _NO_SUCH_DEVICE = 35, 100, 101


def explain_failure(cause: str, built_for: str) -> str:
    """Say why a CUDA session did not start, from its error and the CUDA version it is built for."""
    if built_for and not built_for.startswith("12."):
        return (
            f"this ONNX Runtime is built for CUDA {built_for}, "
            "and CUDA 12 is what is supported here: pip install 'onnxruntime-gpu<1.27'"
        )
    if missing := missing_libraries():
        names = ", ".join(loaded.library.name for loaded in missing)
        packages = " ".join(dict.fromkeys(loaded.library.package for loaded in missing))
        return f"library missing: {names}; pip install {packages}"
    if not _has_driver_library():
        return (
            "no device: the NVIDIA driver (libcuda.so.1) is not installed, "
            "or the container was started without it (docker run --gpus all)"
        )
    failure = re.search(r"CUDA failure (\d+): ([^;]+)", cause)
    if failure and int(failure[1]) == _NO_DEVICE:
        return "no device: the driver sees none (compare nvidia-smi and CUDA_VISIBLE_DEVICES)"
    if failure and int(failure[1]) == _INSUFFICIENT_DRIVER:
        return f"no device: the driver is older than {MIN_DRIVER}, which CUDA 12 needs"
    if failure and int(failure[1]) == _NO_SUCH_DEVICE:
        return "no device of that number; `matchserve doctor` lists the devices"
    return failure[2].strip() if failure else "no usable device was found"


def _has_driver_library() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
