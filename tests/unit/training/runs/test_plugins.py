"""The example package, installed in a temporary folder with its metadata, trains."""

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.unit.training.tiny_runs import new_run
from training.errors import CheckpointError, RecipeError
from training.methods import METHODS, LossOutput, Pairs
from training.runs import loop, plugins
from training.runs.plugins import load_plugins
from training.runs.run import open_run

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "plugin"
RECIPE = """
[loss]
name = "cosine_margin"
margin = 0.4
[network]
name = "patchify48"
width = 0.25
dim = 16
[[data.train]]
path = "synthetic:1:60"
[run]
steps = 5
batch = 12
device = "cpu"
threads = 1
"""


def install(site: Path, module: str, entries: dict[str, dict[str, str]]) -> None:
    """Write a module and its metadata, as pip does."""
    (site / "example.dist-info").mkdir(parents=True)
    (site / "example.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: example\nVersion: 0.1.0\n"
    )
    lines = []
    for group, points in entries.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (site / "example.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    (site / "cosine_margin.py").write_text(module)


def install_example(folder: Path, module: str) -> None:
    entries = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    install(folder / "site", module, entries)
    (folder / "mine.toml").write_text(RECIPE)


def train(folder: Path) -> subprocess.CompletedProcess[str]:
    """Train `mine.toml` in a process that finds the package."""
    paths = os.pathsep.join([str(folder / "site"), str(ROOT)])
    command = [sys.executable, "-m", "training", "train", "mine.toml", "--out", "runs"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_package_trains_and_changed_code_does_not_resume(tmp_path: Path) -> None:
    code = (EXAMPLE / "cosine_margin.py").read_text()
    install_example(tmp_path, code)
    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / done.stdout.strip()
    assert (run_dir / "finished").exists()
    table = tomllib.loads((run_dir / "recipe.toml").read_text())
    assert table["loss"] == {"name": "cosine_margin", "margin": 0.4}
    (tmp_path / "site" / "cosine_margin.py").write_text(code + "\n# another formula\n")
    changed = train(tmp_path)
    assert changed.returncode == CheckpointError.exit_code
    assert "the code of the plug-in 'cosine_margin' has changed" in changed.stderr


class Wrong(nn.Module):
    """Returns what a loss must not return."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, pairs: Pairs) -> object:
        return self.output


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.zeros(()), "'hardnet' returned a Tensor, expected a LossOutput"),
        (LossOutput(torch.zeros(3), torch.zeros(3), torch.zeros(3)), r"of shape \(3,\)"),
    ],
)
def test_a_wrong_output_of_a_loss_is_named(tmp_path: Path, output: object, message: str) -> None:
    run = open_run(new_run(tmp_path))
    run.state.loss = Wrong(output)
    with pytest.raises(RecipeError, match=message):
        loop.train(run.directory, run)


def test_a_loss_that_cannot_be_built_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = replace(METHODS["hardnet"], build=lambda: None)  # type: ignore[misc, arg-type]
    monkeypatch.setitem(METHODS, "hardnet", method)
    with pytest.raises(RecipeError, match=r"'hardnet' cannot be built from its options"):
        open_run(new_run(tmp_path))


@pytest.mark.parametrize(
    ("module", "entries", "message"),
    [
        ("raise ValueError('broken')", {"losses": {"x": "cosine_margin:METHOD"}}, "broken"),
        ("METHOD = 3", {"losses": {"x": "cosine_margin:METHOD"}}, "expected a Method, found int"),
        ("build = 3", {"networks": {"x": "cosine_margin:build"}}, "expected a function"),
        (
            "from training.methods import METHODS\nMETHOD = METHODS['sdgm']",
            {"losses": {"x": "cosine_margin:METHOD"}},
            'name: Literal["x"] = "x"',
        ),
        (
            "def build(**options): ...",
            {"networks": {"l2net": "cosine_margin:build"}},
            "the name 'l2net' is taken",
        ),
    ],
)
def test_a_wrong_plugin_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    entries: dict[str, dict[str, str]],
    message: str,
) -> None:
    grouped = {f"{plugins.GROUP}.{kind}": points for kind, points in entries.items()}
    install(tmp_path, module, grouped)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cosine_margin", raising=False)
    with pytest.raises(RecipeError) as caught:
        load_plugins()
    monkeypatch.delitem(sys.modules, "cosine_margin", raising=False)
    assert caught.value.message.startswith("plug-in ")
    assert " of example: " in caught.value.message
    assert message in caught.value.message
