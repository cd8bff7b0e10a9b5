"""Int8 models of runs and of model directories: nearly as good as the float model, or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from matchserve.models.card import read_card, write_card
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.registry import shipped_models_dir
from tests.unit.training.tiny_runs import new_run
from training.cli import main
from training.data.photos.synthetic import ensure_synthetic
from training.data.store.reader import PatchStore
from training.errors import DataError, ExportRefused
from training.export.export import export
from training.export.quantise import (
    GOLDEN_TOLERANCE,
    FloatModel,
    Gate,
    Loss,
    check,
    export_int8,
    measure,
)
from training.runs.loop import train
from training.runs.validation import ValidationSet

LOOSE = Gate(fpr95_points=100, cosine=0.9)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(new_run(tmp_path_factory.mktemp("runs"), run={"steps": 3}))


@pytest.fixture(scope="module")
def directory(run_dir: Path) -> Path:
    """The model of the run, in float32."""
    out = run_dir.parent / "models" / "tiny"
    export(run_dir, out)
    return out


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_synthetic("synthetic:3:40", tmp_path_factory.mktemp("stores"))


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run the command `export`; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["training", "export", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_int8_is_gated_on_what_it_loses(run_dir: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "int8", FloatModel.of_run(run_dir)
    card, loss = export_int8(model, out, validation=[], gate=LOOSE)
    assert loss.cosine > 0.9
    assert "int8" in card.notes
    assert card.golden_tolerance == GOLDEN_TOLERANCE
    graph = onnx.load(out / "model.onnx").graph
    assert {"QuantizeLinear", "DequantizeLinear"} <= {n.op_type for n in graph.node}
    again = measure(model, OnnxDescriptor(out), [])
    assert again.cosine == pytest.approx(loss.cosine, abs=1e-6)
    with pytest.raises(ExportRefused, match="mean cosine"):
        check(Loss(0.5, {}), Gate())
    with pytest.raises(ExportRefused, match=r"FPR95 on x from 10\.00 to 11\.00"):
        check(Loss(1.0, {"x": (0.10, 0.11)}), Gate())
    check(Loss(1.0, {"x": (0.10, 0.104)}), Gate())


def test_int8_refusal_leaves_nothing(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused):
        export_int8(
            FloatModel.of_run(run_dir), tmp_path / "int8", validation=[], gate=Gate(cosine=1.1)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_quantised_like_its_run(
    run_dir: Path, directory: Path, store: Path, tmp_path: Path
) -> None:
    opened = PatchStore.open(store)
    model = FloatModel.of_directory(directory, [opened], purpose="tests")
    given = opened.patches(np.arange(30))
    np.testing.assert_allclose(
        model.describe(given), FloatModel.of_run(run_dir).describe(given), atol=1e-5
    )
    sets = [ValidationSet.of(opened, 60)]
    _, loss = export_int8(model, tmp_path / "small", validation=sets, gate=LOOSE)
    assert loss.cosine > 0.9
    assert set(loss.fpr95) == {store.name}
    rows = OnnxDescriptor(tmp_path / "small").describe_patches(given)
    assert 0.9 < float((rows * model.describe(given)).sum(1).mean()) < 1


def test_the_card_is_that_of_the_source_without_what_was_fitted_to_it(
    directory: Path, store: Path, tmp_path: Path
) -> None:
    calibrated = read_card(shipped_models_dir() / "compact")
    source = read_card(directory).model_copy(update={"calibration": calibrated.calibration})
    write_card(source, directory)
    model = FloatModel.of_directory(directory, [PatchStore.open(store)], notes="A remark.")
    export_int8(model, tmp_path / "small", validation=[], gate=LOOSE)
    card = read_card(tmp_path / "small")
    assert source.calibration is not None
    assert (card.name, card.calibration, card.confidence) == ("small", None, None)
    assert card.metrics == {}
    assert "Made from the model 'tiny'. A remark." in card.notes
    assert card.sha256 != source.sha256
    for field in ("kind", "dim", "patch", "licence", "method", "recipe", "purpose"):
        assert getattr(card, field) == getattr(source, field)
    patches = [np.load(d / "golden.npz")["patches"] for d in (directory, tmp_path / "small")]
    assert np.array_equal(*patches)


def test_what_cannot_be_quantised_is_refused(directory: Path, store: Path) -> None:
    shipped, opened = shipped_models_dir(), PatchStore.open(store)
    with pytest.raises(ExportRefused, match="binary"):
        FloatModel.of_directory(shipped / "binary", [opened])
    for name in ("compact-int8", "compact-fp16"):
        with pytest.raises(ExportRefused, match="not float32"):
            FloatModel.of_directory(shipped / name, [opened])
    with pytest.raises(DataError, match="--data"):
        FloatModel.of_directory(directory, [])
    with pytest.raises(DataError, match=r"size=32.*'accurate' needs.*size=68"):
        FloatModel.of_directory(shipped / "accurate", [opened])


def test_another_magnification_is_refused(directory: Path, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in store.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    text = (store / "store.json").read_text()
    assert '"magnification": 12.0' in text
    (other / "store.json").write_text(
        text.replace('"magnification": 12.0', '"magnification": 14.0')
    )
    with pytest.raises(DataError, match=r"magnification=14\.0.*data recrop"):
        FloatModel.of_directory(directory, [PatchStore.open(other)])


def test_the_command_quantises_a_directory(
    directory: Path,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "small"
    words = (directory, "--int8", "-o", out, "--max-loss", 100)
    assert call(monkeypatch, *words) == 65
    assert "--data" in capsys.readouterr().err
    assert call(monkeypatch, *words, "--data", store, "--validation", store) == 0
    printed = capsys.readouterr().out
    assert "mean cosine" in printed
    assert f"{store.name}: FPR95" in printed
    assert read_card(out).name == "small"


def test_a_run_takes_no_stores(
    run_dir: Path,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, run_dir, "--int8", "-o", tmp_path / "m", "--data", store) == 2
    assert "a run has its own data" in capsys.readouterr().err
