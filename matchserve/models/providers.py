"""Which device a model runs on: what was asked for, or an error; `auto` says what it chose."""

from __future__ import annotations

import base64
import functools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matchserve.errors import InvalidParameter, ProviderUnavailable
from matchserve.gpu import explain_failure, load_cuda_libraries
from matchserve.libraries import INSTALL_HINT

ProviderChoice = Literal["auto", "cpu", "cuda", "tensorrt"]

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session runs: the number of its device and, for TensorRT, what it prepares for.

    `profile` is the patch size and the largest batch; `engine_cache` a folder for built engines.
    """

    device: int = 0
    profile: tuple[int, int] | None = None
    engine_cache: Path | None = None

    def options(self, provider: str) -> dict[str, str]:
        """Return the options of ONNX Runtime for a provider."""
        if provider == PROVIDERS["cuda"]:
            # TensorFloat-32 rounds float32 to 10 bits, and the golden descriptors would not hold:
            # use a float16 model for speed. Trying all convolutions costs time per batch size.
            return {
                "device_id": str(self.device),
                "use_tf32": "0",
                "cudnn_conv_algo_search": "HEURISTIC",
            }
        return self._tensorrt_options() if provider == PROVIDERS["tensorrt"] else {}

    def _tensorrt_options(self) -> dict[str, str]:
        options = {"device_id": str(self.device)}
        if self.profile:
            size, batch = self.profile
            for name, count in (("min", 1), ("opt", batch), ("max", batch)):
                options[f"trt_profile_{name}_shapes"] = f"patches:{count}x1x{size}x{size}"
        if self.engine_cache:
            # Building an engine takes minutes; a cached one starts in a second.
            options |= {
                "trt_engine_cache_enable": "1",
                "trt_timing_cache_enable": "1",
                "trt_engine_cache_path": str(self.engine_cache),
                "trt_timing_cache_path": str(self.engine_cache),
            }
        return options


_log = logging.getLogger(__name__)


def import_onnxruntime() -> Any:
    """ONNX Runtime, which comes with the extra `[cpu]` or `[gpu]`.

    Raises:
        ProviderUnavailable: neither is installed.
    """
    # ONNX Runtime would write a device id below the home directory, and send usage data.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise ProviderUnavailable(f"ONNX Runtime is not installed; run: {INSTALL_HINT}") from error
    return onnxruntime


def requested_providers(choice: str, available: Sequence[str]) -> list[str]:
    """Return the providers to give to ONNX Runtime, best first.

    Raises:
        InvalidParameter: `choice` is not the name of a provider.
        ProviderUnavailable: the installed ONNX Runtime cannot run on `choice` at all.
    """
    if choice not in ("auto", *PROVIDERS):
        raise InvalidParameter(f"provider {choice!r} is not one of auto, {', '.join(PROVIDERS)}")
    if choice == "auto":
        return [name for name in (PROVIDERS["cuda"], PROVIDERS["cpu"]) if name in available]
    if PROVIDERS[choice] not in available:
        raise ProviderUnavailable(
            f"provider {choice!r} was asked for, but this ONNX Runtime has only "
            f"{', '.join(available)}; run: {INSTALL_HINT}"
        )
    # TensorRT leaves some operators to CUDA, and CUDA a few shape operators to the CPU.
    behind = {"cpu": [], "cuda": ["cpu"], "tensorrt": ["cuda", "cpu"]}[choice]
    return [PROVIDERS[name] for name in (choice, *behind)]


# Failures reach us as exceptions or as another provider, so ONNX Runtime need not print them.
_LOG_FATAL = 4

# The smallest ONNX graph that runs: one Relu. Starting it is the only honest test of a device.
_PROBE_MODEL = base64.b64decode(
    "CAcSADozCgwKAXgSAXkiBFJlbHUSAWdaDwoBeBIKCggIARIECgIIAWIPCgF5EgoKCAgBEgQKAggBQgQKABAN"
)


def start_session(
    model: bytes, choice: str, threads: int, placement: Placement | None = None
) -> Any:
    """Start an ONNX Runtime session on the provider that `choice` stands for.

    Raises:
        ProviderUnavailable: a named provider cannot run here; the message says why.
    """
    ort = import_onnxruntime()
    ort.set_default_logger_severity(_LOG_FATAL)
    options = _session_options(ort, threads)
    providers = requested_providers(choice, ort.get_available_providers())
    if providers[0] == PROVIDERS["cpu"]:
        return ort.InferenceSession(model, options, providers=providers)
    placed = [(name, (placement or Placement()).options(name)) for name in providers]
    session, cause = _try_device(ort, model, options, placed)
    if session is not None:
        return session
    reason = explain_failure(cause, getattr(ort, "cuda_version", "") or "")
    if choice == "tensorrt" and cause == _FALLS_BACK.format(PROVIDERS["cuda"]):
        reason = "library missing: libnvinfer.so.10; install TensorRT 10 for CUDA 12"
    if choice != "auto":
        raise ProviderUnavailable(f"provider {choice!r} cannot run: {reason}")
    _say_once(f"running on the CPU: {reason}")
    return ort.InferenceSession(model, options, providers=[PROVIDERS["cpu"]])


def _session_options(ort: Any, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_FATAL
    # Threads that spin while they wait burn the cores that other requests need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


_FALLS_BACK = "{} runs"


def _try_device(
    ort: Any, model: bytes, options: Any, providers: Sequence[tuple[str, dict[str, str]]]
) -> tuple[Any, str]:
    """Start a session on the first provider; return None and the cause when it cannot run."""
    load_cuda_libraries()
    try:
        # With its fallback on, ONNX Runtime prints to standard output and goes on with the CPU.
        session = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    except RuntimeError as error:
        if "CUDA failure" not in str(error):
            raise
        return None, str(error)
    running = session.get_providers()[0]
    return (session, "") if running == providers[0][0] else (None, _FALLS_BACK.format(running))


@functools.cache
def _say_once(message: str) -> None:
    _log.warning(message)


def probe(choice: ProviderChoice) -> str:
    """Return the provider that really runs when `choice` is asked for.

    Raises:
        ProviderUnavailable: it cannot; the message says why.
    """
    return str(start_session(_PROBE_MODEL, choice, 1).get_providers()[0])
