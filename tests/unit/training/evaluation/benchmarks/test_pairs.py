from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data as samples

from matchserve.types import PatchSpec
from tests.tiny_models import write_tiny_model
from tests.unit.training.evaluation.running import options, run
from training.data.photos.build import PhotoOptions, build_photos
from training.data.store.pairs import PatchPairs
from training.data.store.recrop import recrop
from training.errors import DataError
from training.evaluation.benchmarks import pairs
from training.evaluation.protocol import load_models


def test_pairs_reads_the_store_cut_as_each_model_wants(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    cv2.imwrite(str(tmp_path / "in" / "camera.png"), samples.camera())
    cv2.imwrite(str(tmp_path / "in" / "brick.png"), samples.brick())
    narrow = build_photos(
        [tmp_path / "in"],
        tmp_path / "k12",
        PhotoOptions(levels=("easy", "medium"), max_classes=150, max_keypoints=600),
        workers=1,
    )
    wide = recrop(
        narrow, [tmp_path / "in"], tmp_path / "k20", PatchSpec(magnification=20), workers=1
    )
    tiny = write_tiny_model(tmp_path / "models" / "tiny")
    out = run(
        "evaluate", str(tiny), "--benchmark", "pairs", "--data", str(narrow), "--data", str(wide),
        "--limit", "2000", "--json", str(tmp_path / "r.json"), "--cache", str(tmp_path / "c"),
    )  # fmt: skip
    assert "| tiny |" in out
    held = json.loads((tmp_path / "r.json").read_text())
    assert 0 <= held["models"]["rootsift"]["figures"]["fpr95"] < 0.4
    assert (
        held["models"]["rootsift"]["figures"]["fpr95"] < held["models"]["tiny"]["figures"]["fpr95"]
    )
    for name in ("rootsift", "tiny"):
        figures = held["models"][name]["figures"]
        assert 0.1 < figures["matched"] <= 1
    chosen = options(tmp_path, limit=100)
    with pytest.raises(
        DataError, match=r"tiny needs .* --magnification 12 --size 32; .*--magnification 20"
    ):
        pairs.run(load_models([str(tiny)], chosen), [wide], chosen)
    other = Path(shutil.copytree(wide, tmp_path / "other"))
    text = (other / "store.json").read_text()
    (other / "store.json").write_text(text.replace("brick.png", "stone.png"))
    with pytest.raises(DataError, match="other: its classes are not those of"):
        pairs.run(load_models([str(tiny)], chosen), [narrow, other], chosen)


def test_matched_is_what_a_loop_finds() -> None:
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(60), 2)
    chosen = rng.permutation(60)
    drawn = PatchPairs(2 * chosen, 2 * chosen + 1, np.ones(60, bool))
    scenes = chosen % 2
    centres = rng.normal(size=(60, 4))
    rows = centres[classes] + rng.normal(0, 0.5, (120, 4))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    left, right = rows[drawn.left], rows[drawn.right]
    groups = pairs.matching_groups(np.arange(60), scenes)
    assert sorted(len(g) for g in groups) == sorted(np.bincount(scenes))
    is_matched = pairs.match_groups(left, right, pairs.DrawnPairs(drawn, classes, [], groups))
    for group in groups:
        for i in group:
            distances = np.linalg.norm(right[group] - left[i], axis=1)
            best = group[distances.argmin()]
            back = group[np.linalg.norm(left[group] - right[best], axis=1).argmin()]
            assert is_matched[i] == (back == i and best == i)
    assert 0.2 < is_matched.mean() < 0.9
