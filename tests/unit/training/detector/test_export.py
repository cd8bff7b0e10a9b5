"""The exported file is what was trained, and what serving accepts."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from matchserve.errors import ModelMissing
from matchserve.models.card import DETECTOR_FILE, DETECTOR_GOLDEN_FILE, read_card
from matchserve.models.model_files import sha256_hex
from matchserve.models.onnx_guard import check_model
from matchserve.models.registry import shipped_models_dir
from training.detector import export as exporting
from training.detector.crops import Crops
from training.detector.export import export, run_onnx, texture, to_onnx
from training.detector.loop import DetectorRecipe, train
from training.detector.network import ScoreNetwork
from training.errors import CheckpointError, ExportRefused


@pytest.fixture(scope="module")
def run(crops: Crops, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(crops, folder, DetectorRecipe(crops_sha256=crops.sha256, steps=3))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model without a detector: only its card is read."""
    folder = tmp_path / "robust"
    folder.mkdir()
    shutil.copy(shipped_models_dir() / "robust" / "card.json", folder)
    card = read_card(folder).model_copy(update={"detector": None})
    (folder / "card.json").write_text(card.model_dump_json())
    return folder


def test_the_file_gives_the_scores_of_the_network_at_every_size() -> None:
    torch.manual_seed(0)
    net = ScoreNetwork()
    with torch.no_grad():
        for seed in range(3):
            net(torch.from_numpy(texture((80, 90), seed))[None, None].float())
    net.eval()
    graph = to_onnx(net)
    check_model(graph)
    for shape in ((16, 17), (64, 200), (131, 97)):
        level = texture(shape, 1)
        with torch.no_grad():
            expected = net(torch.from_numpy(level)[None, None].float())[0, 0].numpy()
        assert run_onnx(graph, level) == pytest.approx(expected, abs=1e-5)


def test_the_graph_says_nothing_about_the_machine() -> None:
    model = onnx.load_from_string(to_onnx(ScoreNetwork().eval()))
    assert [each.version for each in model.opset_import if not each.domain] == [18]
    assert [value.name for value in model.graph.input] == ["level"]
    assert [value.name for value in model.graph.output] == ["scores"]
    assert b".py" not in model.SerializeToString()
    operators = [node.op_type for node in model.graph.node]
    assert "Pad" not in operators
    assert "BatchNormalization" not in operators


def test_an_export_fills_the_model(run: Path, model: Path) -> None:
    before = read_card(model)
    detector, difference = export(run, model, is_default=True)
    assert difference < 1e-5
    card = read_card(model)
    assert card.detector == detector
    assert card.model_copy(update={"detector": None}) == before
    assert detector.is_default
    assert (detector.per_octave, detector.sigma) == (2, 2.4)
    assert detector.recipe["steps"] == 3
    assert detector.training_data == ("6 pairs of crops of textures",)
    graph = (model / DETECTOR_FILE).read_bytes()
    golden = (model / DETECTOR_GOLDEN_FILE).read_bytes()
    assert detector.sha256 == sha256_hex(graph)
    assert detector.golden_sha256 == sha256_hex(golden)
    with np.load(model / DETECTOR_GOLDEN_FILE) as arrays:
        level, scores = arrays["level"], arrays["scores"]
    assert (level.dtype, level.shape) == (np.uint8, (128, 160))
    assert (scores.dtype, scores.shape) == (np.float32, (128, 160))
    assert run_onnx(graph, level) == pytest.approx(scores, abs=1e-5)
    assert not export(run, model)[0].is_default


def test_a_file_that_differs_is_refused(
    run: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in model.iterdir())
    right = exporting.to_onnx

    def wrong(net: ScoreNetwork) -> bytes:
        other = copy.deepcopy(net)
        with torch.no_grad():
            list(other.parameters())[-1].add_(1e-3)
        return right(other)

    monkeypatch.setattr(exporting, "to_onnx", wrong)
    with pytest.raises(ExportRefused, match=r"differs from the network by 0\.001"):
        export(run, model)
    assert sorted(path.name for path in model.iterdir()) == before


def test_a_missing_model_or_run_is_named(run: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing):
        export(run, tmp_path / "nothing")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(run / "recipe.json", unfinished)
    with pytest.raises(CheckpointError, match="not trained to the end"):
        export(unfinished, model)


def test_textures_have_structure_and_no_flat_areas() -> None:
    level = texture((64, 96)).astype(float)
    assert level.std() > 15
    assert (level.reshape(8, 8, 12, 8).std((1, 3)) > 1).all()
