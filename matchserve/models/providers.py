"""Which device a model runs on: what was asked for, or an error; `auto` says what it chose."""

from __future__ import annotations

import base64
import functools
import logging
from collections.abc import Sequence
from typing import Any, Literal

from matchserve.errors import InvalidParameter, ProviderUnavailable
from matchserve.gpu import explain_failure, load_cuda_libraries

ProviderChoice = Literal["auto", "cpu", "cuda"]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

# TensorFloat-32 rounds float32 inputs to 10 bits, and the card's golden descriptors would not hold:
# use an fp16 model for speed. Trying every convolution algorithm would cost time per batch size.
DEVICE_OPTIONS = {
    PROVIDERS["cuda"]: {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"},
}

_log = logging.getLogger(__name__)

INSTALL_HINT = "install one of: pip install 'matchserve[cpu]', pip install 'matchserve[gpu]'"


def import_onnxruntime() -> Any:
    """ONNX Runtime, which comes with the extra `[cpu]` or `[gpu]`.

    Raises:
        ProviderUnavailable: neither is installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ProviderUnavailable(f"ONNX Runtime is not installed; {INSTALL_HINT}") from error
    return onnxruntime


def requested_providers(choice: str, available: Sequence[str]) -> list[str]:
    """The providers to give to ONNX Runtime, best first.

    Raises:
        InvalidParameter: `choice` is not auto, cpu or cuda.
        ProviderUnavailable: the installed ONNX Runtime cannot run on `choice` at all.
    """
    if choice not in ("auto", *PROVIDERS):
        raise InvalidParameter(f"provider {choice!r} is not one of auto, {', '.join(PROVIDERS)}")
    if choice == "auto":
        return [name for name in (PROVIDERS["cuda"], PROVIDERS["cpu"]) if name in available]
    if PROVIDERS[choice] not in available:
        raise ProviderUnavailable(
            f"provider {choice!r} was asked for, but this ONNX Runtime has only "
            f"{', '.join(available)}; {INSTALL_HINT}"
        )
    # CPU stays behind CUDA for the few shape operators that have no CUDA kernel.
    return list(dict.fromkeys([PROVIDERS[choice], PROVIDERS["cpu"]]))


# Failures reach us as exceptions or as another provider, so ONNX Runtime need not print them.
_LOG_FATAL = 4

# The smallest ONNX graph that runs: one Relu. Starting it is the only honest test of a device.
_PROBE_MODEL = base64.b64decode(
    "CAcSADozCgwKAXgSAXkiBFJlbHUSAWdaDwoBeBIKCggIARIECgIIAWIPCgF5EgoKCAgBEgQKAggBQgQKABAN"
)


def start_session(model: bytes, choice: str, threads: int) -> Any:
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
    session, cause = _try_device(ort, model, options, providers)
    if session is not None:
        return session
    reason = explain_failure(cause, getattr(ort, "cuda_version", "") or "")
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


def _try_device(ort: Any, model: bytes, options: Any, providers: list[str]) -> tuple[Any, str]:
    """Start a session on the first provider; return None and the cause when it cannot run."""
    load_cuda_libraries()
    given = [(name, DEVICE_OPTIONS.get(name, {})) for name in providers]
    try:
        # With its fallback on, ONNX Runtime prints to standard output and goes on with the CPU.
        session = ort.InferenceSession(model, options, providers=given, enable_fallback=0)
    except RuntimeError as error:
        if "CUDA failure" not in str(error):
            raise
        return None, str(error)
    running = session.get_providers()
    return (session, "") if running[0] == providers[0] else (None, f"{running[0]} runs")


@functools.cache
def _say_once(message: str) -> None:
    _log.warning(message)


def probe(choice: ProviderChoice) -> str:
    """Return the provider that really runs when `choice` is asked for.

    Raises:
        ProviderUnavailable: it cannot; the message says why.
    """
    return str(start_session(_PROBE_MODEL, choice, 1).get_providers()[0])
