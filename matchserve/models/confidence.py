"""The probability that a match is right: two small networks, fitted for each descriptor.

Fitted by `python -m training confidence`, kept in `confidence.json` beside the model's card, and
evaluated with NumPy. The cues that the networks read are measured in `vision.confidence`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field, model_validator

from matchserve.errors import ModelCorrupt
from matchserve.files import read_regular_file
from matchserve.models.calibration import ReliabilityBin
from matchserve.types import Float32
from matchserve.vision.confidence import FIRST_CUES, SECOND_CUES
from matchserve.vision.products import multiply

CONFIDENCE_FILE = "confidence.json"
CONFIDENCE_DIAGRAM_FILE = "confidence.png"
MAX_CONFIDENCE_BYTES = 4_000_000

_Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]
_Row = tuple[_Finite, ...]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Layer(_Frozen):
    """Weights (outputs x inputs) and biases of one fully connected layer."""

    weights: tuple[_Row, ...]
    bias: _Row


class Network(_Frozen):
    """Standardised named inputs, then layers with ReLU between them, then a logistic function."""

    inputs: tuple[str, ...]
    mean: _Row
    scale: tuple[Annotated[float, Field(gt=0, le=1e6)], ...]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=8)]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Network:
        width = len(self.inputs)
        if len(self.mean) != width or len(self.scale) != width:
            raise ValueError("mean and scale must have one value for each input")
        for layer in self.layers:
            if any(len(row) != width for row in layer.weights):
                raise ValueError("a layer does not fit the one before it")
            width = len(layer.weights)
            if len(layer.bias) != width:
                raise ValueError("a layer has not one bias for each output")
        if width != 1:
            raise ValueError("the last layer must have one output")
        return self

    def arrays(self) -> NetworkArrays:
        """Return the network ready to be evaluated."""
        return NetworkArrays(self)


class NetworkArrays:
    """A network as NumPy arrays, which is safe to use from many threads."""

    def __init__(self, network: Network) -> None:
        self._mean = np.array(network.mean, np.float32)
        self._scale = np.array(network.scale, np.float32)
        self._layers = [
            (np.array(layer.weights, np.float32).T, np.array(layer.bias, np.float32))
            for layer in network.layers
        ]

    def probability(self, cues: Float32) -> Float32:
        """Judge rows of cues (M, F): the probability of each, (M,)."""
        values = (cues - self._mean) / self._scale
        for number, (weights, bias) in enumerate(self._layers):
            values = multiply(np.maximum(values, 0) if number else values, weights) + bias
        return np.asarray(0.5 * (1 + np.tanh(0.5 * values[:, 0])), np.float32)


class Confidence(_Frozen):
    """The two networks of a descriptor, and how well they did on scenes they were not fitted on.

    A match is refined if the first network gives it at least `refine_from`.
    """

    first: Network
    second: Network
    refine_from: Annotated[float, Field(ge=0, le=1)]
    held_out: dict[str, _Finite] = Field(default_factory=dict)
    reliability: tuple[ReliabilityBin, ...] = ()
    protocol: dict[str, Any] = Field(default_factory=dict)
    command: str = ""

    @cached_property
    def networks(self) -> tuple[NetworkArrays, NetworkArrays]:
        """The first and the second network, ready to be evaluated."""
        return self.first.arrays(), self.second.arrays()

    @model_validator(mode="after")
    def _inputs_are_known(self) -> Confidence:
        if self.first.inputs != FIRST_CUES or self.second.inputs != SECOND_CUES:
            raise ValueError("the networks read other cues than this version measures")
        return self


def read_confidence(directory: Path) -> Confidence | None:
    """Parse `directory/confidence.json`, or return None if there is none.

    Raises:
        ModelCorrupt: it is not a readable file, or not valid; the message names the field.
    """
    where = f"{directory.name}/{CONFIDENCE_FILE}"
    try:
        text = read_regular_file(directory / CONFIDENCE_FILE, MAX_CONFIDENCE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelCorrupt(f"{where}: not readable") from error
    try:
        return Confidence.model_validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ModelCorrupt(f"{where}: {field}: {first['msg']}") from error
