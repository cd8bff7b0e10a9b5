from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from matchserve.collections.scan import natural_key, scan
from matchserve.errors import MissingInput


def names(folder: Path, exclude: Path | None = None) -> list[str]:
    return [image.name for image in scan(folder, exclude=exclude).images]


def touch(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x")


def test_images_come_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "IMG_10.jpg", "IMG_9.JPG", "b/1.png", "a/2.tiff", "notes.txt", ".hidden.jpg")
    touch(tmp_path, ".thumbnails/x.jpg")
    assert names(tmp_path) == ["a/2.tiff", "b/1.png", "IMG_9.JPG", "IMG_10.jpg"]


def test_the_order_is_total() -> None:
    keys = [natural_key(name) for name in ("a1", "A1", "a01", "a1b", "1a", "")]
    backwards = keys[::-1]
    assert len({tuple(key) for key in keys}) == len(keys)
    assert sorted(keys) == sorted(backwards)


def test_the_output_inside_of_the_folder_is_not_scanned(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg", "out/report.png")
    assert names(tmp_path, tmp_path / "out") == ["1.jpg"]


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "secret.jpg", "photos/1.jpg")
    (tmp_path / "photos" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (tmp_path / "photos" / "inside.jpg").symlink_to("1.jpg")
    (tmp_path / "photos" / "broken.jpg").symlink_to("nothing.jpg")
    found = scan(tmp_path / "photos")
    assert [image.name for image in found.images] == ["1.jpg", "inside.jpg"]
    assert "outside" in found.refused["link.jpg"]
    assert "broken.jpg" in found.refused


def test_linked_folders_are_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "secret/1.jpg", "photos/2.jpg")
    (tmp_path / "photos" / "more").symlink_to(tmp_path / "secret")
    assert names(tmp_path / "photos") == ["2.jpg"]


def test_names_are_normalised_and_control_characters_refused(tmp_path: Path) -> None:
    composed = "caf\u00e9.jpg"
    touch(tmp_path, unicodedata.normalize("NFD", composed), "two\nlines.jpg")
    found = scan(tmp_path)
    assert [image.name for image in found.images] == [composed]
    assert found.images[0].path.is_file()
    assert "control" in found.refused["two\nlines.jpg"]


def test_two_forms_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    touch(tmp_path, "caf\u00e9.jpg", unicodedata.normalize("NFD", "caf\u00e9.jpg"))
    found = scan(tmp_path)
    assert len(found.images) == 1
    assert len(found.refused) == 1


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"x")
    found = scan(tmp_path)
    assert not found.images
    assert list(found.refused.values()) == ["the name is not valid UTF-8"]


@pytest.mark.parametrize("name", ["nothing", "file.jpg"])
def test_something_else_than_a_folder(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "file.jpg")
    with pytest.raises(MissingInput, match=name):
        scan(tmp_path / name)
