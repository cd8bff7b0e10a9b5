"""The schema says what the service does: thousands of generated requests, no surprise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import budget
from tests.server_process import running_server
from tests.tiny_models import write_tiny_model

# Names that exist, so that requests get past the first 404.
CONFIG = """
[parameters]
"path.name" = "tiny"
"path.version" = "1"
"""


@pytest.mark.parametrize(
    "examples",
    [
        5,
        pytest.param(300, marks=pytest.mark.slow),
        pytest.param(budget.SCHEMA_EXAMPLES, marks=pytest.mark.nightly),
    ],
    ids=["few", "many", "nightly"],
)
def test_generated_requests_never_surprise(tmp_path: Path, examples: int) -> None:
    write_tiny_model(tmp_path / "models" / "tiny")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with running_server(
        tmp_path, models_dir=tmp_path / "models", data_dir=tmp_path / "data", job_cores=0
    ) as server:
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"),
                *("--config-file", str(config), "run", f"{server.url}/openapi.json"),
                *("--checks", "all", "--max-examples", str(examples), "--continue-on-failure"),
                # A schema cannot say which bytes are a photograph, so valid data may be refused.
                *("--exclude-checks", "positive_data_acceptance"),
                # The few are the same in every run; the many look for something new.
                *(("--phases", "fuzzing", "--seed", "1") if examples < 100 else ()),
            ],
            capture_output=True,
            text=True,
            timeout=1800 if examples <= 300 else 6 * 3600,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "Traceback" not in server.log()
