"""Report the progress of a run: a progress bar, a log of JSON lines, TensorBoard and trackers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from matchserve.files import write_text_whole
from training.runs.trackers import Tracker, open_tracker
from training.runtime.progress_lines import ProgressLines

LOG_FILE = "log.jsonl"


class Reporter:
    """Writes progress and figures, on the first process only; a context manager.

    A resumed run deletes the log lines after its checkpoint, because it will write them again.
    `first` is the step at which training begins.
    """

    def __init__(self, run_dir: Path, *, first: int, steps: int, is_active: bool) -> None:
        self.run_dir, self.first, self.steps, self.is_active = run_dir, first, steps, is_active
        self.console = Console(stderr=True, quiet=not is_active)
        self._progress = Progress(
            # All columns fit in 80 characters, so the time left is never cut off.
            TextColumn("[bold]{task.description}", table_column=Column(max_width=18, no_wrap=True)),
            BarColumn(bar_width=12),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not is_active or not self.console.is_terminal,
        )
        self._lines = ProgressLines(run_dir.name, steps, first=first)
        self._board: Any = None
        self._tracker: Tracker | None = None

    def __enter__(self) -> Reporter:
        if not self.is_active:
            return self
        self._tracker = open_tracker(self.run_dir)
        path = self.run_dir / LOG_FILE
        lines = (
            path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        )
        kept = [line for line in lines if 0 <= _step_of(line) <= self.first]
        write_text_whole(path, "".join(f"{line}\n" for line in kept))
        self._log = path.open("a", encoding="utf-8")
        self._board = _tensorboard(self.run_dir, self.first)
        self._progress.start()
        self._task = self._progress.add_task(
            self.run_dir.name, total=self.steps, completed=self.first, figures=""
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_active:
            return
        self._progress.stop()
        self._log.close()
        if self._board is not None:
            self._board.close()
        if self._tracker is not None:
            self._tracker.close()

    def print(self, *messages: str) -> None:
        """Print lines above the progress bar."""
        for message in messages:
            self.console.print(message, highlight=False)

    def advance(self, step: int, figures: str | None = None) -> None:
        """Move the progress bar to `step`; `figures` is the text after it."""
        if self.is_active:
            changes = {} if figures is None else {"figures": figures}
            self._progress.update(self._task, completed=step, **changes)  # type: ignore[arg-type]
            if not self.console.is_terminal:
                self._lines.advance(step, figures or "")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write figures to the log, to TensorBoard and to the tracker."""
        if not self.is_active:
            return
        self._log.write(json.dumps({"step": step, **figures}) + "\n")
        self._log.flush()
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)
        if self._tracker is not None:
            self._tracker.log(step, figures)

    def histogram(self, step: int, name: str, values: Any) -> None:
        """Write a histogram to TensorBoard."""
        if self._board is not None:
            self._board.add_histogram(name, values, step)


class Pace:
    """Measures the speed of training between two log lines, without the time of validation.

    `pairs` is the number of pairs per step, `step` the step at which training begins.
    """

    def __init__(self, pairs: int, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pairs, self._clock = pairs, clock
        self._logged_step, self._logged_at = step, clock()
        self._waited_s = 0.0

    def add_wait(self, seconds: float) -> None:
        """Add time spent waiting for a batch."""
        self._waited_s += seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of the `with` block."""
        began = self._clock()
        yield
        self._logged_at += self._clock() - began

    def figures(self, step: int) -> dict[str, float]:
        """Return the figures since the last call; `step` steps are done."""
        now = self._clock()
        elapsed, done = now - self._logged_at, step - self._logged_step
        figures = {
            "patches_per_s": 2 * self._pairs * done / elapsed,
            "data_wait": self._waited_s / elapsed,
        }
        self._logged_step, self._logged_at, self._waited_s = step, now, 0.0
        return figures


def read_log(run_dir: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a run's log."""
    path = run_dir / LOG_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if _step_of(line) >= 0]


def _step_of(line: str) -> int:
    # A killed process can leave an incomplete last line, which is ignored.
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return -1


def _tensorboard(run_dir: Path, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run_dir / "tensorboard"), purge_step=first + 1)
