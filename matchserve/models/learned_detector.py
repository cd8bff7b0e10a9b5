"""The learned detector of a model: a network in an ONNX file that scores pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matchserve.archives import read_npz
from matchserve.errors import (
    InferenceFailed,
    MatchServeError,
    ModelCorrupt,
    ModelMismatch,
)
from matchserve.models.card import DETECTOR_FILE, DETECTOR_GOLDEN_FILE, DetectorCard
from matchserve.models.model_files import MAX_GOLDEN_BYTES, open_session, verified_bytes
from matchserve.models.onnx_guard import check_model
from matchserve.types import Float32, Image, Keypoints
from matchserve.vision.keypoints import Check, DetectOptions, Region, go_on
from matchserve.vision.learned_keypoints import detect_learned
from matchserve.vision.score_peaks import Pyramid

INPUT, OUTPUT = "level", "scores"
# Golden scores come from another machine, whose kernels differ in the last digits.
GOLDEN_TOLERANCE = 1e-3


class LearnedDetector:
    """Runs `directory/detector.onnx` on the CPU; safe to call from many threads.

    Levels have all sizes and there is one of each, so a device would wait for copies.
    """

    def __init__(self, directory: Path, card: DetectorCard, threads: int) -> None:
        """Load and check the network.

        Raises:
            ModelError: the network is missing or damaged, contradicts its card, or cannot run.
        """
        self.card = card
        self._name = f"{directory.name}/{DETECTOR_FILE}"
        network = verified_bytes(directory, DETECTOR_FILE, card.sha256)
        check_model(network)
        self._session = open_session(network, "cpu", threads, self._name)
        self._check_signature()
        self._check_golden(verified_bytes(directory, DETECTOR_GOLDEN_FILE, card.golden_sha256))

    @property
    def is_default(self) -> bool:
        """Whether requests that name no detector use this one."""
        return self.card.is_default

    def detect(
        self,
        image: Image,
        options: DetectOptions,
        mask: Region | None = None,
        check: Check = go_on,
    ) -> Keypoints:
        """Find the keypoints of an image, best first."""
        pyramid = Pyramid(self.card.per_octave, self.card.sigma)
        return detect_learned(self.score, pyramid, image, options, mask, check)

    def score(self, level: Float32) -> Float32:
        """Return the logarithm of the score of each pixel (H, W) of a level."""
        try:
            scores = self._session.run([OUTPUT], {INPUT: level[None, None]})[0]
        except Exception as error:  # ONNX Runtime's own exception types are private
            raise InferenceFailed(f"{self._name} failed while running") from error
        if scores.shape != (1, 1, *level.shape):
            raise ModelMismatch(f"{self._name} returned {scores.shape} for a level {level.shape}")
        if not np.isfinite(scores).all():
            raise InferenceFailed(f"{self._name} returned NaN or infinity")
        return np.asarray(scores[0, 0], np.float32)

    def _check_signature(self) -> None:
        for kind, values, name in (
            ("input", self._session.get_inputs(), INPUT),
            ("output", self._session.get_outputs(), OUTPUT),
        ):
            if [value.name for value in values] != [name] or values[0].type != "tensor(float)":
                raise ModelMismatch(f"{self._name} must have one float {kind}, {name}")

    def _check_golden(self, data: bytes) -> None:
        where = self._name.replace(DETECTOR_FILE, DETECTOR_GOLDEN_FILE)
        try:
            golden = read_npz(data, MAX_GOLDEN_BYTES)
            level, expected = golden["level"], golden["scores"]
        except (KeyError, MatchServeError) as error:
            raise ModelCorrupt(f"{where} is not readable") from error
        if level.dtype != np.uint8 or level.ndim != 2 or level.shape != expected.shape:
            raise ModelCorrupt(f"{where} has no level with its scores")
        difference = float(np.abs(self.score(level.astype(np.float32)) - expected).max())
        if not difference <= GOLDEN_TOLERANCE:
            raise ModelMismatch(
                f"{self._name} does not reproduce its golden scores (difference {difference:.2g})"
            )
