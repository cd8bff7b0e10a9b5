"""From photographs to a 3D model with known cameras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pycolmap
import pytest

from matchserve.collections.collection import Collection
from matchserve.collections.export_colmap import export_colmap
from matchserve.collections.mapping import MapperOptions, MapRequest, run_mapper
from matchserve.collections.reconstruct import ReconstructOptions, reconstruct
from matchserve.collections.report import make_report, summary
from matchserve.errors import ReconstructionFailed
from matchserve.vision.decode import decode_colour
from tests.corner_scene import FOCAL, SIZE, intrinsics, poses
from training.evaluation.benchmarks.sfm import align_similarity


@pytest.fixture
def model(matched: Collection) -> pycolmap.Reconstruction:
    list(reconstruct(matched, ReconstructOptions(threads=1), workers=1))
    return pycolmap.Reconstruction(matched.workspace.sparse / "0")


def test_cameras_are_where_they_were(model: pycolmap.Reconstruction) -> None:
    assert model.num_reg_images() == 6
    truth = {f"{n:04d}.png": centre for n, (_, centre) in enumerate(poses(6))}
    images = [model.image(i) for i in model.reg_image_ids()]
    found = np.array([image.projection_center() for image in images])
    wanted = np.array([truth[image.name] for image in images])
    scale, rotation, shift = align_similarity(found, wanted)
    error = np.linalg.norm(scale * found @ rotation.T + shift - wanted, axis=1)
    size = np.linalg.norm(wanted.max(axis=0) - wanted.min(axis=0))
    assert error.max() < 0.005 * size
    (camera,) = model.cameras.values()
    assert camera.focal_length == pytest.approx(FOCAL, rel=0.05)


def test_the_half_pixel_is_right(matched: Collection, tmp_path: Path) -> None:
    """True rays of COLMAP's keypoints meet the walls where the true camera sees them."""
    list(export_colmap(matched, tmp_path / "database.db"))
    with pycolmap.Database.open(tmp_path / "database.db") as database:
        image = database.read_image_with_name("0002.png")
        assert image is not None
        stored = database.read_keypoints(image.image_id)[:, :2]
    row = next(r for r in matched.images() if r.name == "0002.png")
    xy = matched.features(row).keypoints.xy
    # Our principal point is (W - 1) / 2 with pixel centres at integers, COLMAP's is W / 2.
    ours = (xy - intrinsics()[:2, 2]) / FOCAL
    theirs = (stored - np.array(SIZE) / 2) / FOCAL
    assert np.abs(ours - theirs).max() * FOCAL < 0.02


def test_files_and_report(matched: Collection, model: pycolmap.Reconstruction) -> None:
    place = matched.workspace
    fields = orjson.loads((place.root / "report.json").read_bytes())
    assert fields["models"][0]["registered"] == 6
    assert fields["models"][0]["points"] == model.num_points3D()
    assert fields["components"] == [6]
    picture = decode_colour((place.root / "report.png").read_bytes(), max_side=4000)
    assert picture.shape[1] == 2 * 760
    text = summary(make_report(matched))
    assert "6 of 6 images registered" in text


def test_a_finished_reconstruction_is_not_made_again(
    matched: Collection, model: pycolmap.Reconstruction
) -> None:
    del model
    before = (matched.workspace.sparse / "0" / "images.bin").stat().st_mtime_ns
    stages = {step.stage for step in reconstruct(matched, ReconstructOptions(threads=1), workers=1)}
    assert "map" not in stages
    assert (matched.workspace.sparse / "0" / "images.bin").stat().st_mtime_ns == before


def test_unrelated_images_fail_with_a_report(tmp_path: Path) -> None:
    from matchserve.pattern import generate
    from tests.conftest import encoded

    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(3):
        (folder / f"{seed}.png").write_bytes(encoded(generate((200, 150), seed=seed)))
    collection = Collection(tmp_path / "w", images=folder, model="sift")
    with pytest.raises(ReconstructionFailed, match="no pair has enough"):
        list(reconstruct(collection, workers=1))
    fields = orjson.loads((tmp_path / "w" / "report.json").read_bytes())
    assert fields["components"] == []
    assert len(fields["alone"]) == 3


def test_a_mapper_that_dies_is_one_error(tmp_path: Path) -> None:
    request = MapRequest(
        tmp_path / "nothing" / "database.db", tmp_path, tmp_path / "out", "incremental",
        MapperOptions(),
    )  # fmt: skip
    with pytest.raises(ReconstructionFailed, match=r"map\.log"):
        list(run_mapper(request, 3, tmp_path / "map.log"))


@pytest.mark.slow
def test_the_global_mapper_registers_all(matched: Collection) -> None:
    list(reconstruct(matched, ReconstructOptions(mapper="global", threads=1), workers=1))
    assert make_report(matched).models[0].registered == 6


def cli(*args: object) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "matchserve", *map(str, args)], capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.slow
def test_the_command_line(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--model", "rootsift", "--max-keypoints", 800, "--workers", 1]
    dry = cli("reconstruct", photos, "-o", out, "--dry-run", *options)
    assert b"6 images, 15 pairs" in dry.stderr
    assert not out.exists()
    done = cli("reconstruct", photos, "-o", out, *options)
    assert done.returncode == 0, done.stderr.decode()
    assert b"6 of 6 images registered" in done.stderr
    assert b"match 15/15" in done.stderr
    assert (out / "sparse" / "0" / "points3D.bin").is_file()
    status = orjson.loads(cli("collection", "status", out, "--json").stdout)
    assert status["pairs_matched"] == 15
    assert cli("collection", "report", out).returncode == 0
    exported = cli("collection", "export", out, "--format", "hloc", "-o", tmp_path / "h")
    assert exported.returncode == 0
    assert (tmp_path / "h" / "features.h5").is_file()
    (photos / "bad.jpg").write_bytes(b"x")
    again = cli("collection", "match", photos, "-o", out, "--json", *options)
    assert again.returncode == 65
    assert b"1 refused (1 unsupported_format)" in again.stderr
    assert b"not used: 'bad.jpg': unsupported_format" in again.stderr
    assert orjson.loads(again.stderr.splitlines()[0])["stage"] == "describe"
