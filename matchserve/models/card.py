"""Model cards: what a model is, how its patches are cut, and its measured figures.

A model is a directory `NAME/` with `model.onnx`, `card.json` and `golden.npz`. A model without a
card does not load, and loading checks everything that the card says about the files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, model_validator

from matchserve.errors import MatchServeError, ModelCorrupt, ModelMissing
from matchserve.files import read_regular_file, write_text_whole
from matchserve.models.calibration import Calibration
from matchserve.models.confidence import Confidence, read_confidence
from matchserve.types import DescriptorKind, PatchSpec

CARD_FILE = "card.json"
MODEL_FILE = "model.onnx"
GOLDEN_FILE = "golden.npz"
DETECTOR_FILE = "detector.onnx"
DETECTOR_GOLDEN_FILE = "detector.npz"
MAX_CARD_BYTES = 4_000_000

DefaultGeometry = Literal["homography", "affine", "similarity", "fundamental", "auto"]

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"


class DetectorCard(BaseModel):
    """The learned detector of a model: the network in `detector.onnx`, and how it is used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    """Checksum of `detector.onnx`."""
    golden_sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    """Checksum of `detector.npz`: a level and its expected scores."""
    per_octave: Annotated[int, Field(ge=1, le=4)]
    """Number of levels of the pyramid for each halving of the image."""
    sigma: Annotated[float, Field(gt=0.5, le=16)]
    """Scale of a keypoint, in pixels of the level that it is found on."""
    is_default: bool
    """Whether requests that name no detector use this one."""
    method: str
    training_data: tuple[str, ...] = ()
    recipe: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Figures by benchmark, each with the command that prints them."""


class ModelCard(BaseModel):
    """The contents of `card.json`; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    version: str
    kind: DescriptorKind
    dim: Annotated[int, Field(ge=8, le=4096)]
    """Length of the descriptor: floats, or bits for a binary one."""
    patch: PatchSpec
    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)] | None = None
    """Checksum of `model.onnx`; absent only for the built-in hand-crafted descriptors."""
    golden_sha256: Annotated[str, Field(pattern=SHA256_PATTERN)] | None = None
    """Checksum of `golden.npz`: patches and their expected descriptors."""
    golden_tolerance: Annotated[float, Field(gt=0, le=0.01)] = 1e-3
    """Largest difference from the golden descriptors: kernels differ from machine to machine."""
    licence: str
    method: str
    purpose: str = ""
    """What the model is best used for, in a few words, for lists of models."""
    training_data: tuple[str, ...] = ()
    recipe: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Figures by benchmark, each with the command that prints them."""
    searches_turn: bool = False
    """Whether `orientation=auto` also matches upright patches at other angles if few match."""
    verify: DefaultGeometry | None = None
    """Geometry that the matches are checked against if a request names none."""
    detector: DetectorCard | None = None
    """The learned detector that comes with the model."""
    calibration: Calibration | None = None
    """How `same_scene` is computed; without it, `same_scene` is null for this model."""
    notes: str = ""
    confidence: Annotated[Confidence | None, Field(exclude=True)] = None
    """Networks that judge single matches, from `confidence.json` beside the card."""

    @model_validator(mode="after")
    def _bits_fill_bytes(self) -> ModelCard:
        if self.kind == "binary" and self.dim % 8:
            raise ValueError("a binary descriptor's dim must be a multiple of 8")
        return self

    @property
    def fingerprint(self) -> str:
        """Distinguishes two models of the same name: part of the checksum, or the version."""
        return self.sha256[:12] if self.sha256 else f"v{self.version}"

    @property
    def row_length(self) -> int:
        """Number of columns of the descriptor array: floats, or bytes of packed bits."""
        return self.dim if self.kind == "float" else self.dim // 8


def read_card(directory: Path) -> ModelCard:
    """Read `directory/card.json`.

    Raises:
        ModelMissing: there is no card.
        ModelCorrupt: the card is not valid; the message names the field.
    """
    path = directory / CARD_FILE
    try:
        text = read_regular_file(path, MAX_CARD_BYTES)
    except OSError as error:
        raise ModelMissing(f"model {directory.name!r} has no readable {CARD_FILE}") from error
    try:
        card = ModelCard.model_validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ModelCorrupt(f"{directory.name}/{CARD_FILE}: {where}: {first['msg']}") from error
    except MatchServeError as error:
        raise ModelCorrupt(f"{directory.name}/{CARD_FILE}: {error.message}") from error
    return card.model_copy(update={"confidence": read_confidence(directory)})


def write_card(card: ModelCard, directory: Path) -> Path:
    """Write `card` to `directory/card.json`, completely or not at all; return the path."""
    path = directory / CARD_FILE
    write_text_whole(path, card.model_dump_json(indent=2) + "\n")
    return path


def is_model_name(name: str) -> bool:
    """Return whether `name` is a valid model name: lower case, digits, dot, dash, underscore."""
    return re.fullmatch(NAME_PATTERN, name) is not None and ".." not in name
