"""Cameras: COLMAP's models, their text, and the pose of distorted images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pycolmap
import pytest

from matchserve.errors import InvalidParameter
from matchserve.matcher import Matcher
from matchserve.options import Options
from matchserve.vision.cameras import Camera, chosen_cameras, parse_camera
from matchserve.vision.distortion import LENSES
from matchserve.vision.geometry import VerifyOptions, verify
from tests.distorted_scene import CAMERAS, distorted_pair

PARAMETERS = {
    "SIMPLE_PINHOLE": (700, 400, 300),
    "PINHOLE": (700, 710, 400, 300),
    "SIMPLE_RADIAL": (700, 400, 300, -0.2),
    "RADIAL": (700, 400, 300, -0.2, 0.05),
    "OPENCV": (700, 710, 400, 300, -0.2, 0.05, 0.003, -0.002),
    "FULL_OPENCV": (700, 710, 400, 300, 0.1, 0.05, 0.003, -0.002, 0.01, 0.3, 0.02, 0.01),
    "FOV": (700, 710, 400, 300, 0.9),
    "SIMPLE_RADIAL_FISHEYE": (500, 400, 300, -0.02),
    "RADIAL_FISHEYE": (500, 400, 300, -0.02, 0.01),
    "OPENCV_FISHEYE": (500, 510, 400, 300, -0.02, 0.01, -0.002, 0.001),
    "THIN_PRISM_FISHEYE": (500, 510, 400, 300, -0.02, 0.01, 1e-3, 2e-3, 1e-3, 1e-4, 1e-3, 2e-3),
}


@pytest.mark.parametrize("model", LENSES)
def test_every_model_undistorts_as_colmap_does(model: str) -> None:
    xy = np.random.default_rng(0).uniform((0, 0), (800, 600), (200, 2))
    colmap = pycolmap.Camera(model=model, width=800, height=600, params=list(PARAMETERS[model]))
    camera = Camera.from_colmap(model, PARAMETERS[model])
    rays = np.asarray(colmap.cam_from_img(xy + 0.5))
    expected = rays * [camera.fx, camera.fy] + [camera.cx, camera.cy]
    found = camera.undistorted(xy)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(camera.distorted(found), xy, atol=1e-5)


def test_rays_that_no_pinhole_camera_sees_are_nan() -> None:
    fisheye = Camera.from_colmap("OPENCV_FISHEYE", (200, 200, 400, 300, 0, 0, 0, 0))
    found = fisheye.undistorted(np.array([[400.0, 300.0], [400.0 + 200 * 1.6, 300.0]]))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize(
    "text",
    [
        "900,910,320,240",
        "opencv 700 710 400 300 -0.2 0.05 0.003 -0.002",
        "SIMPLE_RADIAL,800,600,700,400,300,-0.2",
    ],
)
def test_a_camera_survives_its_text(text: str) -> None:
    camera = parse_camera(text)
    assert isinstance(camera, Camera)
    assert parse_camera(str(camera)) == camera


def test_a_line_of_colmap_has_its_pixel_centres_at_a_half() -> None:
    assert parse_camera("PINHOLE,700,700,400,300") == parse_camera("700,700,399.5,299.5")


@pytest.mark.parametrize(
    "text",
    ["", "900", "900,900,320", "900,900,a,1", "NIKON,1,2,3,4", "RADIAL,1,2", "0,900,1,1",
     "PINHOLE,800.5,600,1,1,1,1", "nan,900,320,240", "OPENCV,1,1,1,1,inf,0,0,0"],
)  # fmt: skip
def test_what_is_no_camera_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"camera|parameters"):
        parse_camera(text)


def test_one_camera_for_both_or_one_for_each() -> None:
    assert chosen_cameras(None, None, None) is None
    assert chosen_cameras("exif", None, None) == ("exif", "exif")
    for given in (("exif", "exif", None), (None, "exif", None), (None, None, "1,1,0,0")):
        with pytest.raises(InvalidParameter):
            chosen_cameras(*given)


def test_a_camera_is_fitted_to_a_smaller_copy() -> None:
    camera = Camera.from_colmap("RADIAL", (700, 400, 300, -0.2, 0.05), (800, 600))
    small = camera.fitted_to((400, 300))
    xy = np.array([[100.0, 50.0]])
    np.testing.assert_allclose(
        small.undistorted((xy + 0.5) / 2 - 0.5), (camera.undistorted(xy) + 0.5) / 2 - 0.5
    )
    with pytest.raises(InvalidParameter, match="800x600"):
        camera.fitted_to((600, 800))


def test_the_pose_of_distorted_images_is_found() -> None:
    pair = distorted_pair()
    matcher = Matcher("rootsift")
    options = Options(verify=VerifyOptions("pose", 1.5, cameras=CAMERAS))
    found = matcher.match(*pair.images, options).verification
    assert found.pose is not None
    assert max(pair.errors(found.pose)) < 0.2
    assert found.cameras == (str(CAMERAS[0]), str(CAMERAS[1]))
    # The same images taken for those of pinhole cameras.
    straight = (CAMERAS[0].pinhole(), CAMERAS[1].pinhole())
    ignored = replace(options, verify=VerifyOptions("pose", 1.5, cameras=straight))
    wrong = matcher.match(*pair.images, ignored).verification
    assert wrong.pose is not None
    assert max(pair.errors(wrong.pose)) > 1.0


def test_an_exif_camera_needs_an_image() -> None:
    options = VerifyOptions("pose", cameras=("exif", "exif"))
    with pytest.raises(InvalidParameter, match="EXIF"):
        verify(np.zeros((9, 2)), np.zeros((9, 2)), ((9, 9), (9, 9)), options)
