"""Images of a collection that are too large to be decoded at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as Pillow

from matchserve.collections import sources, work
from matchserve.collections.collection import Collection
from matchserve.collections.exports import export_to
from matchserve.collections.sources import Tiling, open_source
from matchserve.encoding import read_features
from matchserve.errors import MissingInput, ProviderUnavailable, WorkspaceMismatch
from matchserve.large import describe_large
from matchserve.limits import LIBRARY_LIMITS
from matchserve.matcher import Matcher, Options
from matchserve.pattern import generate
from matchserve.vision.keypoints import DetectOptions
from tests.geotiff_files import UTM_33N, write_geotiff

OPTIONS = Options(
    detect=DetectOptions(max_keypoints=300, further_orientations=0), exif="ignore", max_side=256
)
LIMITS = replace(LIBRARY_LIMITS, max_pixels=300_000)
"""Images of 700 x 500 pixels are above these."""
ABOVE, BELOW = ("left.tif", "right.jpg"), ("small.png",)


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def matcher_of(model: str, models_dir: Path | None, provider: str) -> Matcher:
        return Matcher(model, models_dir=models_dir, provider=provider, threads=1, limits=LIMITS)

    work._cache.cache_clear()
    monkeypatch.setattr(work, "_matcher_of", matcher_of)
    yield
    work._cache.cache_clear()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two large parts of one picture, which overlap, and a small one inside of both."""
    folder = tmp_path_factory.mktemp("photos")
    wall = generate((900, 500), seed=11)
    write_geotiff(folder / "left.tif", wall[:, :700], (400_000.0, 5_000_000.0), 0.5)
    exif = Pillow.Exif()
    exif[0x010F] = "Maker"
    exif.get_ifd(0x8769)[0xA405] = 50  # focal length of a 35 mm camera
    Pillow.fromarray(wall[:, 200:]).save(folder / "right.jpg", quality=95, exif=exif)
    cv2.imwrite(str(folder / "small.png"), wall[100:400, 250:650])
    return folder


def matched(photos: Path, work: Path, tiles: Tiling = "auto") -> Collection:
    collection = Collection(work, images=photos, model="rootsift", options=OPTIONS, tiles=tiles)
    list(collection.match(workers=1))
    return collection


def test_large_images_are_described_in_windows_and_matched(photos: Path, tmp_path: Path) -> None:
    collection = matched(photos, tmp_path / "work")
    rows = {row.name: row for row in collection.images()}
    assert {name for name, row in rows.items() if row.state == "described"} == {*ABOVE, *BELOW}
    matcher = Matcher("rootsift", threads=1)
    expected = describe_large(matcher, photos / "left.tif", OPTIONS)
    found = collection.features(rows["left.tif"])
    assert np.array_equal(found.keypoints.xy, expected.keypoints.xy)
    assert found.size == found.working_size == (700, 500)
    assert rows["small.png"].keypoints <= 300
    result = collection.result("left.tif", "right.jpg")
    assert result.is_verified
    pairs = result.rows[result.inliers]
    other = collection.features(rows["right.jpg"])
    moved = found.keypoints.xy[pairs[:, 0]] - other.keypoints.xy[pairs[:, 1]]
    assert np.allclose(np.median(moved, axis=0), [200, 0], atol=0.1)  # pixels of the full images
    again = matched(photos, tmp_path / "work")
    assert (again.counts.described, again.counts.matched) == (0, 0)


