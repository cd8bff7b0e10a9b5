from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.tiny_runs import new_run
from training.errors import DataError
from training.evaluation.protocol import Options, load_models
from training.evaluation.run_model import RunDescriptor, is_run
from training.export.trained import Trained
from training.runs.loop import train


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(new_run(tmp_path_factory.mktemp("runs"), run={"steps": 3}))


def test_a_run_is_evaluated_without_export(run_dir: Path) -> None:
    models = load_models([str(run_dir), str(run_dir / "best.safetensors")], Options())
    assert [m.name for m in models[2:]] == [run_dir.name, f"{run_dir.name}-best"]
    trained = Trained.load(run_dir)
    patches = trained.samples[:20]
    found = models[2].descriptor.describe_patches(patches)
    np.testing.assert_allclose(found, trained.describe(patches), rtol=0, atol=1e-6)
    assert models[2].stamp != models[3].stamp
    with pytest.raises(DataError, match="two models are named"):
        load_models([str(run_dir), f"{run_dir}/"], Options())


def test_a_linear_head_is_normalised_as_in_an_export(tmp_path: Path) -> None:
    linear = {"network": {"head": "linear"}, "loss": {"name": "contrastive"}}
    run_dir = train(new_run(tmp_path, run={"steps": 1}, **linear))
    patches = Trained.load(run_dir).samples[:5]
    rows = RunDescriptor(run_dir).describe_patches(patches)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)


def test_what_is_a_run(run_dir: Path) -> None:
    assert is_run(str(run_dir))
    assert is_run(str(run_dir.parent / "tiny"))
    assert not is_run("compact")
    assert not is_run("models/compact")
