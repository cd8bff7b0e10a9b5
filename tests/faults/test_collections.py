"""Runs on collections that are killed, stopped, or meet a full disk: the same command resumes."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.corner_scene import write_scene

KILLS = int(os.environ.get("MATCHSERVE_TEST_KILLS", "12"))
OPTIONS = ["--model", "rootsift", "--max-keypoints", "500", "--pairs", "exhaustive"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    write_scene(folder, 7)
    return folder / "images"


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a run that nothing disturbs."""
    work = tmp_path_factory.mktemp("whole")
    finish(start(photos, work, workers=1))
    return digests(work)


def start(
    photos: Path,
    work: Path,
    *,
    workers: int,
    module: tuple[str, ...] = ("-m", "matchserve"),
    prepare: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    command = [sys.executable, *module, "collection", "match", str(photos), "-o", str(work)]
    return subprocess.Popen(
        [*command, *OPTIONS, "--workers", str(workers)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=prepare,
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a run, which must be a good one."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors


def digests(work: Path) -> dict[str, str]:
    files = [*sorted((work / "matches").glob("*.npz")), *sorted((work / "features").rglob("*.npz"))]
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    return [c for c in driver.children() if "spawn_main" in " ".join(c.cmdline())]


def leftovers(work: Path) -> list[Path]:
    return list(work.rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_kill_9_at_random(
    photos: Path, expected: dict[str, str], tmp_path: Path, victim: str
) -> None:
    """Kill the driver or a worker again and again; the results are those of an unbroken run."""
    chance = random.Random(5)
    kills = 0
    for number in range(KILLS):
        work = tmp_path / f"work{number}"
        process = start(photos, work, workers=2)
        driver = psutil.Process(process.pid)
        if victim == "worker":
            while not (targets := workers_of(driver)) and process.poll() is None:
                time.sleep(0.05)
        else:
            targets = [driver]
        time.sleep(chance.uniform(0.0, 4.0))
        if process.poll() is None:
            chance.choice(targets).kill()
            kills += 1
        if victim == "driver":
            process.communicate()
            process = start(photos, work, workers=2)
        finish(process)
        assert digests(work) == expected
        assert not leftovers(work)
    assert kills > KILLS / 2


@pytest.mark.slow
def test_kill_9_inside_of_every_write(
    photos: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    """Die in the first write, start again and die in the third, and so on until nothing is left."""
    script = str(Path(__file__).with_name("killed_in_write.py"))
    work, deaths = tmp_path / "work", 0
    for number in range(1, 60):
        process = start(photos, work, workers=1, module=(script, str(1 + number % 3)))
        process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        deaths += 1
    assert deaths > 8
    assert digests(work) == expected
    assert not leftovers(work)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_at_once_and_resumes(
    photos: Path, expected: dict[str, str], tmp_path: Path, number: int
) -> None:
    work = tmp_path / "work"
    process = start(photos, work, workers=2)
    while process.poll() is None and not list(work.glob("features/*/*.npz")):
        time.sleep(0.02)  # until the workers are at work
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if process.returncode != 0:  # else the run ended before the signal
        assert process.returncode == 128 + number, errors.decode()
        assert only_says_how_to_continue(errors), errors.decode()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    finish(start(photos, work, workers=1))
    assert digests(work) == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["driver", "group"])
def test_a_signal_while_workers_start_prints_no_traceback(
    photos: Path, tmp_path: Path, number: int, where: str
) -> None:
    script = str(Path(__file__).with_name("signalled_in_start.py"))
    process = start(
        photos, tmp_path / "work", workers=2, module=(script, where, str(int(number))),
        prepare=os.setsid,
    )  # fmt: skip
    # The workers have the same standard error, so this also waits for the end of the last.
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors.decode()
    assert only_says_how_to_continue(errors), errors.decode()


def only_says_how_to_continue(errors: bytes) -> bool:
    """Return whether the last line of standard error is the message, after progress at most."""
    *progress, last = errors.decode().split("\n\n")
    stages = ("describe ", "pair ", "match ")
    lines = [line for text in progress for line in text.splitlines()]
    return (
        last.startswith("stopped; run the same command")
        and last.count("\n") == 1
        and all(line.startswith(stages) for line in lines)
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_error_and_the_run_resumes(
    photos: Path, expected: dict[str, str], tmp_path: Path, workers: int
) -> None:
    """A limit on the size of files stops writes as a full disk does: ledger, features, matches."""
    codes = []
    for limit in (2_000, 30_000, 100_000, 10_000_000):

        def prepare(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        process = start(photos, tmp_path / "work", workers=workers, prepare=prepare)
        _, errors = process.communicate()
        codes.append(process.returncode)
        assert b"Traceback" not in errors, errors.decode()
        if process.returncode == 74:
            assert b"cannot write" in errors
    assert codes[0] == 74
    assert codes[1] == 74
    assert codes[-1] == 0
    assert digests(tmp_path / "work") == expected
    assert not leftovers(tmp_path / "work")
