"""The GPU checklist: readable, and run as far as a machine without a device can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.checklist import ROOT, Step, read_steps
from tests.gpu.conftest import Installation


def test_there_are_ten_steps_and_each_says_what_it_prints() -> None:
    steps = read_steps()
    assert [step.number for step in steps] == list(range(1, 11))
    assert all(step.command and step.expected for step in steps)
    assert {step.number for step in steps if step.without is None} == {1, 10}


def test_lines_that_are_not_printed_are_named() -> None:
    step = Step(1, "serving", "x", "true", ("a+", "b"), ("c",))
    assert step.missing("aa", has_device=True) == ["b"]
    assert step.missing("aa", has_device=False) == ["c"]


def test_the_computed_figures_are_those_of_the_script() -> None:
    script = ROOT / "docs" / "research" / "estimate_gpu.py"
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    page = (ROOT / "docs" / "operations" / "performance.md").read_text(encoding="utf-8")
    assert done.stdout.strip() in page


WITHOUT = [step for step in read_steps() if step.without is not None]
SERVING = [step for step in WITHOUT if step.part == "serving"]
TRAINING = [step for step in WITHOUT if step.part == "training"]


@pytest.mark.nightly
@pytest.mark.parametrize("step", SERVING, ids=lambda s: s.title)
def test_serving_without_a_device(step: Step, installation: Installation) -> None:
    environment = {
        **installation.environment,
        "MATCHSERVE_PROVIDER": "auto",
        "LD_LIBRARY_PATH": str(installation.driver),
        "PYTHONSAFEPATH": "1",  # the installed package, not the clone's
        "PYTHONPATH": str(_tests_only(installation.driver)),
    }
    output = step.run(environment)
    assert not step.missing(output, has_device=False), output[-2000:]


def _tests_only(folder: Path) -> Path:
    """Make a folder from which only the package `tests` of the clone is imported."""
    link = folder / "path" / "tests"
    if not link.exists():
        link.parent.mkdir()
        link.symlink_to(ROOT / "tests")
    return link.parent


@pytest.mark.nightly
@pytest.mark.parametrize("step", TRAINING, ids=lambda s: s.title)
def test_training_without_a_device(step: Step) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    output = step.run({**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)})
    assert not step.missing(output, has_device=False), output[-2000:]
