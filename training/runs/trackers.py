"""Send the figures of a run to Weights & Biases or MLflow, if one of them is chosen and installed.

`MATCHSERVE_TRACKER=wandb` or `=mlflow` chooses it. Both are configured by their own environment
variables (`WANDB_PROJECT`, `MLFLOW_TRACKING_URI` and so on). A resumed run continues its record.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from matchserve.files import write_text_whole
from training.errors import RecipeError
from training.recipes.suggestions import unknown_name

VARIABLE = "MATCHSERVE_TRACKER"
MLFLOW_FILE = "mlflow-run"


class Tracker(Protocol):
    """A service that records figures by step."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Record the figures of a step."""
        ...

    def close(self) -> None:
        """End the record."""
        ...


class Wandb:
    """A run of Weights & Biases, with the name of the run's directory as its ID."""

    def __init__(self, package: Any, run_dir: Path) -> None:
        self._run = package.init(
            id=run_dir.name, name=run_dir.name, dir=str(run_dir), resume="allow"
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Record the figures of a step."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """End the record."""
        self._run.finish()


class Mlflow:
    """A run of MLflow; its ID is kept in the run's directory."""

    def __init__(self, package: Any, run_dir: Path) -> None:
        self._package = package
        path = run_dir / MLFLOW_FILE
        known = path.read_text(encoding="utf-8").strip() if path.exists() else None
        run = package.start_run(run_id=known, run_name=None if known else run_dir.name)
        write_text_whole(path, f"{run.info.run_id}\n")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Record the figures of a step."""
        self._package.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        """End the record."""
        self._package.end_run()


_TRACKERS: dict[str, Any] = {"wandb": Wandb, "mlflow": Mlflow}


def open_tracker(run_dir: Path) -> Tracker | None:
    """Return the tracker that the environment chooses; None if it chooses none.

    Raises:
        RecipeError: there is no tracker of that name, or its package is not installed.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if name not in _TRACKERS:
        raise RecipeError(f"{VARIABLE}: {unknown_name('tracker', name, _TRACKERS)}")
    try:
        package = importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(f"{VARIABLE}={name}: not installed; run `pip install {name}`") from error
    tracker: Tracker = _TRACKERS[name](package, run_dir)
    return tracker
