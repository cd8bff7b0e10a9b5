"""`python -m training` without its extra says what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from training.__main__ import EXTRA

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_a_missing_package_is_one_line_with_the_constraints(package: str) -> None:
    code = (
        "import sys, runpy\n"
        f"sys.modules[{package!r}] = None\n"
        "sys.argv = ['training', 'train', 'synthetic', '--out', '/nonexistent']\n"
        "runpy.run_module('training', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr.splitlines() == [
        f"error: training needs the package {package}; "
        "run: pip install -e '.[cpu,train]' -c constraints.txt"
    ]


def test_the_packages_are_those_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    train = " ".join(project["optional-dependencies"]["train"]).replace("-", "_")
    assert all(package in train for package in EXTRA)
