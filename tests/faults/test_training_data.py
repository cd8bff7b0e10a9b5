"""D-19: a patch store that is damaged or incomplete ends training with its name, never silently."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from matchserve.types import PatchSpec
from tests.unit.training.tiny_runs import tiny
from training import cli
from training.data.store.writer import StoreWriter

SIDE = 32
EXIT_DATA = 65


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "store"
    with StoreWriter(path, PatchSpec(SIDE, 20.0), made_by="test") as writer:
        patches = rng.integers(0, 256, (240, SIDE, SIDE), np.uint8)
        writer.add_classes(patches, np.full(120, 2), scene="a", images=["i"] * 240)
    return path


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for position in range(200, len(data), 997):
        data[position] ^= 0x10
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def train(monkeypatch: pytest.MonkeyPatch, store: Path, out: Path) -> int:
    recipe = out.with_suffix(".toml")
    data = {"train": [{"path": str(store)}]}
    recipe.write_text(tiny(name="damaged", data=data).to_toml(), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["training", "train", str(recipe), "--out", str(out)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize("damage", [remove, cut, flip, empty])
@pytest.mark.parametrize("name", ["patches.npy", "store.json"])
def test_a_damaged_store_is_named(
    tmp_path: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    name: str,
) -> None:
    damage(store / name)
    assert train(monkeypatch, store, tmp_path / "runs") == EXIT_DATA
    error = capsys.readouterr().err
    assert str(store) in error.replace("\n", "")
    assert "Traceback" not in error
    assert not list(tmp_path.glob("runs/*/final.safetensors"))


def test_the_whole_store_is_accepted(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(monkeypatch, store, tmp_path / "runs") == 0
    assert list(tmp_path.glob("runs/*/final.safetensors"))
