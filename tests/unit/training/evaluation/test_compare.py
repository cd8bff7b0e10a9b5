"""The paired bootstrap, and results as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from training.errors import DataError
from training.evaluation.compare import bootstrap, compare, to_markdown
from training.evaluation.protocol import BenchmarkResult, ModelResult
from training.evaluation.tables import plot, read_json, to_json
from training.evaluation.tables import to_markdown as table

RNG = np.random.default_rng(0)
GROUPS = tuple(f"g{n // 5}" for n in range(100))
UNITS = tuple(f"u{n}" for n in range(100))
BASE = RNG.normal(100, 20, 100)


def result(**models: np.ndarray) -> BenchmarkResult:
    held = {
        name: ModelResult(
            {"correct": float(v.mean()), "mma@3px": 0.5123},
            UNITS,
            GROUPS,
            {"correct": v.tolist(), "pose_error_deg": (-v).tolist()},
            {"MMA": {"x": [1.0, 2.0], "y": [0.1, 0.2]}},
            "stamp",
        )
        for name, v in models.items()
    }
    return BenchmarkResult("homography", {"max_keypoints": 2048, "ratio": None}, "abc", held)


def test_a_clear_gain_is_found_with_its_size() -> None:
    found = bootstrap("correct", BASE, BASE + RNG.normal(5, 2, 100), GROUPS)
    assert found.low < 5 < found.high
    assert found.high - found.low < 1.5
    assert found.verdict == "B is better"
    assert found.better_share == 1.0
    assert (found.units, found.groups) == (100, 20)


def test_the_interval_has_the_width_theory_gives() -> None:
    gain = RNG.normal(0.3, 2.0, 400)
    found = bootstrap("correct", np.zeros(400), gain, tuple(str(n) for n in range(400)))
    expected = 2 * 1.96 * gain.std() / 20
    assert found.high - found.low == pytest.approx(expected, rel=0.1)
    assert found.group_high - found.group_low == pytest.approx(expected, rel=0.1)


def test_groups_that_move_together_widen_the_interval() -> None:
    shift = np.repeat(RNG.normal(0, 3, 20), 5)
    found = bootstrap("correct", BASE, BASE + 0.4 + shift, GROUPS)
    assert found.group_high - found.group_low > 1.6 * (found.high - found.low)


def test_noise_is_not_called_better() -> None:
    found = bootstrap("correct", BASE, BASE + RNG.normal(0, 5, 100), GROUPS)
    assert found.verdict == "not distinguishable"
    assert bootstrap("correct", BASE, BASE, GROUPS).better_share == 0.5


def test_less_error_is_better() -> None:
    assert bootstrap("fpr95", BASE, BASE - 5, GROUPS).verdict == "B is better"
    assert bootstrap("pose_error_deg", BASE, BASE + 5, GROUPS).verdict == "B is worse"


def test_results_of_other_data_or_protocol_are_not_compared() -> None:
    one = result(a=BASE, b=BASE + 5)
    found = compare(one, "a", one, "b")
    assert [c.figure for c in found] == ["correct", "pose_error_deg"]
    assert "| correct |" in to_markdown(found, "a", "b")
    other = BenchmarkResult("homography", one.protocol, "another", one.models)
    with pytest.raises(DataError, match="differ in digest"):
        compare(one, "a", other, "b")
    with pytest.raises(DataError, match="no model c; there are a, b"):
        compare(one, "a", one, "c")


def test_results_survive_a_file(tmp_path: Path) -> None:
    one = result(a=BASE, b=np.where(np.arange(100) == 3, np.inf, BASE))
    (tmp_path / "r.json").write_text(to_json(one, "python -m training evaluate a b"))
    read = read_json(tmp_path / "r.json")
    assert read.protocol == one.protocol
    assert read.models["a"].samples == one.models["a"].samples
    assert read.models["a"].units == UNITS
    assert read.models["b"].samples["correct"][3] == np.inf
    # An infinite sample cannot be averaged: that figure is left out, not guessed.
    assert [c.figure for c in compare(read, "a", read, "b")] == []
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match="not a result"):
        read_json(tmp_path / "bad.json")


def test_tables_show_shares_in_per_cent_and_carry_the_command(tmp_path: Path) -> None:
    text = table(result(a=BASE), "python -m training evaluate a")
    assert "| model | correct | MMA@3px % |" in text
    assert "| 51.23 |" in text
    assert "`python -m training evaluate a`" in text
    assert "max_keypoints: 2048" in text
    plot(result(a=BASE), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_old_result_files_still_load(tmp_path: Path) -> None:
    """Unknown metrics are shown without unit and never compared; renamed keys get new names."""
    entry = {
        "figures": {"fpr95": 0.25, "sharpness error": 3.14159},
        "units": ["u0", "u1"],
        "groups": ["g0", "g1"],
        "samples": {"fpr95": [0.2, 0.3], "sharpness error": [3.0, 3.2]},
        "curves": {},
        "stamp": "s",
    }
    content = {
        "format_version": 1,
        "benchmark": "pairs",
        "command": "python -m training evaluate a",
        "protocol": {"pairs": 10, "crowd": 2048},
        "data_digest": "abc",
        "models": {"a": entry, "b": entry},
    }
    (tmp_path / "old.json").write_text(json.dumps(content))
    read = read_json(tmp_path / "old.json")
    assert read.protocol == {"pairs": 10, "group_size": 2048}
    text = table(read, "c")
    assert "| model | FPR95 % | sharpness error |" in text
    assert "| a | 25.00 | 3.142 |" in text
    assert [c.figure for c in compare(read, "a", read, "b")] == ["fpr95"]


def test_seeds_that_differ_widen_the_interval_over_groups() -> None:
    rng = np.random.default_rng(1)
    luck = np.array([-2.0, 0.5, 1.5])[:, None]
    a = BASE + luck + rng.normal(0, 0.5, (3, 100))
    b = BASE + 1.0 + luck[::-1] + rng.normal(0, 0.5, (3, 100))
    several, single = bootstrap("correct", a, b, GROUPS), bootstrap("correct", a[1], b[1], GROUPS)
    assert (several.seeds_a, several.seeds_b) == (3, 3)
    assert several.difference == pytest.approx(1.0, abs=0.2)
    # The gain of 1 is certain for one pair of runs, but not for what another seed would give.
    assert single.verdict == "B is better"
    assert several.verdict == "not distinguishable"
    # Each method's mean over three seeds varies by about the deviation of the seeds / sqrt(3).
    expected = 2 * 1.96 * np.sqrt(2 * luck.var() / 3)
    assert several.group_high - several.group_low == pytest.approx(expected, rel=0.2)


def test_models_of_a_study_are_seeds_of_one_method() -> None:
    runs = {"a": BASE, "a-seed1": BASE + 1, "a-seedling": BASE + 50, "b": BASE + 3}
    found = compare(result(**runs), "a", result(**runs), "b")[0]
    assert (found.seeds_a, found.seeds_b) == (2, 1)
    assert found.difference == pytest.approx(2.5)
    text = to_markdown([found], "a", "b")
    assert "seeds: 2 of A, 1 of B, resampled with the groups" in text
