from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pycolmap
import pytest

from matchserve.collections.cameras import ImageCamera, group_cameras
from matchserve.collections.collection import Collection
from matchserve.collections.colmap import shifted_fundamental, shifted_homography
from matchserve.collections.exports import export_to
from matchserve.collections.facts import Facts
from matchserve.collections.ledger import Ledger
from matchserve.encoding import read_features
from matchserve.errors import InvalidParameter


def test_colmap_database_has_the_matches_and_geometries(
    matched: Collection, tmp_path: Path
) -> None:
    path = tmp_path / "database.db"
    list(export_to(matched, "colmap", path, refine="none"))
    rows = {row.name: row for row in matched.images()}
    with pycolmap.Database.open(path) as database:
        images = {image.name: image for image in database.read_all_images()}
        assert set(images) == set(rows)
        assert database.num_cameras() == 1
        for name0, name1, result in matched.results():
            ids = images[name0].image_id, images[name1].image_id
            geometry = database.read_two_view_geometry(*ids)
            assert np.array_equal(geometry.inlier_matches, result.rows[result.inliers])
            assert np.array_equal(database.read_matches(*ids), result.rows)
            stored = [database.read_keypoints(i)[:, :2].astype(np.float64) for i in ids]
            # The geometry holds for the stored, shifted points.
            assert geometry.F is not None
            error = _epipolar_error(geometry.F, stored, geometry.inlier_matches)
            assert np.median(error) < 1.0
        xy = matched.features(rows["0000.png"]).keypoints.xy
        stored_xy = database.read_keypoints(images["0000.png"].image_id)[:, :2]
        assert np.allclose(stored_xy - xy, 0.5, atol=1e-4)


def _epipolar_error(
    matrix: np.ndarray, points: list[np.ndarray], matches: np.ndarray
) -> np.ndarray:
    first, second = (
        np.column_stack([xy[matches[:, side]], np.ones(len(matches))])
        for side, xy in enumerate(points)
    )
    lines = first @ np.asarray(matrix).T
    return np.asarray(np.abs((second * lines).sum(axis=1)) / np.linalg.norm(lines[:, :2], axis=1))


def test_matrices_are_moved_with_the_points() -> None:
    rng = np.random.default_rng(0)
    homography = np.eye(3) + 0.01 * rng.normal(size=(3, 3))
    point, shift = np.array([3.0, 4.0, 1.0]), np.array([0.5, 0.5, 0.0])
    image = homography @ point
    moved = shifted_homography(homography) @ (point + shift)
    assert np.allclose(moved[:2] / moved[2], image[:2] / image[2] + 0.5)
    fundamental = rng.normal(size=(3, 3))
    other = np.array([7.0, 2.0, 1.0])
    value = (other + shift) @ shifted_fundamental(fundamental) @ (point + shift)
    assert value == pytest.approx(other @ fundamental @ point)


