import json
from pathlib import Path

import numpy as np
import pytest

from matchserve.errors import InvalidParameter
from matchserve.types import PatchSpec
from training.data.store.reader import PatchStore
from training.data.store.writer import StoreWriter, _header
from training.errors import DataError

SPEC = PatchSpec(size=8, magnification=10.0)


def write(path: Path, sizes: list[int], scenes: list[str]) -> np.ndarray:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (sum(sizes), 8, 8), np.uint8)
    start = 0
    with StoreWriter(path, SPEC, made_by="test") as writer:
        for number, (size, scene) in enumerate(zip(sizes, scenes, strict=True)):
            names = [f"{scene}-{number}-{i}" for i in range(size)]
            writer.add_class(pixels[start : start + size], scene=scene, images=names)
            start += size
    return pixels


def test_round_trip(tmp_path: Path) -> None:
    pixels = write(tmp_path / "s", [2, 3, 1, 4], ["a", "b", "a", "c"])
    store = PatchStore.open(tmp_path / "s")
    store.verify()
    assert store.spec == SPEC
    assert store.scenes == ("a", "b", "c")
    assert store.class_sizes.tolist() == [2, 3, 1, 4]
    wanted = np.array([9, 0, 4, 4])
    np.testing.assert_array_equal(store.patches(wanted), pixels[wanted][:, None])
    assert np.isnan(store.keypoints).all()
    assert store.images[store.sources[2]] == "b-1-0"


def test_many_classes_at_once_equal_one_by_one(tmp_path: Path) -> None:
    pixels = write(tmp_path / "one", [2, 3], ["a", "a"])
    names = ["a-0-0", "a-0-1", "a-1-0", "a-1-1", "a-1-2"]
    with StoreWriter(tmp_path / "many", SPEC, made_by="test") as writer:
        writer.add_classes(pixels, np.array([2, 3]), scene="a", images=names)
    for name in ("patches.npy", "offsets.npy", "sources.npy", "scenes.npy", "store.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_views(tmp_path: Path) -> None:
    write(tmp_path / "s", [2, 3, 1, 4], ["a", "b", "a", "c"])
    store = PatchStore.open(tmp_path / "s")
    view = store.split(["a", "c"])
    assert view.classes.tolist() == [0, 2, 3]
    assert view.class_starts.tolist() == [0, 5, 6]
    assert view.patch_count == 7
    assert view.select_classes(view.class_sizes >= 2).classes.tolist() == [0, 3]
    with pytest.raises(DataError, match="no scene 'x'"):
        store.split(["x"])
    with pytest.raises(InvalidParameter):
        view.select_classes(np.ones(4, bool))


def test_header_length_does_not_depend_on_the_count() -> None:
    assert len(_header(0, 32)) == len(_header(10**12, 32))


def fail_after_one_class(path: Path) -> None:
    with StoreWriter(path, SPEC, made_by="t") as writer:
        writer.add_class(np.zeros((2, 8, 8), np.uint8), scene="a", images=["x", "y"])
        raise ZeroDivisionError


def test_writer_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_after_one_class(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="nothing to write"):
        StoreWriter(tmp_path / "s", SPEC, made_by="t").finish()
    assert list(tmp_path.iterdir()) == []


def one_class(path: Path) -> StoreWriter:
    writer = StoreWriter(path, SPEC, made_by="t")
    writer.add_class(np.zeros((2, 8, 8), np.uint8), scene="a", images=["x", "y"])
    return writer


def test_writer_leaves_nothing_when_it_cannot_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(DataError, match="No space left"):
            one_class(tmp_path / "s").finish()
    assert list(tmp_path.iterdir()) == []

    def taken(_path: Path, _target: Path) -> None:
        raise OSError(39, "Directory not empty")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", taken)
        with pytest.raises(DataError, match=r"s: cannot be written \(Directory not empty\)"):
            one_class(tmp_path / "s").finish()
    assert list(tmp_path.iterdir()) == []
    late = one_class(tmp_path / "t")
    (tmp_path / "t").mkdir()
    with pytest.raises(DataError, match="never overwritten"):
        late.finish()
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_writer_never_overwrites(tmp_path: Path) -> None:
    write(tmp_path / "s", [2], ["a"])
    with pytest.raises(DataError, match="never overwritten"):
        StoreWriter(tmp_path / "s", SPEC, made_by="t")


@pytest.mark.parametrize(
    ("patches", "images", "keypoints"),
    [
        (np.zeros((2, 8, 8), np.float32), ["x", "y"], None),
        (np.zeros((2, 9, 9), np.uint8), ["x", "y"], None),
        (np.zeros((2, 8, 8), np.uint8), ["x"], None),
        (np.zeros((2, 8, 8), np.uint8), ["x", "y"], np.zeros((2, 3))),
        (np.zeros((0, 8, 8), np.uint8), [], None),
    ],
)
def test_writer_refuses_wrong_shapes(
    tmp_path: Path, patches: np.ndarray, images: list[str], keypoints: np.ndarray | None
) -> None:
    with pytest.raises(InvalidParameter), StoreWriter(tmp_path / "s", SPEC, made_by="t") as w:
        w.add_class(patches, scene="a", images=images, keypoints=keypoints)


@pytest.mark.parametrize(
    "name", ["patches.npy", "offsets.npy", "scenes.npy", "sources.npy", "keypoints.npy"]
)
def test_missing_or_cut_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path / "s", [2, 2], ["a", "b"])
    path = tmp_path / "s" / name
    whole = path.read_bytes()
    for damaged in (None, b"", whole[:40], whole[:-3], b"PK\x03\x04" + whole):
        path.unlink(missing_ok=True)
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(DataError, match=name):
            PatchStore.open(tmp_path / "s")


def test_wrong_contents_are_named(tmp_path: Path) -> None:
    write(tmp_path / "s", [2, 2], ["a", "b"])
    directory = tmp_path / "s"
    head = json.loads((directory / "store.json").read_text())
    for change in ({"format_version": 2}, {"patch_spec": {"size": 1}}, {"scenes": 3}):
        (directory / "store.json").write_text(json.dumps(head | change))
        with pytest.raises(DataError, match=r"store\.json"):
            PatchStore.open(directory)
    (directory / "store.json").write_text(json.dumps(head | {"scenes": ["a"]}))
    with pytest.raises(DataError, match=r"scenes\.npy"):
        PatchStore.open(directory)
    (directory / "store.json").write_text(json.dumps(head))
    np.save(directory / "sources.npy", np.zeros(4, np.float32))
    with pytest.raises(DataError, match=r"sources\.npy: expected int32"):
        PatchStore.open(directory)


def test_verify_finds_a_changed_pixel(tmp_path: Path) -> None:
    write(tmp_path / "s", [2, 2], ["a", "b"])
    path = tmp_path / "s" / "patches.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="digest"):
        PatchStore.open(tmp_path / "s").verify()
