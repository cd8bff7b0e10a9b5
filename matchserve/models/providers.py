"""Which device a model runs on: what was asked for, or an error; `auto` says what it chose."""

from __future__ import annotations

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
