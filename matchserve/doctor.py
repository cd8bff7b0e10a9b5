"""Report what this machine offers and what will run on it."""

from __future__ import annotations

import importlib.util
import math
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from matchserve import defaults, gpu, hardware
from matchserve.errors import MatchServeError, ModelError
from matchserve.libraries import COLMAP_HINT, gpu_count, import_faiss, matching_device
from matchserve.limits import LIBRARY_LIMITS
from matchserve.matcher import Matcher
from matchserve.models import handcrafted
from matchserve.models.providers import PROVIDERS, import_onnxruntime, probe
from matchserve.models.registry import (
    list_models,
    load_descriptor,
    provider_for,
)
from matchserve.pattern import generate_pair
from matchserve.vision.nearest import DEVICE_MULTIPLY_ADDS
from matchserve.vision.tiles import detection_bytes

TRAIN_HINT = "pip install -e '.[cpu,train]' -c constraints.txt"
# Optional packages: module, what needs it, how to install it.
EXTRAS = (
    ("pycolmap", "matchserve reconstruct", COLMAP_HINT),
    ("torch", "python -m training", TRAIN_HINT),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `ok` is None for information without a verdict."""

    name: str
    ok: bool | None
    detail: str

    def fields(self) -> dict[str, Any]:
        """Return the line as a dictionary for JSON."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


def examine(models_dir: Path | None = None, provider: str = "auto") -> list[Check]:
    """Check processors, memory, libraries, devices and models, and run one match."""
    return [
        _processors(),
        _memory(),
        Check("python", None, f"{platform.python_version()} on {platform.machine()}"),
        Check("opencv", None, f"{cv2.__version__}, {cv2.getNumThreads()} threads"),
        _faiss(),
        _onnxruntime(),
        *_device(),
        _matching_place(),
        *(_extra(*extra) for extra in EXTRAS),
        *_models(models_dir, provider),
        _matching(models_dir, provider),
    ]


def _extra(module: str, purpose: str, remedy: str) -> Check:
    """Report whether an optional package is installed; to have none is no fault."""
    if importlib.util.find_spec(module) is None:
        return Check(module, None, f"not installed; for {purpose}: {remedy}")
    return Check(module, None, f"installed, for {purpose}")


def _processors() -> Check:
    quota = hardware.cgroup_cpu_quota()
    limit = f", container quota {quota:g}" if quota else ""
    return Check("processors", None, f"{hardware.available_cpus()} usable{limit}")


def _memory() -> Check:
    total = hardware.memory_limit_bytes()
    needed = 2 * detection_bytes(LIBRARY_LIMITS.max_pixels) / 1e9
    megapixels = LIBRARY_LIMITS.max_pixels / 1e6
    detail = f"{total / 1e9:.1f} GB; a pair of {megapixels:.0f} MP images takes {needed:.1f} GB"
    return Check("memory", None, detail)


def _faiss() -> Check:
    try:
        faiss = import_faiss()
    except MatchServeError as error:
        return Check("faiss", ok=False, detail=error.message)
    build = "GPU build" if hasattr(faiss, "StandardGpuResources") else "CPU build"
    return Check("faiss", ok=True, detail=f"{faiss.__version__}, {build}, {gpu_count()} devices")


def _onnxruntime() -> Check:
    try:
        ort = import_onnxruntime()
    except MatchServeError as error:
        return Check("onnxruntime", ok=False, detail=error.message)
    available = ", ".join(name.removesuffix("ExecutionProvider") for name in _providers())
    cuda = f", for CUDA {ort.cuda_version}" if getattr(ort, "cuda_version", "") else ""
    return Check("onnxruntime", ok=True, detail=f"{ort.__version__}{cuda}, built with {available}")


def _providers() -> list[str]:
    try:
        return list(import_onnxruntime().get_available_providers())
    except MatchServeError:
        return []


def _device() -> list[Check]:
    """Report the driver, each device and each CUDA library; to have none is no fault."""
    if PROVIDERS["cuda"] not in _providers():
        return [Check("cuda", None, f"not in this ONNX Runtime; for a GPU: {gpu.INSTALL_GPU}")]
    driver = gpu.find_driver()
    checks = [Check("driver", None, driver.problem or f"{driver.version}")]
    checks += [Check(f"device {i}", None, str(d)) for i, d in enumerate(driver.devices)]
    checks += [_library(loaded) for loaded in gpu.load_cuda_libraries()]
    try:
        return [*checks, Check("cuda", ok=True, detail=f"{probe('cuda')} runs")]
    except MatchServeError as error:
        return [*checks, Check("cuda", None, error.message)]


def _matching_place() -> Check:
    """Report what finds the nearest descriptors."""
    try:
        device = matching_device()
    except MatchServeError as error:
        return Check("matching", ok=False, detail=error.message)
    if device is None:
        return Check("matching", None, "FAISS on the CPU")
    rows = math.isqrt(DEVICE_MULTIPLY_ADDS // 128)
    return Check("matching", None, f"FAISS on device {device} from {rows} x {rows} descriptors on")


def _library(loaded: gpu.LoadedLibrary) -> Check:
    if loaded.path is None:
        return Check(loaded.library.name, ok=False, detail=f"missing: {loaded.remedy}")
    version = f"{loaded.version} " if loaded.version else ""
    return Check(loaded.library.name, ok=True, detail=f"{version}at {loaded.path}")


def _models(models_dir: Path | None, provider: str) -> list[Check]:
    checks = []
    for name, card in list_models(models_dir).items():
        if isinstance(card, ModelError):
            checks.append(Check(f"model {name}", ok=False, detail=card.message))
            continue
        try:
            descriptor = load_descriptor(
                name, models_dir=models_dir, provider=provider_for(name, provider)
            )
            detail = f"{card.dim}-d {card.kind}, runs on {descriptor.provider}"
            checks.append(Check(f"model {name}", ok=True, detail=detail))
        except MatchServeError as error:
            checks.append(Check(f"model {name}", ok=False, detail=error.message))
    return checks


def _matching(models_dir: Path | None, provider: str) -> Check:
    pattern0, pattern1, homography = generate_pair((640, 480), seed=1)
    try:
        # A custom models folder may lack the default model; the built-in ones always exist.
        has_default = defaults.MODEL in list_models(models_dir)
        matcher = (
            Matcher(defaults.MODEL, models_dir=models_dir, provider=provider)
            if has_default
            else Matcher(handcrafted.NAMES[-1])
        )
        start = time.perf_counter()
        result = matcher.match(pattern0, pattern1)
    except MatchServeError as error:
        return Check("a match", ok=False, detail=error.message)
    wall = time.perf_counter() - start
    points0, points1 = result.points()
    expected = cv2.perspectiveTransform(points0[None].astype(np.float64), homography)[0]
    correct = int((np.linalg.norm(expected - points1, axis=1) < 3).sum())
    detail = (
        f"{result.model}: {correct} of {len(result.matches)} matches correct on a generated "
        f"640x480 pair, {1e3 * wall:.0f} ms"
    )
    return Check("a match", ok=2 * correct > len(result.matches), detail=detail)
