"""Crops show the same places as their homographies say, and held-out images are left out."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from matchserve.pattern import generate
from tests.conftest import encoded
from training.detector import crops as making
from training.detector.crops import SIDE, CropOptions, Crops, read_crops, write_crops
from training.detector.losses import warp
from training.errors import DataError

TURN = np.array([[0.9, 0.2, 10.0], [-0.2, 0.9, 60.0], [1e-4, 0.0, 1.0]])


def write_photos(folder: Path, count: int) -> Path:
    """Write generated photographs."""
    folder.mkdir()
    for seed in range(1, count + 1):
        (folder / f"{seed:02d}.png").write_bytes(encoded(generate((400, 300), seed=seed)))
    return folder


def write_registered(folder: Path, count: int) -> Path:
    """Write pairs of an image and a warped copy."""
    for number in range(1, count + 1):
        place = folder / f"{number:03d}"
        place.mkdir(parents=True)
        image = generate((400, 300), seed=number)
        (place / "1.png").write_bytes(encoded(image))
        warped = cv2.warpPerspective(image, TURN, (400, 300), borderMode=cv2.BORDER_REFLECT)
        (place / "2.png").write_bytes(encoded(np.asarray(warped, np.uint8)))
        np.savetxt(place / "H_1_2", TURN)
    return folder


def agreement(crops: Crops, row: int) -> float:
    """Return the correlation of the second crop, moved back, with the first one, where seen."""
    relation, (one, other) = crops.relation(row), crops.pixels[row]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    back = cv2.warpPerspective(other, relation.homography, (SIDE, SIDE), flags=flags)
    seen = warp(torch.zeros(SIDE, SIDE), relation).is_seen.numpy()
    return float(np.corrcoef(one[seen], back[seen])[0, 1])


def test_homographies_lead_from_one_crop_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "relight", lambda grey, *_, **__: grey)
    photos, pairs = write_photos(tmp_path / "p", 2), write_registered(tmp_path / "r", 3)
    options = CropOptions(per_megapixel=20, per_pair=2)
    assert write_crops([photos], [pairs], tmp_path / "both.npz", options, 1) == {"p": 4, "r": 6}
    both = read_crops(tmp_path / "both.npz")
    assert both.pixels.shape == (10, 2, SIDE, SIDE)
    assert both.made_of == {"p": 4, "r": 6}
    write_crops([photos], [], tmp_path / "views.npz", options, 1)
    views = read_crops(tmp_path / "views.npz")
    assert min(agreement(views, row) for row in range(len(views))) > 0.9
    write_crops([], [pairs], tmp_path / "registered.npz", options, 1)
    registered = read_crops(tmp_path / "registered.npz")
    assert min(agreement(registered, row) for row in range(len(registered))) > 0.95
    known = [registered.relation(row).known for row in range(len(registered))]
    assert not all(mask.all() for _, mask in known)  # a turned crop shows more than the image


def test_the_seed_decides_the_crops(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "p", 2)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_crops([photos], [], tmp_path / name, CropOptions(per_megapixel=20, seed=seed), 1)
    a, b, c = (read_crops(tmp_path / name) for name in "abc")
    assert (a.pixels == b.pixels).all()
    assert a.sha256 == b.sha256 != c.sha256


def test_held_out_images_are_left_out(tmp_path: Path) -> None:
    photos, pairs = write_photos(tmp_path / "p", 4), write_registered(tmp_path / "r", 3)
    options = CropOptions(
        per_megapixel=1, per_pair=1, hold_out=("p/01.png", "r/00[23]"), hold_out_every=2
    )
    assert write_crops([photos], [pairs], tmp_path / "crops.npz", options, 1) == {"p": 1, "r": 1}
    with pytest.raises(DataError, match="no photograph and no registered pair is left"):
        write_crops([photos], [], tmp_path / "none.npz", CropOptions(hold_out=("*",)), 1)
    assert not (tmp_path / "none.npz").exists()


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        write_crops([tmp_path / "nowhere"], [], tmp_path / "crops.npz", CropOptions(), 1)
    with pytest.raises(DataError, match="H_1_2"):
        write_crops([], [tmp_path], tmp_path / "crops.npz", CropOptions(), 1)


def write_file(path: Path, **changes: object) -> Path:
    """Write a file of two pairs of crops, with other arrays."""
    arrays: dict[str, object] = {
        "crops": np.zeros((2, 2, 32, 32), np.uint8),
        "masks": np.zeros((2, 2, 128), np.uint8),
        "homographies": np.stack([np.eye(3)] * 2),
        "folders": np.array(["p"]),
        "counts": np.array([2]),
    }
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})  # type: ignore[arg-type]
    return path


def test_a_file_of_crops_is_read(tmp_path: Path) -> None:
    assert isinstance(read_crops(write_file(tmp_path / "crops.npz")), Crops)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crops": None}, "not a file of crops"),
        ({"counts": np.array([1, 2])}, "not a file of crops"),
        ({"crops": np.zeros((2, 2, 32, 32), np.float32)}, "expected uint8 crops"),
        ({"crops": np.zeros((2, 2, 32, 30), np.uint8)}, "expected uint8 crops"),
        ({"crops": np.zeros((0, 2, 32, 32), np.uint8)}, "expected uint8 crops"),
        ({"masks": np.zeros((2, 2, 32, 32), np.uint8)}, "bits of a mask"),
        ({"masks": np.zeros((2, 2, 128), np.float32)}, "bits of a mask"),
        ({"homographies": np.eye(3)}, "finite homographies"),
        ({"homographies": np.full((2, 3, 3), np.nan)}, "finite homographies"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_crops(write_file(tmp_path / "crops.npz", **changes))


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        read_crops(tmp_path / "nothing.npz")
    path = write_file(tmp_path / "crops.npz")
    data = path.read_bytes()
    for damaged in (b"", b"PK", data[: len(data) // 2], data[:200] + b"xxxx" + data[204:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a file of crops"):
            read_crops(path)
