"""Check that an exported file computes the same descriptors as the trained network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.types import UInt8
from training.errors import ExportRefused
from training.export.trained import Trained

TOLERANCE = 1e-5
PARITY_PATCHES = 1000


@dataclass(frozen=True, slots=True)
class Parity:
    """Largest difference between the exported file and the network, and bits that differ."""

    patches: int
    difference: float
    bits: int


def compare(trained: Trained, served: OnnxDescriptor) -> Parity:
    """Compare the exported file with the network on up to a thousand patches.

    Raises:
        ExportRefused: a value differs by more than 1e-5, or a bit differs although the network's
            output is farther than 1e-5 from zero, so that rounding cannot be the reason.
    """
    patches = trained.samples[:PARITY_PATCHES]
    expected, actual = trained.describe(patches), served.describe_patches(patches)
    if trained.net.head == "binary":
        differs = np.unpackbits(expected ^ actual, axis=1).astype(bool)
        with torch.no_grad():
            values = trained.net.eval().features(torch.from_numpy(patches)).numpy()
        worst = float(np.abs(values[differs]).max(initial=0.0))
        parity = Parity(len(patches), worst, int(differs.sum()))
    else:
        parity = Parity(len(patches), float(np.abs(expected - actual).max()), 0)
    return _checked(parity)


def compare_floats(expected: NDArray[Any], served: OnnxDescriptor, patches: UInt8) -> Parity:
    """Compare the exported file with the descriptors that it must give of `patches`.

    Raises:
        ExportRefused: a value differs by more than 1e-5.
    """
    difference = np.abs(expected - served.describe_patches(patches)).max()
    return _checked(Parity(len(patches), float(difference), 0))


def _checked(parity: Parity) -> Parity:
    """Return `parity`.

    Raises:
        ExportRefused: the file differs from the network by more than 1e-5.
    """
    if not parity.difference <= TOLERANCE:
        raise ExportRefused(
            f"the exported file differs from the network by {parity.difference:.2g} on "
            f"{parity.patches} patches; {TOLERANCE:g} is allowed"
        )
    return parity
