"""Every benchmark run end to end on generated data, through the command line's own functions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow
from skimage import data as samples
from typer.testing import CliRunner

from matchserve.types import PatchSpec
from tests.tiny_models import write_tiny_model
from tests.unit.training.corner_scene import write_scene
from training.cli import app
from training.data.photos.photos import PhotoOptions, build_photos
from training.data.store.difficulty import Pairs
from training.data.store.recrop import recrop
from training.errors import DataError
from training.evaluation.benchmarks import homography, pairs, pose
from training.evaluation.cameras import find_scenes, relative_pose
from training.evaluation.commands import shown_command
from training.evaluation.picture import is_correct, picture
from training.evaluation.protocol import Options, load_models
from training.evaluation.tables import read_json

MATRIX = np.array([[0.95, -0.12, 30.0], [0.1, 0.92, -8.0], [1e-4, -5e-5, 1.0]])


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("homography")
    for name in ("camera", "astronaut"):
        picture = getattr(samples, name)()
        grey = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        grey = cv2.resize(grey, (320, 320), interpolation=cv2.INTER_AREA)
        folder = base / f"v_{name}"
        folder.mkdir()
        cv2.imwrite(str(folder / "1.png"), grey)
        cv2.imwrite(str(folder / "2.png"), cv2.warpPerspective(grey, MATRIX, (320, 320)))
        np.savetxt(folder / "H_1_2", MATRIX)
    return base


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("known")
    write_scene(base / "corner", 4)
    return base


def run(*words: str) -> str:
    found = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def options(tmp_path: Path, **changes: object) -> Options:
    return Options(cache=tmp_path / "cache", workspace=tmp_path / "work", **changes)  # type: ignore[arg-type]


def test_homography_prints_a_table_and_keeps_everything(sequences: Path, tmp_path: Path) -> None:
    out = run(
        "evaluate", "sift", "--benchmark", "homography", "--data", str(sequences),
        "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png"),
        "--max-keypoints", "500", "--cache", str(tmp_path / "cache"),
    )  # fmt: skip
    assert "| rootsift |" in out
    result = read_json(tmp_path / "r.json")
    assert list(result.models) == ["sift", "rootsift"]
    figures = result.models["rootsift"].figures
    assert figures["mma@3px"] > 0.75
    assert figures["correct"] > 120
    assert 0.6 < figures["ceiling_share"] <= 1.1
    assert figures["homography_auc@5px"] > 0.8
    assert result.protocol["max_keypoints"] == 500
    assert result.models["sift"].groups == ("v_astronaut", "v_camera")
    assert (tmp_path / "p.png").is_file()
    compared = run("compare", "sift", "rootsift", "--json", str(tmp_path / "r.json"))
    assert "| correct |" in compared


def test_scores_are_computed_again_from_kept_predictions(
    sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(tmp_path, max_keypoints=300)
    models = load_models([], chosen)
    first = homography.run(models, [sequences], chosen)

    def refuse(*_: object) -> None:
        raise AssertionError("described again")

    for model in models:
        monkeypatch.setattr(type(model.descriptor), "describe", refuse)
    again = homography.run(models, [sequences], chosen)
    assert again.models["sift"].figures == first.models["sift"].figures
    with pytest.raises(AssertionError, match="described again"):
        homography.run(models, [sequences], options(tmp_path, max_keypoints=200))


def test_another_picture_gets_other_predictions(sequences: Path, tmp_path: Path) -> None:
    first = homography.read_sequences([sequences]).images.digest
    changed = tmp_path / "v_x"
    changed.mkdir()
    for file in (sequences / "v_camera").iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    before = homography.read_sequences([tmp_path]).images.digest
    picture = np.asarray(Pillow.open(changed / "2.png")).copy()
    picture[0, 0] ^= 1
    Pillow.fromarray(picture).save(changed / "2.png")
    assert homography.read_sequences([tmp_path]).images.digest != before != first


def test_damaged_sequences_are_named(sequences: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sequence"):
        homography.read_sequences([tmp_path])
    folder = tmp_path / "v_y"
    folder.mkdir()
    (folder / "H_1_2").write_text("1 0 0\n0 1 0\n")
    Pillow.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "1.png")
    with pytest.raises(DataError, match="no image 2"):
        homography.read_sequences([tmp_path])
    Pillow.fromarray(np.zeros((20, 20), np.uint8)).save(folder / "2.png")
    with pytest.raises(DataError, match="expected a 3 x 3 matrix"):
        homography.read_sequences([tmp_path])


def test_a_model_of_ours_stands_beside_sift(sequences: Path, tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "models" / "tiny")
    chosen = options(tmp_path, max_keypoints=200)
    result = homography.run(load_models([str(tiny)], chosen), [sequences], chosen)
    assert list(result.models) == ["sift", "rootsift", "tiny"]
    assert len(result.models["tiny"].stamp) == 64
    assert result.models["tiny"].figures["ceiling"] == result.models["sift"].figures["ceiling"]


def test_strecha_cameras_are_read_for_the_stored_size(scene: Path) -> None:
    from tests.unit.training.corner_scene import intrinsics, poses

    views = find_scenes([scene])["corner"]
    rotation, centre = poses(4)[1]
    view = views["0001.png"]
    assert np.allclose(view.rotation, rotation, atol=1e-8)
    assert np.allclose(view.centre, centre, atol=1e-8)
    assert np.allclose(view.camera.matrix, intrinsics(), atol=1e-6)
    turn, shift = relative_pose(views["0000.png"], view)
    point = np.array([-0.4, 0.1, 0.0])
    local = views["0000.png"].rotation @ point + views["0000.png"].translation
    assert np.allclose(turn @ local + shift, view.rotation @ point + view.translation)


def test_pose_finds_the_known_cameras(scene: Path, tmp_path: Path) -> None:
    chosen = options(tmp_path, max_keypoints=800)
    result = pose.run(load_models([], chosen), [scene], chosen)
    figures = result.models["rootsift"].figures
    assert figures["pose_auc@10"] > 0.8
    assert figures["precision"] > 0.5
    assert len(result.models["rootsift"].units) == 6
    limited = pose.run(load_models([], chosen), [scene], options(tmp_path, limit=2))
    assert len(limited.models["sift"].units) == 2


def test_pose_reads_colmap_models_and_h5(scene: Path, tmp_path: Path) -> None:
    import h5py
    import pycolmap

    views = find_scenes([scene])["corner"]
    for kind in ("model", "challenge"):
        (tmp_path / kind / "images").mkdir(parents=True)
        for name, view in views.items():
            (tmp_path / kind / "images" / name).write_bytes(view.path.read_bytes())
    model = pycolmap.Reconstruction()
    (tmp_path / "challenge" / "calibration").mkdir()
    for number, (name, view) in enumerate(views.items(), start=1):
        camera = pycolmap.Camera.create_from_model_id(
            number, pycolmap.CameraModelId.PINHOLE, view.camera.fx, 480, 360
        )
        camera.params = [
            view.camera.fx, view.camera.fy, view.camera.cx + 0.5, view.camera.cy + 0.5,
        ]  # fmt: skip
        model.add_camera_with_trivial_rig(camera)
        image = pycolmap.Image(name=name, camera_id=number, image_id=number)
        turn = pycolmap.Rotation3d(view.rotation)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(turn, view.translation))
        with h5py.File(
            tmp_path / "challenge" / "calibration" / f"calibration_{Path(name).stem}.h5", "w"
        ) as file:
            file["K"], file["R"], file["T"] = view.camera.matrix, view.rotation, view.translation
    (tmp_path / "model" / "sparse").mkdir()
    model.write(tmp_path / "model" / "sparse")
    for kind in ("model", "challenge"):
        read = find_scenes([tmp_path / kind])[kind]
        for name, view in views.items():
            assert np.allclose(read[name].rotation, view.rotation, atol=1e-9)
            assert np.allclose(read[name].centre, view.centre, atol=1e-9)
            assert np.allclose(read[name].camera.matrix, view.camera.matrix, atol=1e-6)
            spots = np.array([[10.0, 20.0], [300.0, 200.0]])
            assert np.allclose(read[name].undistort(spots), spots, atol=1e-6)


def test_sfm_recovers_the_camera_centres(scene: Path, tmp_path: Path) -> None:
    run(
        "evaluate", "rootsift", "--benchmark", "sfm", "--data", str(scene), "--json",
        str(tmp_path / "r.json"), "--max-keypoints", "1000", "--cache", str(tmp_path / "c"),
    )  # fmt: skip
    figures = read_json(tmp_path / "r.json").models["rootsift"].figures
    assert figures["corner: registered"] == 4
    assert figures["corner: points"] > 150
    assert figures["corner: track_length"] > 2
    assert figures["corner: reprojection_px"] < 1.0
    assert figures["corner: centre_error"] < 0.02


def test_rotation_counts_at_every_angle(tmp_path: Path, sequences: Path) -> None:
    run(
        "evaluate", "sift", "--benchmark", "rotation", "--data", str(sequences / "v_camera"),
        "--limit", "1", "--max-keypoints", "300", "--json", str(tmp_path / "r.json"),
        "--cache", str(tmp_path / "c"), "--plot", str(tmp_path / "p.png"),
    )  # fmt: skip
    result = read_json(tmp_path / "r.json").models["rootsift"]
    curve = result.curves["correct matches by angle (degrees)"]
    assert curve["x"] == [float(a) for a in range(0, 360, 15)]
    # Nothing moves at zero degrees, and SIFT turns with the picture.
    assert curve["y"][0] > 0.95 * result.figures["ceiling over rotations"]
    assert min(curve["y"]) > 60


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
    with pytest.raises(DataError, match=r"tiny needs patches of 32 px, K=12; .*K=20 32 px"):
        pairs.run(load_models([str(tiny)], chosen), [wide], chosen)
    other = Path(shutil.copytree(wide, tmp_path / "other"))
    text = (other / "store.json").read_text()
    (other / "store.json").write_text(text.replace("brick.png", "stone.png"))
    with pytest.raises(DataError, match="other: not the classes of"):
        pairs.run(load_models([str(tiny)], chosen), [narrow, other], chosen)


def test_matched_is_what_a_loop_finds() -> None:
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(60), 2)
    chosen = rng.permutation(60)
    drawn = Pairs(2 * chosen, 2 * chosen + 1, np.ones(60, bool))
    scenes = chosen % 2
    centres = rng.normal(size=(60, 4))
    rows = centres[classes] + rng.normal(0, 0.5, (120, 4))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    left, right = rows[drawn.left], rows[drawn.right]
    crowds = pairs._crowds(np.arange(60), scenes)
    assert sorted(len(c) for c in crowds) == sorted(np.bincount(scenes))
    found = pairs._match_crowds(left, right, drawn, crowds, classes)
    for crowd in crowds:
        for i in crowd:
            distances = np.linalg.norm(right[crowd] - left[i], axis=1)
            best = crowd[distances.argmin()]
            back = crowd[np.linalg.norm(left[crowd] - right[best], axis=1).argmin()]
            assert found[i] == (back == i and best == i)
    assert 0.2 < found.mean() < 0.9


def test_speed_measures_each_model_alone(sequences: Path, tmp_path: Path) -> None:
    run(
        "evaluate", "sift", "--benchmark", "speed", "--data", str(sequences / "v_camera"),
        "--max-keypoints", "200", "--json", str(tmp_path / "r.json"),
    )  # fmt: skip
    models = read_json(tmp_path / "r.json").models
    assert list(models) == ["opencv-sift-bf-ratio", "sift", "rootsift"]
    assert models["opencv-sift-bf-ratio"].figures["pair_cpu_vs_opencv"] == 1.0
    assert models["rootsift"].figures["cpu_ms_per_1000_patches"] > 0
    assert 20 < models["rootsift"].figures["peak_rss_mb"] < 3000


def test_an_unknown_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no benchmark 'x'; there are homography, pose"):
        run("evaluate", "sift", "--benchmark", "x", "--data", str(tmp_path))


def test_the_shown_command_leaves_out_where_files_went() -> None:
    words = ["evaluate", "sift", "--json", "/x/r.json", "--data", "/big/dev", "--pattern", "o_*"]
    expected = "python -m training evaluate sift --data dev --pattern 'o_*'"
    assert shown_command(words) == expected


def test_picture_counts_by_the_known_homography(tmp_path: Path) -> None:
    photo = tmp_path / "camera.png"
    cv2.imwrite(str(photo), samples.camera())
    out = run(
        "picture", str(photo), "-o", str(tmp_path / "drawn" / "p.png"), "--model", "rootsift",
        "--model", "sift", "--level", "easy",
    )  # fmt: skip
    counts = [int(line.split()[1]) / int(line.split()[3]) for line in out.splitlines()]
    assert len(counts) == 2
    assert all(0.5 < share <= 1 for share in counts)
    with Pillow.open(tmp_path / "drawn" / "p.png") as drawn:
        rows, columns = samples.camera().shape
        assert drawn.size == (2 * columns + 8, 2 * (rows + 30))
    assert is_correct(np.array([[10.0, 20.0]]), np.array([[12.0, 20.0]]), np.eye(3)).all()
    assert not is_correct(np.array([[10.0, 20.0]]), np.array([[13.5, 20.0]]), np.eye(3)).any()


@pytest.mark.parametrize("name", ["p", "p.xyz"])
def test_picture_refuses_a_format_before_it_reads_the_photograph(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: expected a JPEG or PNG"):
        picture(tmp_path / "none.png", ["rootsift"], tmp_path / name, level="easy", seed=0)