@pytest.mark.parametrize("kind", ["homography", "affine", "similarity"])
def test_maps_of_a_plane_are_planar_geometries(
    matched: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    matrix = np.array([[0.8, -0.6, 20.0], [0.6, 0.8, -5.0], [0.0, 0.0, 1.0]])
    results = [
        (one, other, replace(result, kind=kind, matrix=matrix))
        for one, other, result in matched.results()
    ]
    monkeypatch.setattr(Collection, "results", lambda self, *args, **options: iter(results))
    path = tmp_path / "database.db"
    list(export_to(matched, "colmap", path, refine="none"))
    with pycolmap.Database.open(path) as database:
        ids = {image.name: image.image_id for image in database.read_all_images()}
        geometry = database.read_two_view_geometry(ids[results[0][0]], ids[results[0][1]])
    assert geometry.config == pycolmap.TwoViewGeometryConfiguration.PLANAR
    assert geometry.H is not None
    assert np.allclose(geometry.H, shifted_homography(matrix))


def test_positions_become_pose_priors(matched: Collection, tmp_path: Path) -> None:
    ledger = Ledger(matched.workspace.ledger)
    facts = Facts((480, 360), position=(47.5, 8.25, 420.0), focal_px=500.0)
    with ledger._transaction() as db:
        db.execute(
            "UPDATE image SET facts = ? WHERE id = 1",
            (json.dumps({n: getattr(facts, n) for n in Facts.__slots__}),),
        )
    ledger.close()
    list(export_to(matched, "colmap", tmp_path / "d.db"))
    with pycolmap.Database.open(tmp_path / "d.db") as database:
        (prior,) = database.read_all_pose_priors()
        assert np.allclose(prior.position, [47.5, 8.25, 420.0])
        assert prior.coordinate_system == pycolmap.PosePriorCoordinateSystem.WGS84
        cameras = database.read_all_cameras()
        assert sorted(c.has_prior_focal_length for c in cameras) == [False, True]
        assert {round(c.focal_length) for c in cameras} == {500, 576}


def test_hloc_files_hold_the_same_arrays(matched: Collection, tmp_path: Path) -> None:
    list(export_to(matched, "hloc", tmp_path / "hloc"))
    row = matched.images()[0]
    features = matched.features(row)
    with h5py.File(tmp_path / "hloc" / "features.h5") as file:
        group = file[row.name]
        assert np.array_equal(group["keypoints"], features.keypoints.xy)
        assert group["descriptors"].shape == (128, len(features))
        assert group["image_size"][()].tolist() == [480, 360]
    lines = (tmp_path / "hloc" / "pairs.txt").read_text().splitlines()
    assert len(lines) == 15
    with h5py.File(tmp_path / "hloc" / "matches.h5") as file:
        for name0, name1, result in matched.results():
            matches0 = file[name0.replace("/", "-")][name1.replace("/", "-")]["matches0"][()]
            assert matches0.dtype == np.int32
            kept = np.flatnonzero(matches0 >= 0)
            expected = result.rows[result.inliers]
            assert np.array_equal(np.stack([kept, matches0[kept]], axis=1), expected)


def _read_by_hloc(path: Path, name0: str, name1: str) -> tuple[np.ndarray, np.ndarray]:
    """Read matches as `hloc.utils.io.get_matches` does, whose lines these are."""
    with h5py.File(str(path), "r", libver="latest") as hfile:
        pair = "/".join(name.replace("/", "-") for name in (name0, name1))
        matches = hfile[pair]["matches0"].__array__()
        scores = hfile[pair]["matching_scores0"].__array__()
    idx = np.where(matches != -1)[0]
    matches = np.stack([idx, matches[idx]], -1)
    return matches, scores[idx]


def test_more_keypoints_than_16_bits_count_survive(
    matched: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16-bit matches overflow above 32,767 keypoints; ours are read right."""
    name0, name1, result = next(iter(matched.results()))
    rows = np.array([[1, 2], [3, 40_000], [39_999, 39_998]], np.int32)
    many = replace(
        result, rows=rows, inliers=np.ones(3, np.bool_), score=np.ones(3, np.float32),
        confidence=None, xy1=None,
    )  # fmt: skip
    features = matched.features(matched.images()[0])
    index = np.arange(41_000) % len(features)
    large = replace(
        features, keypoints=features.keypoints[index], descriptors=features.descriptors[index]
    )
    monkeypatch.setattr(Collection, "features", lambda self, row: large)
    monkeypatch.setattr(Collection, "results", lambda self: iter([(name0, name1, many)]))
    list(export_to(matched, "hloc", tmp_path))
    found, scores = _read_by_hloc(tmp_path / "matches.h5", name0, name1)
    np.testing.assert_array_equal(found, rows)
    assert scores.tolist() == [1.0, 1.0, 1.0]


def test_npz_files_are_those_of_describe(matched: Collection, tmp_path: Path) -> None:
    list(export_to(matched, "npz", tmp_path / "npz"))
    row = matched.images()[0]
    features = read_features(tmp_path / "npz" / "features" / f"{row.name}.npz")
    assert np.array_equal(features.descriptors, matched.features(row).descriptors)
    files = sorted((tmp_path / "npz" / "matches").glob("*.npz"))
    assert len(files) == 15
    with np.load(files[0]) as arrays:
        result = matched.result(str(arrays["image0"]), str(arrays["image1"]))
        assert np.array_equal(arrays["matches"], result.rows)


def test_openmvg_files(matched: Collection, tmp_path: Path) -> None:
    folder = tmp_path / "mvg"
    list(export_to(matched, "openmvg", folder))
    scene = json.loads((folder / "sfm_data.json").read_text())
    assert [v["value"]["ptr_wrapper"]["data"]["filename"] for v in scene["views"]] == [
        f"{n:04d}.png" for n in range(6)
    ]
    row = matched.images()[0]
    points = np.loadtxt(folder / "0000.feat")
    assert np.allclose(points[:, :2], matched.features(row).keypoints.xy, atol=1e-3)
    data = (folder / "0000.desc").read_bytes()
    assert int.from_bytes(data[:8], "little") == len(points)
    assert len(data) == 8 + 128 * len(points)
    text = (folder / "matches.f.txt").read_text().split("\n")
    first, second = map(int, text[0].split())
    expected = matched.result(f"{first:04d}.png", f"{second:04d}.png")
    assert int(text[1]) == expected.inliers.sum()


def test_cameras_by_rule() -> None:
    def image(name: str, size: tuple[int, int], camera: str, focal: float | None) -> ImageCamera:
        return ImageCamera(name, size, Facts(size, focal, camera))

    images = [
        image("a/1", (40, 30), "x", 50.0),
        image("a/2", (40, 30), "x", 50.0),
        image("a/3", (40, 30), "y", None),
        image("b/1", (30, 40), "x", 50.0),
    ]

    def groups(rule: str) -> list[tuple[str, ...]]:
        return [g.names for g in group_cameras(images, rule)]  # type: ignore[arg-type]

    assert groups("auto") == [("a/1", "a/2"), ("a/3",), ("b/1",)]
    assert groups("per-folder") == [("a/1", "a/2", "a/3"), ("b/1",)]
    assert len(groups("per-image")) == 4
    with pytest.raises(InvalidParameter, match="30x40"):
        groups("single")
    assert group_cameras(images[:3], "single")[0].focal_px == 50.0
    with pytest.raises(InvalidParameter, match="never"):
        groups("never")
