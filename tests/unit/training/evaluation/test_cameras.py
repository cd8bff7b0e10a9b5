from __future__ import annotations

from pathlib import Path

import numpy as np

from training.evaluation.cameras import find_scenes, relative_pose


def test_strecha_cameras_are_read_for_the_stored_size(scene: Path) -> None:
    from tests.corner_scene import intrinsics, poses

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
