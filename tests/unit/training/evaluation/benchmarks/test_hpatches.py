"""HPatches scorers on descriptors made by hand, against plain loops over the official rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny_models import write_tiny_model
from tests.unit.training.evaluation.running import run
from tests.unit.training.public_sets import write_hpatches
from training.data.public.hpatches import LEVELS, STRIPS, draw_verification
from training.evaluation.benchmarks.hpatches import (
    all_distances,
    matching,
    retrieval,
    verification,
)
from training.evaluation.tables import read_json
from training.metrics.patch_pairs import average_precision, row_distance

NAMES = ["v_two", "i_one"]
LENGTHS = [30, 20]


@pytest.fixture(scope="module")
def strips() -> dict[str, dict[str, np.ndarray]]:
    """Unit vectors: each strip is the reference with noise that grows with the level."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for name, count in zip(NAMES, LENGTHS, strict=True):
        base = rng.normal(size=(count, 16))
        made[name] = {}
        for strip in STRIPS:
            noise = {"r": 0.0, "e": 0.5, "h": 1.0, "t": 1.6}[strip[0]]
            rows = base + rng.normal(0, noise, base.shape) if noise else base
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            made[name][strip] = rows.astype(np.float32)
    return made


def test_average_precision_has_the_toy_values_of_the_official_code() -> None:
    scores, labels = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 1])
    assert average_precision(scores, labels) == pytest.approx(0.763889, abs=1e-6)
    assert average_precision(scores, labels, 4) == pytest.approx(0.572917, abs=1e-6)


def test_verification_is_the_loop_over_pairs(strips: dict[str, dict[str, np.ndarray]]) -> None:
    lists = draw_verification(NAMES, LENGTHS, 500)
    found = verification(strips, NAMES, lists)
    values = []
    for level in LEVELS:
        images = ["ref", *(f"{level}{i}" for i in range(1, 6))]
        same, intra, inter = [], [], []
        for row in range(500):
            one = NAMES[lists.sequence[row]]
            left = strips[one][images[lists.image0[row]]][lists.index[row]]
            right = images[lists.image1[row]]
            other = NAMES[lists.sequence_inter[row]]
            same.append(np.linalg.norm(left - strips[one][right][lists.index[row]]))
            intra.append(np.linalg.norm(left - strips[one][right][lists.index_intra[row]]))
            inter.append(np.linalg.norm(left - strips[other][right][lists.index_inter[row]]))
        for negative in (intra, inter):
            distance = np.array([*negative, *same[:100]])
            labels = np.r_[np.zeros(500), np.ones(100)]
            values.append(average_precision(-distance, labels))
    assert found["verification"] == pytest.approx(np.mean(values), abs=1e-6)
    assert found["verification e intra"] > found["verification t intra"]


def test_matching_is_the_loop_over_strips(strips: dict[str, dict[str, np.ndarray]]) -> None:
    found, samples = matching(strips, NAMES)
    per_level: dict[str, list[Any]] = {level: [] for level in LEVELS}
    for name in NAMES:
        for level in LEVELS:
            for image in range(1, 6):
                reference, other = strips[name]["ref"], strips[name][f"{level}{image}"]
                scores, labels = [], []
                for row, query in enumerate(reference):
                    far = np.linalg.norm(other.astype(np.float64) - query, axis=1)
                    scores.append(-far.min())
                    labels.append(far.argmin() == row)
                per_level[level].append(
                    average_precision(np.array(scores), np.array(labels), len(reference))
                )
    means = [np.mean(per_level[level]) for level in LEVELS]
    assert found["matching"] == pytest.approx(np.mean(means), abs=1e-6)
    assert found["matching e"] == pytest.approx(means[0], abs=1e-6)
    assert means[0] > means[1] > means[2]
    assert len(samples["matching"]) == 2
    assert found["matching view"] == pytest.approx(samples["matching"][0])


def test_retrieval_is_the_loop_over_queries(strips: dict[str, dict[str, np.ndarray]]) -> None:
    queries = [("v_two", 3), ("i_one", 7), ("v_two", 0)]
    distractors = [("v_two", n) for n in range(5, 20)] + [("i_one", n) for n in range(8, 18)]
    values = []
    for level in LEVELS:
        own = []
        for name, index in queries:
            query = strips[name]["ref"][index]
            copies = [strips[name][f"{level}{i}"][index] for i in range(1, 6)]
            pool = [strips[s]["ref"][n] for s, n in distractors if s != name]
            distance = np.array([np.linalg.norm(query - row) for row in [*copies, *pool]])
            own.append(average_precision(-distance, np.arange(len(distance)) < 5))
        values.append(np.mean(own))
    found = retrieval(strips, queries, distractors)
    assert found["retrieval"] == pytest.approx(np.mean(values), abs=1e-6)
    assert found["retrieval h"] == pytest.approx(values[1], abs=1e-6)


def test_the_rank_cuts_the_list_before_it_is_sorted(
    strips: dict[str, dict[str, np.ndarray]],
) -> None:
    queries = [("v_two", 3)]
    distractors = [("i_one", n) for n in range(20)]
    cut = retrieval(strips, queries, distractors, rank=8)
    few = retrieval(strips, queries, distractors[:3])
    assert cut == few


def test_distances_of_bits_are_counts() -> None:
    left = np.array([[0b11110000, 1]], np.uint8)
    right = np.array([[0b11111111, 0], [0b11110000, 1]], np.uint8)
    assert all_distances(left, right).tolist() == [[5, 0]]
    assert row_distance(left.repeat(2, axis=0), right).tolist() == [5, 0]


def test_models_of_any_patch_size_run(tmp_path: Path) -> None:
    release = write_hpatches(tmp_path)
    sizes = (32, 48, 90)
    names = [
        str(write_tiny_model(tmp_path / "models" / f"tiny{size}", size=size)) for size in sizes
    ]
    run(
        "evaluate", *names, "--benchmark", "hpatches", "--data", str(release), "--limit", "300",
        "--json", str(tmp_path / "r.json"), "--cache", str(tmp_path / "c"),
    )  # fmt: skip
    result = read_json(tmp_path / "r.json")
    for size in sizes:
        figures = result.models[f"tiny{size}"].figures
        assert figures["patch_samples"] == size
        assert 0 < figures["matching"] < 1
    assert result.protocol["patch"].startswith("65 px, resized")
