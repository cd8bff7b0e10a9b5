"""Georeferences of GeoTIFF files, and matches in map coordinates."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from matchserve.cli import app
from matchserve.errors import InvalidParameter, MissingInput
from matchserve.geotiff import GeoReference, georeference_of, read_georeference
from matchserve.pattern import generate
from tests.geotiff_files import (
    GEO_KEYS,
    PIXEL_SCALE,
    TIEPOINT,
    TRANSFORMATION,
    UTM_33N,
    bare_tiff,
    geo_keys,
    write_geotiff,
)

SCALE_AND_TIE = {
    PIXEL_SCALE: (0.5, 0.25, 0.0),
    TIEPOINT: (10.0, 20.0, 0.0, 400_000.0, 5_000_000.0, 0.0),
}


def read(tags: dict[int, tuple[float, ...]], **layout: object) -> GeoReference | None:
    return read_georeference(io.BytesIO(bare_tiff(tags, **layout)))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("is_big", [False, True])
def test_scale_and_tie_point(order: str, is_big: bool) -> None:
    tags = SCALE_AND_TIE | {GEO_KEYS: geo_keys({1024: 1, 3072: UTM_33N})}
    found = read(tags, order=order, is_big=is_big)
    assert found is not None
    assert found.epsg == UTM_33N
    # The tie point is a corner; the centre of the pixel right below it is half a pixel farther.
    assert found.to_map(np.array([[10, 20], [9.5, 19.5]])).tolist() == [
        [400_000.25, 4_999_999.875],
        [400_000.0, 5_000_000.0],
    ]


def test_pixel_is_point() -> None:
    found = read(SCALE_AND_TIE | {GEO_KEYS: geo_keys({1025: 2, 2048: 4326})})
    assert found is not None
    assert found.epsg == 4326
    assert found.to_map(np.array([[10, 20]])).tolist() == [[400_000.0, 5_000_000.0]]


def test_a_rotated_map() -> None:
    matrix = (0.0, -2.0, 0.0, 100.0, 3.0, 0.0, 0.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    found = read({TRANSFORMATION: matrix, GEO_KEYS: geo_keys({1025: 2})})
    assert found is not None
    assert found.epsg is None
    assert found.to_map(np.array([[1.0, 10.0]])).tolist() == [[80.0, 53.0]]


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {PIXEL_SCALE: (1.0, 1.0, 0.0)},
        {PIXEL_SCALE: (0.0, 1.0, 0.0), TIEPOINT: (0.0,) * 6},
        {PIXEL_SCALE: (float("nan"), 1.0, 0.0), TIEPOINT: (0.0,) * 6},
        {TIEPOINT: (0.0,) * 24},
        {TRANSFORMATION: (1.0,) * 12},
    ],
)
def test_no_transform(tags: dict[int, tuple[float, ...]]) -> None:
    assert read(tags) is None


def test_a_map_of_its_own_has_no_code() -> None:
    found = read(SCALE_AND_TIE | {GEO_KEYS: geo_keys({2048: 4326, 3072: 32767})})
    assert found is not None
    assert found.epsg is None


def test_damaged_files_have_no_georeference(tmp_path: Path) -> None:
    whole = bare_tiff(SCALE_AND_TIE | {GEO_KEYS: geo_keys({3072: UTM_33N})})
    for length in range(len(whole)):
        found = read_georeference(io.BytesIO(whole[:length]))
        assert found is None or length > len(whole) - 64  # only the last tag's values are lost
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        read_georeference(io.BytesIO(bytes(damaged)))
    for other in (b"", b"II", b"\xff\xd8\xff\xe0" + bytes(20), b"II" + bytes(30)):
        assert read_georeference(io.BytesIO(other)) is None
    with pytest.raises(MissingInput, match="nothing"):
        georeference_of(tmp_path / "nothing.tif")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two overlapping parts of one map; the second is placed 7 metres too far east."""
    folder = tmp_path_factory.mktemp("maps")
    ground = generate((500, 400), seed=8)
    write_geotiff(folder / "a.tif", ground[:, :400], (400_000.0, 5_000_000.0), 0.5)
    write_geotiff(folder / "b.tif", ground[40:, 100:], (400_057.0, 4_999_980.0), 0.5)
    return folder / "a.tif", folder / "b.tif"


@pytest.mark.parametrize("tiles", [(), ("--tiles",)])
def test_matches_in_map_coordinates(
    pair: tuple[Path, Path], tmp_path: Path, tiles: tuple[str, ...]
) -> None:
    files = tmp_path / "match.json", tmp_path / "match.npz"
    command = ["match", *map(str, pair), "--model", "rootsift", "--verify", "similarity", *tiles]
    outputs = ["--json", str(files[0]), "--npz", str(files[1])]
    done = CliRunner().invoke(app, [*command, *outputs, "--map-coordinates"])
    assert done.exit_code == 0, done.output
    assert "EPSG:32633 and EPSG:32633; inliers of image 1 lie +7" in " ".join(done.output.split())
    fields = json.loads(files[0].read_bytes())
    assert (fields["epsg0"], fields["epsg1"]) == (UTM_33N, UTM_33N)
    inliers = np.array(fields["inliers"])
    moved = np.array(fields["map_points1"]) - np.array(fields["map_points0"])
    assert np.allclose(np.median(moved[inliers], axis=0), [7.0, 0.0], atol=0.02)
    corner = np.array([400_000.25, 4_999_999.75])
    points = np.array(fields["points0"]) * [0.5, -0.5] + corner
    assert np.allclose(points, fields["map_points0"], atol=1e-4)
    with np.load(files[1]) as arrays:
        assert np.allclose(arrays["map_points1"], fields["map_points1"])
        assert int(arrays["epsg0"]) == UTM_33N


def test_one_image_without_a_map(pair: tuple[Path, Path], tmp_path: Path) -> None:
    plain = tmp_path / "plain.png"
    with Pillow.open(pair[1]) as picture:
        picture.save(plain)
    outputs = ["--json", str(tmp_path / "m.json"), "--npz", str(tmp_path / "m.npz")]
    command = ["match", str(pair[0]), str(plain), "--model", "rootsift", "--map-coordinates"]
    done = CliRunner().invoke(app, [*command, *outputs])
    assert done.exit_code == 0, done.output
    assert "EPSG:32633 and none" in " ".join(done.output.split())
    fields = json.loads((tmp_path / "m.json").read_bytes())
    assert fields["map_points1"] is None
    assert fields["epsg1"] is None
    with np.load(tmp_path / "m.npz") as arrays:
        assert np.isnan(arrays["map_points1"]).all()
        assert len(arrays["map_points1"]) == len(arrays["map_points0"])
        assert int(arrays["epsg1"]) == 0


def test_what_has_no_map_coordinates_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    plain, turned = tmp_path / "plain.png", tmp_path / "turned.tif"
    Pillow.fromarray(generate((200, 200), seed=1)).save(plain)
    write_geotiff(turned, generate((200, 200), seed=1), (0.0, 0.0), 1.0, orientation=6)
    command = ["match", "--map-coordinates", "--model", "rootsift"]
    for arguments, words in (
        ([str(plain), str(plain)], "neither"),
        ([str(pair[0]), str(pair[1]), "--server", "localhost:1"], "--server"),
        ([str(turned), str(plain)], "--exif ignore"),
    ):
        done = CliRunner().invoke(app, [*command, *arguments])
        assert isinstance(done.exception, InvalidParameter)
        assert words in done.exception.message
