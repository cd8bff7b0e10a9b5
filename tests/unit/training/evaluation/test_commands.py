from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.evaluation.running import run
from training.errors import DataError
from training.evaluation.commands import shown_command


def test_an_unknown_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no benchmark 'x'; there are homography, pose"):
        run("evaluate", "sift", "--benchmark", "x", "--data", str(tmp_path))


def test_the_shown_command_leaves_out_where_files_went() -> None:
    words = ["evaluate", "sift", "--json", "/x/r.json", "--data", "/big/dev", "--pattern", "o_*"]
    expected = "python -m training evaluate sift --data dev --pattern 'o_*'"
    assert shown_command(words) == expected
