from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.tiny_models import write_tiny_model
from tests.unit.training.evaluation.running import options, run
from tests.unit.training.public_sets import write_pair_list, write_phototour
from training.data.public.phototour import PhotoTour
from training.data.resampling import resample
from training.evaluation.benchmarks import phototour
from training.evaluation.protocol import load_models
from training.evaluation.tables import read_json
from training.metrics.patch_pairs import fpr95

POINTS = np.repeat(np.arange(150), 2)
SIZES = (32, 48, 90)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smooth random patches, two noisy ones of each point, and 600 pairs, half of them matching."""
    rng = np.random.default_rng(0)
    clean = rng.normal(0, 1, (150, 64, 64)).astype(np.float32)
    clean = np.stack([cv2.GaussianBlur(patch, (0, 0), 5) for patch in clean])
    clean = 128 + 40 * clean / clean.std()
    patches = (clean[POINTS] + rng.normal(0, 25, (300, 64, 64))).clip(0, 255).astype(np.uint8)
    folder = write_phototour(tmp_path_factory.mktemp("tours") / "liberty", patches, POINTS)
    matching = [(2 * point, 2 * point + 1) for point in range(150)] * 2
    other = [(i, (i + 2 + 2 * (i % 70)) % 300) for i in range(300)]
    write_pair_list(folder, POINTS, matching + other)
    return folder


def test_models_of_any_patch_size_run(tour: Path, tmp_path: Path) -> None:
    names = [
        str(write_tiny_model(tmp_path / "models" / f"tiny{size}", size=size)) for size in SIZES
    ]
    out = run(
        "evaluate", *names, "--benchmark", "phototour", "--data", str(tour),
        "--json", str(tmp_path / "r.json"), "--cache", str(tmp_path / "c"),
    )  # fmt: skip
    assert "| model | patch samples | liberty: FPR95 % | FPR95 % |" in out
    result = read_json(tmp_path / "r.json")
    for size in SIZES:
        figures = result.models[f"tiny{size}"].figures
        assert figures["patch_samples"] == size
        # A random projection of a patch tells most of these pairs apart.
        assert 0 < figures["fpr95"] < 0.5
        assert figures["liberty: fpr95"] == figures["fpr95"]
    assert result.models["sift"].figures["patch_samples"] == 32
    assert result.protocol["patch"].startswith("64 px, resampled")


def test_the_patches_are_those_of_the_resampled_sheets(tour: Path, tmp_path: Path) -> None:
    """The FPR95 of the benchmark, from its parts by hand."""
    name = write_tiny_model(tmp_path / "models" / "tiny48", size=48)
    models = load_models([str(name)], options(tmp_path))
    result = phototour.run(models, [tour], options(tmp_path))
    opened = PhotoTour.open(tour)
    sheets = np.concatenate([opened.sheet(0), opened.sheet(1)])
    rows = models[-1].descriptor.describe_patches(resample(sheets, 48)[:, None])
    pairs = opened.pairs()
    distance = np.linalg.norm(rows[pairs.left] - rows[pairs.right], axis=1)
    assert result.models["tiny48"].figures["fpr95"] == fpr95(distance, pairs.is_match)
