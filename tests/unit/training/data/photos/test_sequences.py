"""Sequences made of photographs are what the homography benchmark reads, and true."""

from dataclasses import replace
from pathlib import Path

import cv2
import pytest
from skimage import data as samples

from training.data.commands import app
from training.data.images import read_image
from training.data.photos.build import PhotoOptions, build_photos
from training.data.photos.sequences import SequenceOptions, write_sequences
from training.data.photos.views import render
from training.errors import DataError
from training.evaluation.benchmarks.homography import read_sequences, run
from training.evaluation.protocol import Options, load_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("camera", "coffee"):
        cv2.imwrite(str(folder / f"{name}.png"), getattr(samples, name)())
    cv2.imwrite(str(folder / "small.png"), samples.camera()[:100, :100])
    return folder


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("held") / "sequences"
    options = SequenceOptions(levels=("easy", "medium"), min_length=300)
    assert write_sequences([folder], out, options, workers=1) == 2
    return out


def test_homographies_say_where_points_went(made: Path, tmp_path: Path) -> None:
    found = read_sequences([made])
    assert len(found.homographies) == 4
    options = Options(max_keypoints=600, cache=tmp_path)
    result = run(load_models([], options)[1:], [made], options).models["rootsift"].figures
    # With wrong homographies not one match in a hundred would be within three pixels.
    assert result["mma@3px"] > 0.4
    assert result["correct"] > 60


def test_the_same_seed_gives_the_same_views_and_another_others(
    folder: Path, made: Path, tmp_path: Path
) -> None:
    plain = SequenceOptions(levels=("easy",), min_length=300)
    write_sequences([folder], tmp_path / "same", plain, workers=1)
    write_sequences([folder], tmp_path / "other", replace(plain, seed=1), workers=1)
    name = f"{folder.name}_camera"
    first = (made / name / "2.png").read_bytes()
    assert (tmp_path / "same" / name / "2.png").read_bytes() == first
    assert (tmp_path / "other" / name / "2.png").read_bytes() != first
    assert not (tmp_path / "same" / name / "3.png").exists()


def test_only_the_photographs_of_a_store(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = tmp_path / "held"
    held.mkdir()
    (held / "coffee.png").write_bytes((folder / "coffee.png").read_bytes())
    both = tmp_path / "both" / "held"
    both.mkdir(parents=True)
    for name in ("camera.png", "coffee.png"):
        (both / name).write_bytes((folder / name).read_bytes())
    few = PhotoOptions(levels=("easy",), max_keypoints=200)
    store = build_photos([held], tmp_path / "store", few, workers=1)
    words = ["sequences", str(both), "-o", str(tmp_path / "out"), "--only", str(store)]
    app(
        [*words, "--levels", "easy", "--min-length", "300", "--workers", "1"], standalone_mode=False
    )
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["held_coffee"]
    assert "1 sequences of 2 images" in capsys.readouterr().out


def test_bad_requests_are_refused(folder: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="already exists"):
        write_sequences([folder], made, SequenceOptions())
    with pytest.raises(DataError, match="at least 5000"):
        write_sequences(
            [folder], tmp_path / "a", SequenceOptions(min_length=5000, max_side=6000), workers=1
        )
    with pytest.raises(DataError, match=r"elsewhere\.png: this photograph is not"):
        write_sequences([folder], tmp_path / "a", SequenceOptions(), only=["elsewhere.png"])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=r"at most max_side \(500\)"):
        SequenceOptions(max_side=500)
    with pytest.raises(DataError, match="at most 5"):
        SequenceOptions(levels=("easy",) * 6)
    with pytest.raises(DataError, match="levels must be"):
        SequenceOptions(levels=("dusk",))


def test_two_photographs_of_one_name_and_a_broken_one_leave_nothing(
    folder: Path, tmp_path: Path
) -> None:
    twins = tmp_path / "twins"
    twins.mkdir()
    for name in ("a.png", "a.webp"):
        cv2.imwrite(str(twins / name), samples.camera())
    with pytest.raises(DataError, match=r"a\.webp and twins/a\.png would both become the sequence"):
        write_sequences([twins], tmp_path / "out", SequenceOptions())
    (twins / "a.webp").rename(twins / "b.png")
    (twins / "c.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"c\.png"):
        write_sequences([twins], tmp_path / "out", SequenceOptions(min_length=300), workers=1)
    assert [p.name for p in tmp_path.iterdir()] == ["twins"]


def test_views_are_not_those_of_a_store(folder: Path, tmp_path: Path) -> None:
    levels = ("easy", "easy", "easy")
    write_sequences([folder], tmp_path / "s", SequenceOptions(levels, min_length=300), workers=1)
    sequence = tmp_path / "s" / f"{folder.name}_camera"
    grey = read_image(sequence / "1.png").grey
    seed = PhotoOptions().seed
    for number in (2, 3, 4):
        shown = read_image(sequence / f"{number}.png").grey
        view = render(grey, f"{folder.name}/camera.png", number, seed=seed, level="easy")
        assert (view.grey != shown).mean() > 0.5
