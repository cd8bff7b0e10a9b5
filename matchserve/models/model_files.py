"""Read the files of a model, which must have the checksums of its card, and open its networks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from matchserve.errors import MatchServeError, ModelCorrupt, ModelMissing
from matchserve.files import FileTooLarge, read_regular_file
from matchserve.models.providers import Placement, start_session

MAX_MODEL_BYTES = 200_000_000
MAX_GOLDEN_BYTES = 100_000_000


def sha256_hex(data: bytes) -> str:
    """Return the checksum as cards contain it."""
    return hashlib.sha256(data).hexdigest()


def verified_bytes(directory: Path, name: str, expected: str | None) -> bytes:
    """Read a file of a model.

    Raises:
        ModelMissing: it is not readable.
        ModelCorrupt: it is too large, or does not have the expected checksum.
    """
    path = directory / name
    try:
        data = read_regular_file(path, MAX_MODEL_BYTES)
    except FileTooLarge as error:
        raise ModelCorrupt(
            f"{directory.name}/{name} is larger than {MAX_MODEL_BYTES} bytes"
        ) from error
    except OSError as error:
        raise ModelMissing(f"model {directory.name!r} has no readable {name}") from error
    if expected is None or sha256_hex(data) != expected:
        raise ModelCorrupt(f"{directory.name}/{name} does not have the checksum of its card")
    return data


def open_session(
    network: bytes, provider: str, threads: int, name: str, placement: Placement | None = None
) -> Any:
    """Open a network with ONNX Runtime.

    Raises:
        ProviderUnavailable: it cannot run where it was told to.
        ModelCorrupt: ONNX Runtime cannot load it.
    """
    try:
        return start_session(network, provider, threads, placement)
    except MatchServeError:
        raise
    except Exception as error:  # ONNX Runtime's own exception types are private
        raise ModelCorrupt(f"ONNX Runtime cannot load model {name!r}") from error
