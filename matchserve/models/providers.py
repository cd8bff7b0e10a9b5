"""Which device a model runs on: what was asked for, or an error; `auto` says what it chose."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

from matchserve.errors import InvalidParameter, ProviderUnavailable

ProviderChoice = Literal["auto", "cpu", "cuda"]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

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


def running_provider(choice: str, running: Sequence[str]) -> str:
    """The provider a session really runs on.

    ONNX Runtime replaces a provider that fails to start by the CPU and says nothing to the caller.

    Raises:
        ProviderUnavailable: a named provider was asked for and another one runs.
    """
    actual = running[0] if running else "none"
    if choice != "auto" and actual != PROVIDERS[choice]:
        raise ProviderUnavailable(
            f"provider {choice!r} was asked for, but {actual} is what runs: "
            "no usable device or driver was found"
        )
    return actual


# ONNX Runtime's log levels.
_LOG_WARNING, _LOG_FATAL = 2, 4

# The smallest ONNX graph that runs: one Relu. Starting it is the only honest test of a device.
_PROBE_MODEL = base64.b64decode(
    "CAcSADozCgwKAXgSAXkiBFJlbHUSAWdaDwoBeBIKCggIARIECgIIAWIPCgF5EgoKCAgBEgQKAggBQgQKABAN"
)


def start_session(model: bytes, choice: str, threads: int, *, quiet: bool = False) -> Any:
    """An ONNX Runtime session on the providers that `choice` stands for.

    Only when a device was asked for by name may ONNX Runtime print why it cannot be used.
    """
    ort = import_onnxruntime()
    ort.set_default_logger_severity(_LOG_FATAL if quiet or choice == "auto" else _LOG_WARNING)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = (
        _LOG_FATAL  # failures reach us as exceptions or as another provider
    )
    # Threads that spin while they wait burn the cores that other requests need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = requested_providers(choice, ort.get_available_providers())
    return ort.InferenceSession(model, options, providers=providers)


def probe(choice: ProviderChoice) -> str:
    """The provider that really runs when `choice` is asked for.

    Raises:
        ProviderUnavailable: it cannot; the message says why.
    """
    return running_provider(
        choice, start_session(_PROBE_MODEL, choice, 1, quiet=True).get_providers()
    )
