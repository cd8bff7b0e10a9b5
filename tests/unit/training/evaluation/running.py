"""Run commands and benchmarks in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from training.cli import app
from training.evaluation.protocol import Options


def run(*words: str) -> str:
    """Run `python -m training WORDS` in this process; return what it prints."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def options(tmp_path: Path, **changes: Any) -> Options:
    """Options that keep all files below `tmp_path`."""
    return Options(cache=tmp_path / "cache", workspace=tmp_path / "work", **changes)
