"""Fixtures: images with known geometry, encoded files, tiny models. Nothing is downloaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import skimage
from numpy.typing import NDArray
from PIL import Image as Pillow

from matchserve.pattern import generate, generate_pair
from matchserve.types import UInt8
from tests.tiny_models import write_tiny_model


def encoded(array: NDArray[Any], image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(array).save(buffer, format=image_format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def photograph() -> UInt8:
    """A real photograph (NASA, public domain), 512 x 512 RGB."""
    path = Path(skimage.__file__).parent / "data" / "astronaut.png"
    return np.asarray(Pillow.open(path).convert("RGB"), np.uint8)


@pytest.fixture(scope="session")
def grey_photograph(photograph: UInt8) -> UInt8:
    return np.asarray(cv2.cvtColor(photograph, cv2.COLOR_RGB2GRAY), np.uint8)


@pytest.fixture(scope="session")
def pattern() -> UInt8:
    return generate((320, 240), seed=3)


@pytest.fixture(scope="session")
def pattern_pair() -> tuple[UInt8, UInt8, NDArray[np.float64]]:
    return generate_pair((480, 360), seed=5)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A valid float model of 16 dimensions, in a directory of its own."""
    return write_tiny_model(tmp_path / "models" / "tiny")


@pytest.fixture
def tiny_binary_model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "models" / "tiny-bits", kind="binary")
