"""Tiny runs for tests: a second of training on generated patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from training.runs.directory import create_run
from training.runs.recipe import Recipe, recipe_from_table


def tiny(**sections: Any) -> Recipe:
    """A recipe of a few steps; keyword tables are merged over the defaults."""
    table: dict[str, Any] = {
        "name": "tiny",
        "network": {"name": "patchify48", "width": 0.25, "dim": 16, "dropout": 0.1},
        "loss": {"name": "hardnet"},
        "data": {
            "train": [{"path": "synthetic:1:60"}],
            "validation": [{"path": "synthetic:2:40"}],
            "validation_pairs": 100,
        },
        "augment": {"turns": "rot_flip", "rotation_deg": 5, "noise": 2},
        "optim": {"lr": 0.1},
        "run": {
            "steps": 6,
            "batch": 12,
            "log_every": 2,
            "validate_every": 3,
            "checkpoint_steps": 2,
            "threads": 1,
            "device": "cpu",
        },
    }
    for name, changes in sections.items():
        replaces = isinstance(changes, dict) and name not in ("loss", "sampler")
        table[name] = {**table.get(name, {}), **changes} if replaces else changes
    return recipe_from_table(table, "test")


def new_run(folder: Path, **sections: Any) -> Path:
    return create_run(tiny(**sections), folder)


class Stopped(Exception):
    """What a test raises in the place of a kill."""


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make the loop stop as it begins `step`."""
    from training.runs import loop

    original = loop.train_step

    def stopping(run: Any, now: int, *rest: Any) -> Any:
        if now == step:
            raise Stopped
        return original(run, now, *rest)

    monkeypatch.setattr(loop, "train_step", stopping)
