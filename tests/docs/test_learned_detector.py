"""The research networks of `docs/research/learned_detector` do what their docstrings say."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from matchserve.types import UInt8
from matchserve.vision.decode import from_array
from matchserve.vision.keypoints import DetectOptions
from tests.conftest import encoded
from tests.docs.blocks import ROOT
from training.detector.network import ScoreNetwork

FOLDER = ROOT / "docs/research/learned_detector"
MODULES = ("pairs", "scored", "finding")


@pytest.fixture
def research(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The modules of the folder, whose names are their own only while a test runs."""
    monkeypatch.syspath_prepend(FOLDER)
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_an_untrained_score_is_contrast_times_sigma(
    research: dict[str, Any], photograph: UInt8
) -> None:
    scored, image = research["scored"], from_array(photograph)
    candidates = scored.find_candidates(image, 300)
    with torch.inference_mode():
        score = scored.ScoreNet()(torch.from_numpy(candidates.patches), candidates.scalars)
    expected = np.log(candidates.rows[:, 4] * candidates.rows[:, 2])
    assert np.ptp(score.numpy() - expected) < 1e-4
    rows = scored.choose(scored.ScoreNet(), candidates, image, 100)
    assert len(rows) == 100
    assert rows[:, 4].min() > np.median(np.exp(score.numpy()))


def test_an_untrained_network_finds_keypoints_inside_the_image(
    research: dict[str, Any], photograph: UInt8
) -> None:
    torch.manual_seed(0)
    net = ScoreNetwork().eval()
    options = DetectOptions(max_keypoints=50, further_orientations=0.0)
    found = research["finding"].find(net, 2.4, from_array(photograph[:200, :240]), options)
    assert len(found) == 50
    assert ((found.xy >= 0) & (found.xy <= [239, 199])).all()
    assert (found.sigma > 0).all()


def test_held_out_photographs_are_not_learned_from(
    research: dict[str, Any], tmp_path: Path, photograph: UInt8
) -> None:
    pairs = research["pairs"]
    for name in pairs.LARGE_SETS:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.write_bytes(encoded(photograph[:64, :64]))
    kept = {name for each in pairs.LARGE_SETS for name in pairs.held_out(tmp_path / "photos", each)}
    used = {pair.name.split("#")[0] for pair in pairs.training_pairs(tmp_path, 100, 0)}
    assert len(kept) == 2
    assert len(used) == 18
    assert not kept & used
