"""Parsers of untrusted bytes under a fuzzer: briefly by default, at length at night."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import warnings

import pytest

from tests.nightly import budget
from tests.nightly.fuzz import Finding, run_mutations
from tests.nightly.fuzz_targets import CONTROL, TARGETS

BRIEF_S, BRIEF_CASES = 2.0, 400


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_seeds_break_no_parser(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about damaged files
        assert run_mutations(TARGETS[name], BRIEF_S, BRIEF_CASES) > 10


def test_mutations_find_a_seeded_error() -> None:
    with pytest.raises(Finding) as found:
        run_mutations(CONTROL, 60, 1_000_000)
    assert isinstance(found.value.__cause__, IndexError)


def fuzz(name: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.nightly.fuzz", name]
    return subprocess.run(
        [*command, "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        timeout=seconds + 300,
    )


@pytest.mark.nightly
def test_the_fuzzer_finds_a_seeded_error() -> None:
    done = fuzz("control", max(60.0, budget.FUZZ_S))
    assert done.returncode != 0
    assert "IndexError" in done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_the_fuzzer_breaks_no_parser(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = fuzz(name, budget.FUZZ_S)
    runs = re.findall(r"number_of_executed_units: +(\d+)|: (\d+) cases", done.stdout + done.stderr)
    engine = "atheris" if importlib.util.find_spec("atheris") else "mutations"
    with capsys.disabled():
        print(f"\n{name}: {[''.join(r) for r in runs]} inputs, {engine}")  # noqa: T201
    assert done.returncode == 0, done.stderr[-4000:]
    assert runs
