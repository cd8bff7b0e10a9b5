from pathlib import Path

import numpy as np
import pytest

from training.detector.crops import Crops, read_crops
from training.detector.export import texture

SIDE = 96


@pytest.fixture(scope="session")
def crops_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pairs of the same generated textures, moved by a few pixels."""
    pairs, homographies = [], []
    for seed in range(6):
        image = texture((SIDE + 8, SIDE + 8), seed)
        pairs.append([image[:SIDE, :SIDE], image[5 : SIDE + 5, 3 : SIDE + 3]])
        homographies.append([[1, 0, -3], [0, 1, -5], [0, 0, 1]])
    path = tmp_path_factory.mktemp("crops") / "crops.npz"
    np.savez(
        path,
        crops=np.array(pairs, np.uint8),
        masks=np.full((6, 2, SIDE * SIDE // 8), 255, np.uint8),
        homographies=np.array(homographies, np.float64),
        folders=np.array(["textures"]),
        counts=np.array([6]),
    )
    return path


@pytest.fixture(scope="session")
def crops(crops_file: Path) -> Crops:
    """The pairs of `crops_file`."""
    return read_crops(crops_file)
