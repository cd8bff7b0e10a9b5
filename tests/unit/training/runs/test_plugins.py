"""The example package, installed in a temporary folder with its metadata, trains."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from training.errors import RecipeError
from training.runs import plugins
from training.runs.plugins import load_plugins

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


def test_the_example_package_trains(tmp_path: Path) -> None:
    entries = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    install(tmp_path / "site", (EXAMPLE / "cosine_margin.py").read_text(), entries)
    (tmp_path / "mine.toml").write_text(RECIPE)
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    command = [sys.executable, "-m", "training", "train", "mine.toml", "--out", "runs"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / done.stdout.strip()
    assert (run_dir / "finished").exists()
    table = tomllib.loads((run_dir / "recipe.toml").read_text())
    assert table["loss"] == {"name": "cosine_margin", "margin": 0.4}


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
