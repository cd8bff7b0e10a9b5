from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as samples

from tests.corner_scene import write_scene

MATRIX = np.array([[0.95, -0.12, 30.0], [0.1, 0.92, -8.0], [1e-4, -5e-5, 1.0]])


@pytest.fixture(scope="session")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sequences of two images each, related by a known homography."""
    base = tmp_path_factory.mktemp("homography")
    for name in ("camera", "astronaut"):
        picture = getattr(samples, name)()
        grey = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        grey = cv2.resize(grey, (320, 320), interpolation=cv2.INTER_AREA)
        folder = base / f"v_{name}"
        folder.mkdir()
        cv2.imwrite(str(folder / "1.png"), grey)
        cv2.imwrite(str(folder / "2.png"), cv2.warpPerspective(grey, MATRIX, (320, 320)))
        np.savetxt(folder / "H_1_2", MATRIX)
    return base


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one scene of four images whose cameras are known."""
    base = tmp_path_factory.mktemp("known")
    write_scene(base / "corner", 4)
    return base
