"""Matches of a collection that COLMAP verifies."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pycolmap
import pytest

from matchserve.clock import Call
from matchserve.collections import collection as module
from matchserve.collections.collection import Collection
from matchserve.collections.colmap_verification import match_with_colmap
from matchserve.collections.exports import export_to
from matchserve.collections.ledger import Ledger
from matchserve.collections.work import load_matcher
from matchserve.errors import InvalidParameter, ProviderUnavailable, WorkspaceMismatch
from matchserve.types import Float64
from matchserve.vision.geometry import VerifyOptions
from tests.corner_scene import FOCAL
from tests.unit.matchserve.collections.conftest import OPTIONS


@pytest.fixture(scope="module")
def verified(
    scene: Path, matched_once: Path, tmp_path_factory: pytest.TempPathFactory
) -> Collection:
    return verify(scene, matched_once, tmp_path_factory.mktemp("colmap"))


def verify(scene: Path, described: Path, workspace: Path) -> Collection:
    """Match the scene, whose features are there already, with COLMAP's geometries."""
    collection = Collection(
        workspace, images=scene / "images", model="rootsift", options=OPTIONS,
        store=described / "features", verify_with="colmap",
    )  # fmt: skip
    list(collection.match(workers=1))
    assert collection.counts.described == 0
    return collection


def test_the_database_has_the_geometries_of_colmap(verified: Collection, tmp_path: Path) -> None:
    path = tmp_path / "database.db"
    list(export_to(verified, "colmap", path, refine="none"))
    configurations = pycolmap.TwoViewGeometryConfiguration
    found = {pair[:2]: pair[2] for pair in verified.results()}
    count = 0
    with pycolmap.Database.open(path) as database:
        images = {image.name: image for image in database.read_all_images()}
        for names, result in found.items():
            if not result.is_verified:
                continue
            count += 1
            assert result.colmap is not None
            assert result.colmap.F is not None
            first, second = (images[name] for name in names)
            geometry = database.read_two_view_geometry(first.image_id, second.image_id)
            assert configurations(int(geometry.config)).name == result.colmap.config
            assert geometry.F is not None
            assert np.array_equal(geometry.F, result.colmap.F)
            assert np.array_equal(geometry.inlier_matches, result.rows[result.inliers])
            camera0, camera1 = (database.read_camera(i.camera_id) for i in (first, second))
            xy0, xy1 = (database.read_keypoints(i.image_id)[:, :2] for i in (first, second))
            matches = database.read_matches(first.image_id, second.image_id)
            again = pycolmap.estimate_two_view_geometry(
                camera0, xy0.astype(np.float64), camera1, xy1.astype(np.float64), matches
            )
            # COLMAP alone, with its looser threshold and another seed, finds about the same.
            assert len(again.inlier_matches) == pytest.approx(result.inliers.sum(), rel=0.15)
    assert count >= 10


def test_the_matrix_of_a_result_is_in_our_pixels(verified: Collection) -> None:
    rows = {row.name: row for row in verified.images()}
    for name0, name1, result in verified.results():
        if result.is_verified and result.kind == "fundamental":
            agreeing = result.rows[result.inliers]
            xy0, xy1 = (
                np.column_stack([verified.features(rows[name]).keypoints.xy[agreeing[:, side]],
                                 np.ones(len(agreeing))])
                for side, name in enumerate((name0, name1))
            )  # fmt: skip
            distance = off_line(np.asarray(result.matrix), xy0, xy1)
            # 0.5 with pycolmap 4.2.1; the estimates of 4.0.0 are less accurate.
            assert np.median(distance) < 0.8
            assert result.colmap is not None
            assert result.colmap.F is not None
            shift = np.array([0.5, 0.5, 0.0])  # to COLMAP's pixels
            theirs = off_line(result.colmap.F, xy0 + shift, xy1 + shift)
            np.testing.assert_allclose(distance, theirs, atol=1e-6)


def off_line(matrix: Float64, xy0: Float64, xy1: Float64) -> Float64:
    """Distances in pixels of homogeneous points of image 1 from their epipolar lines."""
    lines = xy0 @ matrix.T
    return np.asarray(np.abs((xy1 * lines).sum(axis=1)) / np.linalg.norm(lines[:, :2], axis=1))


def test_results_are_repeatable_and_apart_from_ours(
    verified: Collection, scene: Path, matched_once: Path, tmp_path: Path
) -> None:
    again = verify(scene, matched_once, tmp_path / "again")
    files = [sorted(c.workspace.root.glob("matches/*.npz")) for c in (verified, again)]
    assert [f.name for f in files[0]] == [f.name for f in files[1]]
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]
    ours = {f.name for f in matched_once.glob("matches/*.npz")}
    assert ours.isdisjoint(f.name for f in files[0])


def test_a_workspace_keeps_its_verifier(verified: Collection) -> None:
    root, images = verified.workspace.root, verified.folder
    assert Collection.open(root).setup.verifier == "colmap"
    other = Collection(root, images=images, model="rootsift", options=OPTIONS)
    with pytest.raises(WorkspaceMismatch, match="verify_with"):
        list(other.match(workers=1))


def test_a_workspace_of_an_earlier_version_is_continued(matched: Collection) -> None:
    """Their recorded setup does not say what verified the matches."""
    fields = matched._fields(load_matcher(matched.setup).descriptor.card)
    del fields["verify_with"]
    with closing(Ledger(matched.workspace.ledger)) as ledger:
        ledger.set_setup(json.dumps(fields))
    list(matched.match(workers=1))
    assert matched.counts.matched == 0
    assert Collection.open(matched.workspace.root).setup.verifier == "matchserve"


def test_known_focal_lengths_make_it_an_essential_matrix(verified: Collection) -> None:
    matcher = load_matcher(verified.setup)
    rows = verified.images()
    pair = verified.features(rows[0]), verified.features(rows[1])
    options = verified.setup.options
    result, geometry = match_with_colmap(matcher, pair, (FOCAL, FOCAL), options, Call())
    assert geometry.config == "CALIBRATED"
    assert geometry.E is not None
    assert result.same_scene is None
    _, unknown = match_with_colmap(matcher, pair, (None, None), options, Call())
    assert unknown.config == "UNCALIBRATED"
    assert unknown.E is None


def test_pairs_that_share_nothing_are_not_verified(verified: Collection) -> None:
    matcher = load_matcher(verified.setup)
    features = verified.features(verified.images()[0])
    none = replace(features, keypoints=features.keypoints[:0], descriptors=features.descriptors[:0])
    result, geometry = match_with_colmap(
        matcher, (features, none), (None, None), verified.setup.options, Call()
    )
    assert (geometry.config, geometry.is_verified) == ("DEGENERATE", False)
    assert len(result.matches) == 0
    assert result.verification.matrix is None


def test_what_colmap_cannot_do_is_refused(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planar = replace(OPTIONS, verify=VerifyOptions("homography"))
    with pytest.raises(InvalidParameter, match="COLMAP chooses the geometry"):
        Collection(tmp_path, images=scene / "images", options=planar, verify_with="colmap")
    with pytest.raises(InvalidParameter, match="verify_with is 'opencv'"):
        Collection(tmp_path, images=scene / "images", verify_with="opencv")  # type: ignore[arg-type]

    def absent() -> None:
        raise ProviderUnavailable("pycolmap is not installed")

    monkeypatch.setattr(module, "import_pycolmap", absent)
    collection = Collection(tmp_path, images=scene / "images", verify_with="colmap")
    with pytest.raises(ProviderUnavailable, match="pycolmap"):
        next(collection.match())
    assert not list(tmp_path.iterdir())
