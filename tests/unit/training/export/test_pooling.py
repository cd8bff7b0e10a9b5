"""Several domain sizes of a keypoint: the graph gives the mean of several descriptions."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from matchserve.models.card import read_card
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.types import Image, Keypoints, PatchSpec
from tests.unit.training.tiny_runs import new_run
from training.data.photos.synthetic import texture
from training.errors import ExportRefused
from training.export.domains import export_domains
from training.export.export import GOLDEN_PATCHES, export
from training.export.pooling import Domains, mean_of_domains, wider
from training.export.trained import Trained
from training.runs.loop import train
from training.runs.run import open_run

RATIO = 1.5


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(new_run(tmp_path_factory.mktemp("runs"), run={"steps": 3}))


@pytest.fixture(scope="module")
def models(run_dir: Path) -> tuple[Path, Path]:
    """The run as it is, and pooled."""
    out = run_dir.parent / "models"
    export(run_dir, out / "single")
    export(run_dir, out / "pooled", domain_sizes=[RATIO])
    return out / "single", out / "pooled"


def test_the_middle_is_untouched_and_the_whole_is_reduced() -> None:
    torch.manual_seed(0)
    noise = torch.rand(3, 1, 48, 48)
    ramp = torch.arange(48.0).expand(1, 1, 48, 48)
    shown = Domains((32, 48))(torch.cat([noise, ramp]))
    assert shown.shape == (8, 1, 32, 32)
    torch.testing.assert_close(shown[0:6:2], noise[..., 8:40, 8:40])
    # The whole keeps the mean of what it shows, and places: a ramp stays one, 1.5 times as steep.
    assert abs(float(shown[1].mean() - noise[0].mean())) < 0.01
    across = (torch.arange(32.0) + 0.5) * 1.5 - 0.5
    torch.testing.assert_close(shown[7, 0, 5, 2:-2], across[2:-2], rtol=0, atol=0.05)
    torch.testing.assert_close(shown[7, 0].std(0), torch.zeros(32), rtol=0, atol=1e-4)


def test_each_domain_shows_the_middle_of_the_next() -> None:
    torch.manual_seed(0)
    patches = torch.rand(2, 1, 64, 64)
    shown = Domains((32, 48, 64))(patches)
    assert shown.shape == (6, 1, 32, 32)
    torch.testing.assert_close(shown[[0, 3]], patches[..., 16:48, 16:48])
    torch.testing.assert_close(shown[[0, 1, 3, 4]], Domains((32, 48))(patches[..., 8:56, 8:56]))
    torch.testing.assert_close(shown[[2, 5]], Domains((32, 64))(patches)[1::2])


def test_a_narrower_domain_is_the_middle_enlarged() -> None:
    ramp = torch.arange(64.0).expand(1, 1, 64, 64)
    shown = Domains((64, 32))(ramp)
    torch.testing.assert_close(shown[0], ramp[0])
    across = 16 + (torch.arange(64.0) + 0.5) / 2 - 0.5
    torch.testing.assert_close(shown[1, 0, 5, 2:-2], across[2:-2], rtol=0, atol=1e-4)


def test_the_mean_is_of_neighbours() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [4.0, 0.0]])
    assert mean_of_domains(rows, 2).tolist() == [[0.5, 0.5], [3.0, 1.0]]
    assert mean_of_domains(rows[:3] * 3, 3).tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize(
    ("ratio", "size"), [(1.5, 96), (1.4, 90), (1.41, 90), (1.0, 64), (2.0, 128)]
)
def test_a_wider_crop_samples_as_finely(ratio: float, size: int) -> None:
    spec = PatchSpec(size=64, magnification=40.0)
    wide = wider(spec, ratio)
    assert wide.size == size
    assert wide.magnification / wide.size == pytest.approx(40 / 64)
    assert replace(wide, size=64, magnification=40.0) == spec


def test_a_pooled_model_says_the_mean_of_two_descriptions(models: tuple[Path, Path]) -> None:
    single, pooled = (OnnxDescriptor(model) for model in models)
    assert pooled.card.patch == wider(single.card.patch, RATIO)
    rng = np.random.default_rng(3)
    grey = texture(rng)
    image = Image(grey, (grey.shape[1], grey.shape[0]))
    count = 60
    keypoints = Keypoints(
        rng.uniform(80, 240, (count, 2)).astype(np.float32),
        rng.uniform(2.0, 4.0, count).astype(np.float32),
        rng.uniform(-3, 3, count).astype(np.float32),
        np.ones(count, np.float32),
    )
    found = pooled.describe(image, keypoints)
    near = single.describe(image, keypoints)
    far = single.describe(image, replace(keypoints, sigma=keypoints.sigma * RATIO))
    expected = (near + far) / np.linalg.norm(near + far, axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    likeness = (found * expected).sum(1)
    # The far one is reduced from the patch, not cut from the image anew: nearly the same.
    assert likeness.min() > 0.98
    assert np.median(likeness) > 0.995
    assert (found * near).sum(1).mean() < likeness.mean() - 0.01


def test_training_starts_from_a_pooled_model(models: tuple[Path, Path], tmp_path: Path) -> None:
    single, pooled = (
        open_run(new_run(tmp_path, name=model.name, init_from=str(model))).state.net.state_dict()
        for model in models
    )
    cards = [read_card(model) for model in models]
    assert [card.recipe.get("domain_size") for card in cards] == [None, RATIO]
    # FPR95 of validation is that of the single crop.
    assert [bool(card.metrics) for card in cards] == [True, False]
    for key, value in single.items():
        torch.testing.assert_close(pooled[key], value)


def test_a_model_directory_gives_what_its_run_gives(
    run_dir: Path, models: tuple[Path, Path], tmp_path: Path
) -> None:
    of_run, _ = export(run_dir, tmp_path / "run", domain_sizes=[2.0, 0.75, RATIO])
    of_model, parity = export_domains(models[0], tmp_path / "model", [RATIO, 2.0, 0.75])
    assert of_model.patch == of_run.patch == wider(read_card(models[0]).patch, 2.0)
    assert of_model.recipe == of_run.recipe
    assert of_model.recipe["domain_size"] == 2.0
    assert of_model.recipe["domain_sizes"] == [0.75, 1.0, RATIO, 2.0]
    assert parity.patches > GOLDEN_PATCHES
    patches = np.random.default_rng(0).integers(0, 256, (40, 1, 64, 64), np.uint8)
    first, second = (
        OnnxDescriptor(tmp_path / name).describe_patches(patches) for name in ("run", "model")
    )
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_the_command_pools_a_model_directory(
    models: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from training.cli import main

    words = ["--domain-size", "0.75", "--domain-size", "1.5", "--notes", "three sizes"]
    argv = ["training", "export", str(models[0]), "-o", str(tmp_path / "three"), *words]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "differs from the network by at most" in capsys.readouterr().out
    card = read_card(tmp_path / "three")
    assert card.recipe["domain_sizes"] == [0.75, 1.0, 1.5]
    assert (card.notes, card.method) == ("three sizes", read_card(models[0]).method)


def test_a_pooled_model_is_not_pooled_again(models: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="averages several domain sizes already"):
        export_domains(models[1], tmp_path / "twice", [RATIO])
    assert list(tmp_path.iterdir()) == []


def test_no_pooling_where_there_is_none(run_dir: Path, tmp_path: Path) -> None:
    for ratios in ([1.01], [1.5, 1.49]):
        with pytest.raises(ExportRefused, match="samples, as another one does"):
            export(run_dir, tmp_path / "same", domain_sizes=ratios)
    with pytest.raises(ExportRefused, match=r"not in 8\.\.128"):
        export(run_dir, tmp_path / "large", domain_sizes=[5.0])
    bits = Trained.load(run_dir)
    bits.net.head = "binary"
    with pytest.raises(ExportRefused, match="cannot be averaged"):
        bits.pooled([RATIO])
    assert list(tmp_path.iterdir()) == []


def test_int8_and_domain_sizes_exclude_each_other(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from training.cli import main

    words = ["export", str(run_dir), "-o", str(tmp_path / "m"), "--int8", "--domain-size", "1.5"]
    monkeypatch.setattr(sys, "argv", ["training", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "cannot be combined with --int8" in capsys.readouterr().err
