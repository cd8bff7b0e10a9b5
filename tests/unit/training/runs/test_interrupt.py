"""Ctrl-C and SIGTERM stop a run between two steps, with a checkpoint; progress when piped."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.unit.training.tiny_runs import new_run
from training.errors import RunStopped
from training.runs import loop, report
from training.runs.checkpoint import Checkpoints, read_tensors
from training.runs.directory import FINAL_FILE
from training.runs.loop import train
from training.runtime.progress_lines import ProgressLines, clock_text


def interrupt_at(patch: pytest.MonkeyPatch, step: int, number: signal.Signals) -> None:
    """Send a signal in the middle of a step."""
    original = loop.train_step

    def interrupted(run: Any, now: int, *rest: Any) -> Any:
        if now == step:
            os.kill(os.getpid(), number)
        return original(run, now, *rest)

    patch.setattr(loop, "train_step", interrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_step_and_the_run_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    never = {"run": {"checkpoint_steps": 0}}
    whole = train(new_run(tmp_path / "whole", **never))
    run_dir = new_run(tmp_path / "stopped", **never)
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3, number)
        with pytest.raises(RunStopped, match=f"stopped at step 4 of 6 by {number.name}") as stopped:
            train(run_dir)
    assert "same command continues" in stopped.value.message
    assert stopped.value.exit_code == 130
    assert signal.getsignal(number) is before
    (saved,) = Checkpoints(run_dir / "checkpoints").files()
    assert saved.name == "step-000000004.safetensors"
    train(run_dir)
    left, right = (read_tensors(one / FINAL_FILE).tensors for one in (whole, run_dir))
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_a_second_signal_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(tmp_path)
    original = loop.train_step

    def interrupted(run: Any, now: int, *rest: Any) -> Any:
        if now == 2:
            # Each returns after its handler has run, so that the two do not become one.
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return original(run, now, *rest)

    monkeypatch.setattr(loop, "train_step", interrupted)
    # A shell starts background commands with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(run_dir)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_in_the_last_step_does_not_lose_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = new_run(tmp_path)
    interrupt_at(monkeypatch, 5, signal.SIGINT)
    assert (train(run_dir) / FINAL_FILE).is_file()


def test_a_line_a_minute_that_fits_80_columns() -> None:
    now, lines = [0.0], list[str]()
    name = "a-recipe-with-a-very-long-name-that-does-not-fit-0773daf57196"
    progress = ProgressLines(name, 100_000, first=10_000, clock=lambda: now[0], write=lines.append)
    for minute in range(1, 301):
        now[0] = 30.0 * minute
        progress.advance(10_000 + 100 * minute, "loss 0.1629")
    assert len(lines) == 150
    assert max(len(line.rstrip("\n")) for line in lines) <= 80
    assert "10200/100000, 1:00 elapsed, 7:29:00 left" in lines[0]
    assert lines[0].startswith("a-recipe")


def test_a_short_name_leaves_room_for_the_loss() -> None:
    now, lines = [0.0], list[str]()
    progress = ProgressLines("mine", 600, clock=lambda: now[0], write=lines.append)
    now[0] = 61.0
    progress.advance(200, "loss 0.1629")
    assert lines == ["mine: 200/600, 1:01 elapsed, 2:02 left, loss 0.1629\n"]
    assert clock_text(3725) == "1:02:05"


def test_training_prints_lines_when_it_is_piped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.runtime.progress_lines.INTERVAL_S", 0.0)
    train(new_run(tmp_path))
    printed = capfd.readouterr().err
    assert "2/6, 0:0" in printed
    assert "\x1b" not in printed


def test_the_bar_and_the_time_left_fit_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()

    def terminal(**_options: Any) -> Console:
        return Console(file=screen, force_terminal=True, width=80, color_system=None)

    monkeypatch.setattr(report, "Console", terminal)
    folder = tmp_path / "sdgm-cpu-finetune-with-a-long-name-0773daf57196"
    folder.mkdir()
    with report.Reporter(folder, first=100_000, steps=200_000, is_active=True) as reporter:
        reporter.advance(150_000, "loss 0.1629")
    shown = [line for line in screen.getvalue().splitlines() if "150000/200000" in line]
    assert shown
    assert all("loss 0.1629" in line and " left " in line for line in shown)
