"""Progress of a run, and how it is shown on a terminal, in a log or to a program."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TextIO, TypeVar

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

Stage = Literal["scan", "describe", "pair", "match", "refine", "export", "map"]
T = TypeVar("T")

_RECENT = 50
_LOG_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of one stage: `done` of `total` items, items a second, and seconds left."""

    stage: Stage
    done: int
    total: int
    per_second: float = 0.0
    eta_s: float | None = None
    refused: int = 0


class Meter:
    """Counts the finished items of a stage and estimates the time that is left."""

    def __init__(
        self, stage: Stage, total: int, done: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stage, self.total, self.done = stage, total, done
        self._clock = clock
        # (time, items done) of the last steps: the estimate follows changes of the speed.
        self._recent: deque[tuple[float, int]] = deque([(clock(), done)], maxlen=_RECENT)

    def step(self, items: int = 0, refused: int = 0) -> Step:
        """Count finished items and return the progress."""
        self.done += items
        if items:
            self._recent.append((self._clock(), self.done))
        (start, before), (end, now) = self._recent[0], self._recent[-1]
        rate = (now - before) / (end - start) if end > start else 0.0
        eta = (self.total - self.done) / rate if rate else None
        return Step(self.stage, self.done, self.total, rate, eta, refused)


def show(steps: Iterable[Step], *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Consume the steps of a run and show them: a bar on a terminal, else lines of text or JSON."""
    stream = stream or sys.stderr
    if as_json:
        _show_lines(steps, stream, lambda step: orjson.dumps(asdict(step)).decode(), 1.0)
    elif stream.isatty():
        _show_bar(steps, stream)
    else:
        _show_lines(steps, stream, line, _LOG_SECONDS)


def line(step: Step) -> str:
    """Return one step as a line of text."""
    text = f"{step.stage} {step.done}/{step.total}"
    if step.per_second:
        text += f", {step.per_second:.1f} a second"
    if step.eta_s is not None and step.done < step.total:
        text += f", {clock_text(step.eta_s)} left"
    return text + (f", {step.refused} refused" if step.refused else "")


def clock_text(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _show_lines(
    steps: Iterable[Step], stream: TextIO, text: Callable[[Step], str], seconds: float
) -> None:
    """Print the first and last step of each stage, and others every few seconds."""
    stage, shown = "", 0.0
    for step in steps:
        now = time.monotonic()
        if step.stage != stage or step.done == step.total or now - shown >= seconds:
            print(text(step), file=stream, flush=True)
            stage, shown = step.stage, now


def _show_bar(steps: Iterable[Step], stream: TextIO) -> None:
    columns: tuple[Any, ...] = (
        TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(file=stream)) as bar:
        for step in steps:
            if step.stage not in tasks:
                tasks[step.stage] = bar.add_task(step.stage, total=step.total, detail="")
            detail = line(step).partition(", ")[2]
            bar.update(tasks[step.stage], completed=step.done, total=step.total, detail=detail)
