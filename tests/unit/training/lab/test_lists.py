"""The commands that list methods and time the preparation of batches."""

import re

import pytest
from typer.testing import CliRunner

from training.cli import app
from training.methods import METHODS, SAMPLERS


def test_methods_are_listed_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = CliRunner().invoke(app, ["methods"])
    assert found.exit_code == 0, found.output
    for name in (*METHODS, *SAMPLERS):
        assert re.search(rf"│ {name} +│", found.output), name
    assert "swap=True" in found.output


def test_data_alone_is_timed_without_training() -> None:
    words = ["bench", "sdgm-cpu", "--data-alone", "--set", "run.batch=16"]
    words += ["--set", 'data.train=[{path="synthetic:1:40"}]', "--set", "data.validation=[]"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    timed = re.search(r"sdgm-cpu: ([\d.]+) s of processor time to prepare 16 pairs", found.output)
    assert timed is not None, found.output
    assert 0 < float(timed[1]) < 60
