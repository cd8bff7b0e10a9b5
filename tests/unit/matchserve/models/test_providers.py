"""Which provider runs: the one asked for, or an error that says what to do."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matchserve import gpu
from matchserve.errors import InvalidParameter, ProviderUnavailable
from matchserve.models import providers
from matchserve.models.providers import Placement

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"


@pytest.mark.parametrize(
    ("choice", "available", "expected"),
    [
        ("auto", [CPU], [CPU]),
        ("auto", ["AzureExecutionProvider", CPU], [CPU]),
        ("auto", ["TensorrtExecutionProvider", CUDA, CPU], [CUDA, CPU]),
        ("cpu", [CUDA, CPU], [CPU]),
        ("cuda", [CUDA, CPU], [CUDA, CPU]),
        ("tensorrt", [TENSORRT, CUDA, CPU], [TENSORRT, CUDA, CPU]),
    ],
)
def test_providers_are_asked_for_in_order(
    choice: str, available: list[str], expected: list[str]
) -> None:
    assert providers.requested_providers(choice, available) == expected


def test_absent_or_unknown_providers_are_refused() -> None:
    with pytest.raises(ProviderUnavailable, match=r"only CPUExecutionProvider.*\.\[gpu\]"):
        providers.requested_providers("cuda", [CPU])
    with pytest.raises(InvalidParameter, match="tpu"):
        providers.requested_providers("tpu", [CPU])


class FakeRuntime(SimpleNamespace):
    """An ONNX Runtime built for CUDA, on a machine where CUDA does what `outcome` says."""

    def __init__(self, outcome: str, *, cuda_version: str = "12.8") -> None:
        super().__init__(cuda_version=cuda_version, __version__="1.26.0")
        self.outcome = outcome
        self.started: list[list[str]] = []
        self.options: dict[str, str] = {}

    def get_available_providers(self) -> list[str]:
        return ["TensorrtExecutionProvider", CUDA, CPU]

    def set_default_logger_severity(self, level: int) -> None:
        assert level == 4

    def SessionOptions(self) -> Any:  # noqa: N802  the name of ONNX Runtime
        return SimpleNamespace(add_session_config_entry=lambda _key, _value: None)

    def InferenceSession(  # noqa: N802
        self, _model: bytes, _options: Any, *, providers: list[Any], enable_fallback: int = 1
    ) -> Any:
        names = [p if isinstance(p, str) else p[0] for p in providers]
        self.started.append(names)
        if names[0] == CPU:
            return SimpleNamespace(get_providers=lambda: [CPU])
        assert enable_fallback == 0, "the fallback prints to standard output"
        self.options = dict(providers[0][1])
        if self.outcome.startswith("CUDA failure"):
            raise RuntimeError(f"cuda_call.cc:122 {self.outcome} ; GPU=-1 ; hostname=vm")
        running = {"runs": names, "no tensorrt": [CUDA, CPU]}.get(self.outcome, [CPU])
        return SimpleNamespace(get_providers=lambda: running)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `providers` see a fake runtime, with these libraries missing and this driver."""

    def build(runtime: FakeRuntime, *, missing: tuple[str, ...] = (), driver: bool = True) -> None:
        found = tuple(
            gpu.LoadedLibrary(library, None if library.name in missing else Path("/x"), "1")
            for library in gpu.CUDA_LIBRARIES
        )
        monkeypatch.setattr(providers, "import_onnxruntime", lambda: runtime)
        monkeypatch.setattr(gpu, "load_cuda_libraries", lambda: found)
        monkeypatch.setattr(providers, "load_cuda_libraries", lambda: found)
        monkeypatch.setattr(gpu, "_has_driver_library", lambda: driver)
        providers._say_once.cache_clear()

    return build


def test_a_device_that_runs_is_used(machine: Any) -> None:
    runtime = FakeRuntime("runs")
    machine(runtime)
    assert providers.probe("cuda") == CUDA
    assert providers.probe("auto") == CUDA
    assert runtime.options["use_tf32"] == "0"


def test_tensorrt_prepares_for_its_batches_and_keeps_its_engines(machine: Any) -> None:
    runtime = FakeRuntime("runs")
    machine(runtime)
    placement = Placement(1, (48, 2048), Path("/engines"))
    providers.start_session(b"", "tensorrt", 1, placement)
    assert runtime.started == [[TENSORRT, CUDA, CPU]]
    assert runtime.options["device_id"] == "1"
    assert runtime.options["trt_profile_min_shapes"] == "patches:1x1x48x48"
    assert runtime.options["trt_profile_max_shapes"] == "patches:2048x1x48x48"
    assert runtime.options["trt_engine_cache_path"] == "/engines"
    assert "trt_engine_cache_enable" not in Placement().options(TENSORRT)


def test_tensorrt_that_is_not_installed_is_named(machine: Any) -> None:
    machine(FakeRuntime("no tensorrt"))
    with pytest.raises(ProviderUnavailable, match=r"libnvinfer\.so\.10"):
        providers.probe("tensorrt")


NO_DEVICE = "CUDA failure 100: no CUDA-capable device is detected"
OLD_DRIVER = "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version"


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (NO_DEVICE, {}, "no device: the driver sees none"),
        (OLD_DRIVER, {}, "no device: the driver is older than 525"),
        (OLD_DRIVER, {"driver": False}, r"no device: the NVIDIA driver \(libcuda.so.1\) is not"),
        ("CUDA failure 101: invalid device ordinal", {}, "no device of that number"),
        ("CUDA failure 46: device is busy", {}, "cannot run: device is busy"),
        ("silent", {"missing": ("libcudnn.so.9",)}, "missing: libcudnn.so.9; pip install nvidia-c"),
        ("silent", {}, "no usable device"),
    ],
)
def test_a_device_that_does_not_run_is_explained(
    machine: Any, outcome: str, state: dict[str, Any], reason: str
) -> None:
    machine(FakeRuntime(outcome), **state)
    with pytest.raises(ProviderUnavailable, match=reason):
        providers.probe("cuda")


def test_a_runtime_of_another_cuda_is_named(machine: Any) -> None:
    machine(FakeRuntime("silent", cuda_version="13.0"))
    with pytest.raises(ProviderUnavailable, match=r"CUDA 13.0.*onnxruntime-gpu<1.27"):
        providers.probe("cuda")


def test_auto_goes_on_with_the_cpu_and_says_so_once(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = FakeRuntime(NO_DEVICE)
    machine(runtime)
    with caplog.at_level(logging.WARNING):
        assert providers.probe("auto") == CPU
        assert providers.probe("auto") == CPU
    assert runtime.started[:2] == [[CUDA, CPU], [CPU]]
    assert caplog.messages == [
        "running on the CPU: no device: the driver sees none "
        "(compare nvidia-smi and CUDA_VISIBLE_DEVICES)"
    ]


def test_an_error_of_the_model_is_not_taken_for_one_of_the_device(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FakeRuntime("runs")

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("this graph is not valid")

    machine(runtime)
    monkeypatch.setattr(runtime, "InferenceSession", fails)
    with pytest.raises(RuntimeError, match="not valid"):
        providers.start_session(b"", "cuda", 1)


def test_the_cpu_really_runs() -> None:
    assert providers.probe("cpu") == CPU


def test_without_onnxruntime_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProviderUnavailable, match=r"\.\[cpu\].*\.\[gpu\]"):
        providers.import_onnxruntime()
