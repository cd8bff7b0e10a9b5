"""The site builds without a warning and loads nothing from elsewhere; its references are whole."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import matchserve
from matchserve.settings import PREFIX, Settings
from tests.docs.blocks import ROOT

pytest.importorskip("mkdocs", reason="no mkdocs: the documentation site was left out")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def generator(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module(f"generate.{name}")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert len(pages) > 25
    loaded = r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:'
    assert not [found for page in pages for found in re.findall(loaded, page)]


def test_no_generated_part_is_missing(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert not [page for page in pages if "generate:" in page]
    assert (site / "reference" / "openapi.json").stat().st_size > 1000
    assert (site / "images" / "reliability" / "compact.png").is_file()


def test_every_setting_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = generator("settings", monkeypatch).table()
    missing = [n for n in Settings.model_fields if f"| `{PREFIX}{n.upper()}` |" not in table]
    assert not missing


def test_every_command_and_option_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    cli = generator("cli", monkeypatch)
    ours = cli.matchserve_commands()
    for name in ("match", "describe", "models", "doctor", "bench", "serve"):
        assert f"### `matchserve {name}`" in ours
    assert "`--max-keypoints" in ours
    theirs = cli.training_commands()
    for name in ("train", "evaluate", "data photos", "data split"):
        assert f"### `python -m training {name}`" in theirs


def test_every_route_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    http_api = generator("http_api", monkeypatch)
    text = http_api.routes()
    assert "### `POST /v1/match`" in text
    assert text.count("### `") == sum(
        len(methods) for methods in http_api.schema()["paths"].values()
    )
    assert "`threshold_px`" in text


def test_every_setting_has_a_description() -> None:
    assert not [name for name, field in Settings.model_fields.items() if not field.description]


def test_every_public_name_is_in_the_python_reference() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: matchserve\.(\w+)$", text, re.MULTILINE))
    public = set(matchserve.__all__) - {"__version__", "MatchServeError"}
    assert listed - {"errors"} == public
