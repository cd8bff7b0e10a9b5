"""Structure from motion to classes, on a scene whose geometry is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matchserve.types import Keypoints, PatchSpec
from tests.corner_scene import intrinsics, poses, write_scene
from training.data.photos.correspondence import Tolerance
from training.data.scenes.build import SceneOptions, build_scenes, find_scenes
from training.data.scenes.classes import classes_from_matches, classes_from_model
from training.data.scenes.observations import (
    Observations,
    lowest_of_each,
    plane_angles,
    same_group_pairs,
)
from training.data.scenes.sfm import Scene, SfmOptions, read_scene
from training.data.scenes.tracks import (
    TrackOptions,
    connected_labels,
    drop_inconsistent,
    in_enough_images,
    most_different,
)
from training.data.store.reader import PatchStore
from training.errors import DataError


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes") / "corner"
    write_scene(folder, 5)
    for extra in (folder / "gt_cameras").iterdir():
        extra.unlink()
    (folder / "gt_cameras").rmdir()
    return folder / "images"


@pytest.fixture(scope="module")
def built(corner: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    base = tmp_path_factory.mktemp("built")
    options = SceneOptions(
        spec=PatchSpec(magnification=16), sfm=SfmOptions(max_keypoints=1200, max_partners=14)
    )
    lines = build_scenes([corner], base / "store", options, workspace=base / "work", workers=1)
    return base / "store", base / "work" / "images", lines


def test_all_images_register_and_say_so(built: tuple[Path, Path, list[str]]) -> None:
    _, _, lines = built
    assert lines[0].startswith("images: 5 of 5 images registered, ")


def test_every_class_is_one_point_of_the_true_scene(
    built: tuple[Path, Path, list[str]],
) -> None:
    """Cast rays at the true walls: all keypoints of a class must hit the same place."""
    store = PatchStore.open(built[0])
    assert len(store) > 150
    assert store.class_sizes.min() >= 2
    spread = []
    for start, size in zip(store.class_starts, store.class_sizes, strict=True):
        rows = np.arange(start, start + size)
        hits = np.array(
            [_on_wall(store.images[store.sources[row]], store.keypoints[row]) for row in rows]
        )
        sigma = np.median(store.keypoints[rows, 2])
        # A pixel is about 8 mm at this distance.
        spread.append(np.linalg.norm(hits - np.median(hits, axis=0), axis=1).max() / 0.008 / sigma)
    assert np.mean(np.array(spread) < 3.0) > 0.97


def test_a_second_run_uses_the_reconstruction_of_the_first(
    built: tuple[Path, Path, list[str]], corner: Path, tmp_path: Path
) -> None:
    store, work, _ = built
    before = (work / "done.json").stat().st_mtime_ns
    options = SceneOptions(
        spec=PatchSpec(magnification=16), sfm=SfmOptions(max_keypoints=1200, max_partners=14)
    )
    build_scenes([corner], tmp_path / "again", options, workspace=work.parent, workers=1)
    assert (work / "done.json").stat().st_mtime_ns == before
    assert PatchStore.open(tmp_path / "again").digest == PatchStore.open(store).digest


def test_observations_are_added_beyond_the_matched_ones(
    built: tuple[Path, Path, list[str]],
) -> None:
    scene = read_scene(built[1])
    alone = classes_from_model(scene, TrackOptions(max_angle_deg=0))
    more = classes_from_model(scene, TrackOptions())
    assert len(more.sizes) == len(alone.sizes)
    assert more.sizes.sum() > alone.sizes.sum()


def test_without_a_model_classes_come_from_matches_and_say_so(
    built: tuple[Path, Path, list[str]],
) -> None:
    scene = read_scene(built[1])
    bare = Scene(scene.keypoints, scene.matches, None)
    made = classes_from_matches(bare, TrackOptions())
    assert "two-view" in made.remark
    assert len(made.sizes) > 150
    ends = np.cumsum(made.sizes)
    for start, end in zip(ends - made.sizes, ends, strict=True):
        names = made.images[start:end]
        assert len(set(names)) == len(names) >= 2


def test_a_chain_that_returns_to_an_image_elsewhere_is_dropped() -> None:
    ones = np.ones(3, np.float32)
    keypoints = {name: Keypoints(np.zeros((3, 2), np.float32), ones, ones, ones) for name in "abc"}
    good = np.array([[2, 2]])
    matches = {
        ("a", "b"): np.array([[0, 0], [2, 2]]),
        ("b", "c"): np.array([[0, 0]]),
        ("a", "c"): np.array([[1, 0]]),
    }
    made = classes_from_matches(Scene(keypoints, matches, None), TrackOptions())
    assert made.sizes.tolist() == [2]
    assert made.rows.tolist() == good.ravel().tolist()
    assert made.images == ("a", "b")


def test_observations_of_another_size_or_angle_are_dropped() -> None:
    observed = _observations(sizes=[1, 1.1, 0.95, 2.5, 1.0], angles=[0, 0.1, -0.1, 0, 1.2])
    kept = drop_inconsistent(observed, 1, Tolerance(1.0, 0.5, 30))
    assert sorted(kept.image.tolist()) == [0, 1, 2]
    assert len(in_enough_images(kept, 3)) == 3
    assert len(in_enough_images(kept, 4)) == 0


def test_only_the_observation_of_lowest_error_in_an_image_is_kept() -> None:
    observed = _observations(sizes=[1, 1, 1], angles=[0, 0, 0])
    twice = Observations(
        observed.point,
        np.array([0, 0, 1]),
        observed.row,
        np.array([0.9, 0.2, 0.5]),
        observed.size,
        observed.toward,
        observed.heading,
    )
    kept = drop_inconsistent(twice, 1, Tolerance(1.0, 0.5, 30))
    assert sorted(kept.row.tolist()) == [1, 2]


def test_the_most_different_observations_are_kept() -> None:
    observed = _observations(sizes=[1, 1.01, 1.02, 4.0, 0.25], angles=[0] * 5)
    assert most_different(observed, 3).tolist() == [True, False, False, True, True]
    assert most_different(observed, 5).all()


def test_connected_numbers_get_the_label_of_the_lowest() -> None:
    links = np.array([[4, 2], [2, 0], [5, 3]])
    assert connected_labels(7, links).tolist() == [0, 1, 0, 3, 0, 3, 6]
    assert connected_labels(3, np.zeros((0, 2), np.int64)).tolist() == [0, 1, 2]


def test_connected_labels_of_a_random_graph() -> None:
    rng = np.random.default_rng(0)
    links = rng.integers(0, 200, (120, 2))
    label = list(range(200))
    for one, other in links.tolist():
        low, high = sorted((label[one], label[other]))
        label = [low if value == high else value for value in label]
    assert connected_labels(200, links).tolist() == label
    assert len(set(label)) < 120


def test_group_helpers_against_loops() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 6, 40)
    left, right = same_group_pairs(group)
    expected = {(i, j) for i in range(40) for j in range(40) if group[i] == group[j]}
    assert set(zip(left.tolist(), right.tolist(), strict=True)) == expected
    assert len(left) == len(expected)
    value = rng.random(40)
    marked = lowest_of_each(group, value)
    for number in np.unique(group):
        own = np.flatnonzero(group == number)
        assert marked[own].sum() == 1
        assert own[marked[own]][0] == own[value[own].argmin()]


def test_scenes_are_folders_or_folders_of_folders(tmp_path: Path) -> None:
    for name in ("x/a.png", "x/b.png", "y/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert {k: len(v) for k, v in find_scenes([tmp_path]).items()} == {"x": 2, "y": 1}
    assert list(find_scenes([tmp_path / "x"])) == ["x"]
    with pytest.raises(DataError, match="second scene named x"):
        find_scenes([tmp_path / "x", tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        find_scenes([tmp_path / "empty"])


def _on_wall(name: str, keypoint: np.ndarray) -> np.ndarray:
    rotation, centre = poses(5)[int(Path(name).stem)]
    ray = np.linalg.inv(intrinsics()) @ [keypoint[0], keypoint[1], 1] @ rotation
    hits = []
    for axis in (0, 2):
        reach = -centre[axis] / ray[axis]
        if reach > 0:
            hits.append(reach)
    return np.asarray(centre + min(hits) * ray)


def _observations(sizes: list[float], angles: list[float]) -> Observations:
    count = len(sizes)
    turn = np.array(angles)
    heading = np.stack([np.cos(turn), np.sin(turn), np.zeros(count)], axis=1)
    toward = np.tile([0.0, 0.0, -1.0], (count, 1))
    numbers = np.arange(count)
    observed = Observations(
        np.zeros(count, np.int64),
        numbers,
        numbers,
        np.asarray(0.1 + 0.01 * numbers, np.float64),
        np.array(sizes, np.float64),
        toward,
        heading,
    )
    spread = plane_angles(observed, 1)
    assert np.allclose(np.abs(np.diff(spread)), np.abs(np.diff(turn)), atol=1e-9)
    return observed
