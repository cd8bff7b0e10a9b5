"""Uploaded collections: names, quotas, and what is on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from matchserve.errors import (
    CollectionBusy,
    ImageExists,
    InvalidParameter,
    QuotaExceeded,
    UnknownCollection,
    UnknownImage,
    UnknownSource,
)
from matchserve.jobs.database import Database
from matchserve.jobs.names import checked_collection_name, checked_image_name, checked_source
from matchserve.jobs.table import JobTable
from matchserve.jobs.uploads import Uploads
from matchserve.limits import Quotas


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    quotas = Quotas(collections=2, images=3, bytes=100)
    return Uploads(Database(tmp_path / "service.db"), tmp_path / "collections", quotas)


def test_images_are_stored_once(uploads: Uploads) -> None:
    assert uploads.create("me", "a")
    assert not uploads.create("me", "a")
    assert uploads.put("me", "a", "x/1.jpg", b"one", replace=False)
    assert not uploads.put("me", "a", "x/1.jpg", b"one", replace=False)
    with pytest.raises(ImageExists):
        uploads.put("me", "a", "x/1.jpg", b"two", replace=False)
    assert uploads.put("me", "a", "x/1.jpg", b"three", replace=True)
    path = uploads.folder("me", "a") / "images" / "x" / "1.jpg"
    assert path.read_bytes() == b"three"
    info = uploads.info("me", "a")
    assert (info.images, info.bytes) == (1, 5)
    path.unlink()  # a lost file is stored again
    assert uploads.put("me", "a", "x/1.jpg", b"three", replace=False)
    assert uploads.images("me", "a") == ["x/1.jpg"]
    uploads.remove_image("me", "a", "x/1.jpg")
    assert not path.exists()
    with pytest.raises(UnknownImage):
        uploads.remove_image("me", "a", "x/1.jpg")


def test_a_removed_image_leaves_no_folders(uploads: Uploads) -> None:
    """Folders are in no quota: whoever uploads and removes would fill the disk with them."""
    uploads.create("me", "a")
    uploads.put("me", "a", "x.jpg/y/z/1.jpg", b"one", replace=False)
    uploads.put("me", "a", "x.jpg/2.jpg", b"two", replace=False)
    uploads.remove_image("me", "a", "x.jpg/y/z/1.jpg")
    images = uploads.folder("me", "a") / "images"
    assert sorted(p.name for p in images.rglob("*")) == ["2.jpg", "x.jpg"]
    uploads.remove_image("me", "a", "x.jpg/2.jpg")
    assert list(images.iterdir()) == []
    assert uploads.put("me", "a", "x.jpg", b"three", replace=False)


def test_a_name_cannot_be_a_file_and_a_folder(uploads: Uploads) -> None:
    uploads.create("me", "a")
    uploads.put("me", "a", "x.jpg", b"one", replace=False)
    with pytest.raises(ImageExists):
        uploads.put("me", "a", "x.jpg/y.jpg", b"two", replace=False)
    assert uploads.images("me", "a") == ["x.jpg"]


def test_quotas(uploads: Uploads) -> None:
    uploads.create("me", "a")
    uploads.create("me", "b")
    with pytest.raises(QuotaExceeded, match="3 collections"):
        uploads.create("me", "c")
    uploads.put("me", "a", "1.jpg", bytes(60), replace=False)
    with pytest.raises(QuotaExceeded, match="bytes"):
        uploads.put("me", "b", "2.jpg", bytes(41), replace=False)
    uploads.put("me", "a", "1.jpg", bytes(90), replace=True)  # the old one does not count
    uploads.put("me", "a", "2.jpg", b"2", replace=False)
    uploads.put("me", "b", "3.jpg", b"3", replace=False)
    with pytest.raises(QuotaExceeded, match="4 images"):
        uploads.put("me", "b", "4.jpg", b"4", replace=False)
    assert not (uploads.folder("me", "b") / "images" / "4.jpg").exists()
    uploads.create("you", "c")
    assert uploads.put("you", "c", "4.jpg", b"4", replace=False)


def test_owners_do_not_see_each_other(uploads: Uploads) -> None:
    uploads.create("me", "a")
    uploads.put("me", "a", "1.jpg", b"mine", replace=False)
    assert uploads.collections("you") == []
    with pytest.raises(UnknownCollection):
        uploads.put("you", "a", "1.jpg", b"yours", replace=True)
    with pytest.raises(UnknownCollection):
        uploads.remove("you", "a")
    with pytest.raises(UnknownImage):
        uploads.remove_image("you", "a", "1.jpg")


def test_a_collection_in_use_is_not_removed(uploads: Uploads) -> None:
    uploads.create("me", "a")
    table = JobTable(uploads.database)
    job, _ = table.submit("me", {"kind": "reconstruct"}, "collection:a")
    with pytest.raises(CollectionBusy, match=job.id):
        uploads.remove("me", "a")
    table.cancel("me", job.id)
    uploads.remove("me", "a")
    assert not uploads.folder("me", "a").exists()
    assert uploads.collections("me") == []


@pytest.mark.parametrize(
    "name",
    ["../a.jpg", "a/../b.jpg", "/etc/a.jpg", "a//b.jpg", ".hidden.jpg", "a/.b/c.jpg", "a\nb.jpg",
     "a\0.jpg", "a\\b.jpg", "c:a.jpg", "a.jpg/", "a.exe", "", "a/ b.jpg", "a./b.jpg",
     "a\u2028b.jpg", "a\u202eb.jpg", "\ud800.jpg", "x" * 201 + ".jpg",
     "/".join("abcdefghi") + ".jpg", "y/" * 7 + "z" * 4096 + ".jpg"],
)  # fmt: skip
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameter):
        checked_image_name(name)


@pytest.mark.parametrize("name", ["IMG 1 (2).JPG", "flight/0001.jpeg", "Straße/für.png"])
def test_names_that_are_accepted(name: str) -> None:
    assert checked_image_name(name) == name


def test_names_are_normalised() -> None:
    assert checked_image_name("fu\u0308r.png") == "für.png"


@pytest.mark.parametrize("name", ["..", ".a", "a/b", "", "x" * 65, "a b"])
def test_names_of_collections(name: str) -> None:
    assert checked_collection_name("flight-1.b_c") == "flight-1.b_c"
    with pytest.raises(UnknownCollection):
        checked_collection_name(name)


def test_sources_are_only_those_that_are_allowed(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    (allowed / "flight").mkdir(parents=True)
    secret.mkdir()
    (allowed / "link").symlink_to(secret)
    (allowed / "file.jpg").write_bytes(b"")
    assert checked_source(str(allowed / "flight"), [allowed]) == (allowed / "flight").resolve()
    assert checked_source(str(allowed), [allowed]) == allowed.resolve()
    refused = [
        secret, allowed / "link", allowed / ".." / "secret", allowed / "file.jpg",
        allowed / "none", "flight", "/", f"{allowed}\0", tmp_path / "allowed-not",
    ]  # fmt: skip
    messages = set()
    for path in refused:
        with pytest.raises(UnknownSource) as caught:
            checked_source(str(path), [allowed])
        messages.add(caught.value.message)
    assert len(messages) == 1  # it does not say what is there
    with pytest.raises(UnknownSource):
        checked_source(str(allowed), [])
