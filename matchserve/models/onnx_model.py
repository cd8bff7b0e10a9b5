"""A learned descriptor in an ONNX file, which must agree with its card to load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matchserve.archives import read_npz
from matchserve.clock import Call
from matchserve.errors import (
    InferenceFailed,
    InvalidParameter,
    MatchServeError,
    ModelCorrupt,
    ModelMismatch,
)
from matchserve.hardware import available_cpus
from matchserve.models.card import GOLDEN_FILE, MODEL_FILE, ModelCard, read_card
from matchserve.models.execution import (
    BUFFERS_PER_DEVICE,
    DEVICE_BATCH,
    INPUT,
    OUTPUT,
    BoundSession,
    DeviceOptions,
    Devices,
    Signature,
    default_batch,
)
from matchserve.models.learned_detector import LearnedDetector
from matchserve.models.model_files import MAX_GOLDEN_BYTES, open_session, verified_bytes
from matchserve.models.onnx_guard import check_model
from matchserve.models.providers import PROVIDERS, Placement
from matchserve.types import Image, Keypoints, UInt8, is_unit_length
from matchserve.vision.patches import crop

# Golden descriptors come from another machine, whose kernels differ in the last digits.
GOLDEN_BIT_SHARE = 0.01

_ORT_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
_OUTPUT_TYPES = {"float": "tensor(float)", "binary": "tensor(uint8)"}


class OnnxDescriptor:
    """Runs `directory/model.onnx` on the requested device; safe to call from many threads."""

    def __init__(
        self,
        directory: Path | str,
        *,
        provider: str = "auto",
        threads: int | None = None,
        devices: DeviceOptions | None = None,
    ) -> None:
        """Load and check a model; `devices` says which run it if the provider has devices.

        Raises:
            ModelError: the model is missing or damaged, contradicts its card, or cannot run.
        """
        directory = Path(directory)
        self.card: ModelCard = read_card(directory)
        self.threads = threads or available_cpus()
        model = verified_bytes(directory, MODEL_FILE, self.card.sha256)
        check_model(model)
        devices = devices or DeviceOptions()
        self._session, *others = self._open_sessions(model, provider, devices)
        self.provider: str = self._session.get_providers()[0]
        self._input_type = _check_signature(self._session, self.card)
        self.batch = devices.batch or default_batch(self.provider)
        self._devices: Devices | None = None
        if self.is_on_device:
            self._devices = self._bind([self._session, *others])
        self._check_golden(verified_bytes(directory, GOLDEN_FILE, self.card.golden_sha256))
        self.detector: LearnedDetector | None = None
        if self.card.detector is not None:
            self.detector = LearnedDetector(directory, self.card.detector, self.threads)

    def describe(
        self, image: Image, keypoints: Keypoints, call: Call | None = None
    ) -> NDArray[Any]:
        """Cut the keypoints' patches as the card says and describe them."""
        call = call or Call()
        with call.clock.stage("crop"):
            patches = crop(image, keypoints, self.card.patch)
        return self.describe_patches(patches, call)

    def describe_patches(self, patches: UInt8, call: Call | None = None) -> NDArray[Any]:
        """Describe (N, 1, S, S) uint8 patches; each row depends on its own patch only."""
        with (call or Call()).clock.stage("infer"):
            return self._describe_batches(patches)

    def _describe_batches(self, patches: UInt8) -> NDArray[Any]:
        size = self.card.patch.size
        if patches.shape[1:] != (1, size, size) or patches.dtype != np.uint8:
            raise InvalidParameter(
                f"patches are {patches.dtype} {patches.shape}, not uint8 (N, 1, {size}, {size})"
            )
        rows: NDArray[Any] = np.empty((len(patches), self.card.row_length), self._row_type)
        for start in range(0, len(patches), self.batch):
            batch: NDArray[Any] = patches[start : start + self.batch]
            rows[start : start + self.batch] = self._run(batch)
        return rows

    @property
    def is_on_device(self) -> bool:
        """Whether the model runs on another processor than the CPU."""
        return self.provider != PROVIDERS["cpu"]

    @property
    def concurrency(self) -> int:
        """Number of batches that can run at the same time; 1 on the CPU, which has its threads."""
        return 1 if self._devices is None else self._devices.size

    @property
    def _row_type(self) -> type:
        return np.float32 if self.card.kind == "float" else np.uint8

    def _open_sessions(self, model: bytes, provider: str, devices: DeviceOptions) -> list[Any]:
        """Open one session for each device, or a single one for the CPU."""
        profile = (self.card.patch.size, devices.batch or DEVICE_BATCH)

        def session(number: int, choice: str) -> Any:
            placement = Placement(number, profile, devices.engine_cache)
            return open_session(model, choice, self.threads, self.card.name, placement)

        first = session(devices.numbers[0], provider)
        if first.get_providers()[0] == PROVIDERS["cpu"]:
            return [first]
        # The first device runs, so the others must run too: `auto` would take the CPU for them.
        choice = "cuda" if provider == "auto" else provider
        return [first, *(session(number, choice) for number in devices.numbers[1:])]

    def _bind(self, sessions: list[Any]) -> Devices:
        card = self.card
        signature = Signature(card.patch.size, self._input_type, card.row_length, self._row_type)
        bound = [
            BoundSession(session, signature, self.batch)
            for session in sessions
            for _ in range(BUFFERS_PER_DEVICE)
        ]
        return Devices(bound, self.batch)

    def _run(self, batch: NDArray[Any]) -> NDArray[Any]:
        rows = self._run_on_cpu(batch) if self._devices is None else self._devices.run(batch)
        if rows.shape != (len(batch), self.card.row_length):
            raise ModelMismatch(
                f"model {self.card.name!r} returned {rows.shape} for {len(batch)} patches"
            )
        if self.card.kind == "float" and not np.isfinite(rows).all():
            raise InferenceFailed(f"model {self.card.name!r} returned NaN or infinity")
        return np.asarray(rows)

    def _run_on_cpu(self, batch: NDArray[Any]) -> NDArray[Any]:
        given: NDArray[Any] = np.ascontiguousarray(batch.astype(self._input_type, copy=False))
        try:
            return np.asarray(self._session.run([OUTPUT], {INPUT: given})[0])
        except Exception as error:  # ONNX Runtime's own exception types are private
            raise InferenceFailed(f"model {self.card.name!r} failed while running") from error

    def _check_golden(self, data: bytes) -> None:
        """Describe the golden patches and compare with the recorded descriptors."""
        try:
            golden = read_npz(data, MAX_GOLDEN_BYTES)
            patches, expected = golden["patches"], golden["descriptors"]
        except (KeyError, MatchServeError) as error:
            raise ModelCorrupt(f"{self.card.name}/{GOLDEN_FILE} is not readable") from error
        size = self.card.patch.size
        if patches.dtype != np.uint8 or patches.shape[1:] != (1, size, size) or not len(patches):
            raise ModelCorrupt(f"{self.card.name}/{GOLDEN_FILE} has no patches of {size} x {size}")
        rows = self.describe_patches(patches)
        if rows.shape != expected.shape or rows.dtype != expected.dtype:
            raise ModelMismatch(
                f"model {self.card.name!r}: the golden descriptors have a different shape"
            )
        if self.card.kind == "float" and not is_unit_length(rows):
            raise ModelMismatch(f"model {self.card.name!r} does not return rows of length one")
        if self.card.kind == "float":
            error_size = float(np.abs(rows - expected).max())
            agrees = error_size <= self.card.golden_tolerance
        else:
            error_size = float(np.unpackbits(rows ^ expected).mean())
            agrees = error_size <= GOLDEN_BIT_SHARE
        if not agrees:
            raise ModelMismatch(
                f"model {self.card.name!r} does not reproduce its golden descriptors "
                f"(difference {error_size:.2g})"
            )


def _check_signature(session: Any, card: ModelCard) -> type:
    """Check names, types and shapes of the graph's input and output; return the input's dtype."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    size = card.patch.size
    if [i.name for i in inputs] != [INPUT] or [o.name for o in outputs] != [OUTPUT]:
        raise ModelMismatch(f"model {card.name!r} must have one input {INPUT}, one output {OUTPUT}")
    if inputs[0].type not in _ORT_TYPES or outputs[0].type != _OUTPUT_TYPES[card.kind]:
        raise ModelMismatch(
            f"model {card.name!r} takes {inputs[0].type} and gives {outputs[0].type}"
        )
    batch, *rest = inputs[0].shape
    if isinstance(batch, int) or rest != [1, size, size]:
        raise ModelMismatch(
            f"model {card.name!r} takes {inputs[0].shape}, not (N, 1, {size}, {size})"
        )
    if len(outputs[0].shape) != 2 or outputs[0].shape[1] != card.row_length:
        raise ModelMismatch(
            f"model {card.name!r} gives {outputs[0].shape}, not (N, {card.row_length})"
        )
    return _ORT_TYPES[inputs[0].type]