def test_what_the_header_says_is_kept(photos: Path, tmp_path: Path) -> None:
    collection = matched(photos, tmp_path / "work")
    rows = {row.name: row for row in collection.images()}
    facts = rows["right.jpg"].facts
    assert facts is not None
    assert facts.camera == "Maker"
    assert facts.focal_px == pytest.approx(50 * 700 / 36, rel=0.1)
    facts = rows["left.tif"].facts
    assert facts is not None
    assert facts.georeference is not None
    assert facts.georeference.epsg == UTM_33N
    assert facts.georeference.to_map(np.zeros((1, 2))).tolist() == [[400_000.25, 4_999_999.75]]
    list(export_to(collection, "npz", tmp_path / "npz"))
    with np.load(tmp_path / "npz" / "features" / "left.tif.npz") as arrays:
        assert arrays["map_affine"].tolist() == [[0.5, 0.0, 400_000.25], [0.0, -0.5, 4_999_999.75]]
        assert int(arrays["epsg"]) == UTM_33N
    features = read_features(tmp_path / "npz" / "features" / "left.tif.npz")
    assert features.size == (700, 500)


@pytest.mark.parametrize("name", ["left.tif", "right.jpg"])
def test_files_that_pillow_does_not_open(
    photos: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow refuses images of more than 178 megapixels; the facts are then read without it."""
    whole = open_source(photos / name, LIBRARY_LIMITS, "auto")
    assert whole.data is not None
    monkeypatch.setattr(sources, "read_facts", lambda data: None)
    found = open_source(photos / name, LIMITS, "auto")
    assert found.data is None
    assert found.sha256 == whole.sha256
    assert found.facts == whole.facts


def test_files_of_many_bytes(photos: Path) -> None:
    path = photos / "small.png"
    limits = replace(LIBRARY_LIMITS, max_image_bytes=1000)
    found = open_source(path, limits, "auto")
    assert found.data is None
    assert found.sha256 == open_source(path, LIBRARY_LIMITS, "auto").sha256
    with pytest.raises(MissingInput):
        open_source(photos / "nothing.png", limits, "auto")


def test_points_of_large_images_are_not_refined(photos: Path, tmp_path: Path) -> None:
    collection = matched(photos, tmp_path / "work")
    list(collection.refine(workers=1))
    pairs = {pair.images: pair for pair in collection.refined_pairs()}
    rows = {row.name: row for row in collection.images()}
    pair = pairs["left.tif", "right.jpg"]
    assert not pair.is_refined.any()
    other = collection.features(rows["right.jpg"]).keypoints
    assert np.array_equal(pair.xy1, other.xy[pair.pairs[:, 1]])


def test_all_images_in_windows(photos: Path, tmp_path: Path) -> None:
    collection = matched(photos, tmp_path / "work", "all")
    row = collection.image("small.png")
    assert row is not None
    assert collection.features(row).working_size == (400, 300)
    assert Collection.open(tmp_path / "work").setup.tiles == "all"
    with pytest.raises(WorkspaceMismatch, match="tiles"):
        matched(photos, tmp_path / "work", "auto")


def test_refused_images_are_taken_later(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that may not read in windows, or lacks pyvips, leaves large images out."""
    refused = matched(photos, tmp_path / "work", "never")
    states = {row.name: (row.state, row.code) for row in refused.images()}
    assert states["left.tif"] == states["right.jpg"] == ("refused", "image_too_large")
    assert states["small.png"][0] == "described"

    def absent(*arguments: object, **options: object) -> None:
        raise ProviderUnavailable("pyvips is not installed")

    with monkeypatch.context() as patch:
        patch.setattr(sources, "describe_large", absent)
        lacking = matched(photos, tmp_path / "work")
    row = lacking.image("left.tif")
    assert row is not None
    assert (row.state, row.code) == ("refused", "provider_unavailable")
    assert "pyvips" in row.detail
    taken = matched(photos, tmp_path / "work")
    assert {row.state for row in taken.images()} == {"described"}


def test_the_number_of_keypoints_is_bounded(photos: Path) -> None:
    matcher = Matcher("rootsift", threads=1)
    plenty = describe_large(matcher, photos / "left.tif", OPTIONS, per_megapixel=2000)
    few = describe_large(
        matcher, photos / "left.tif", OPTIONS, per_megapixel=2000, max_keypoints=100
    )
    assert len(plenty) > 200
    assert 50 < len(few) <= 101
