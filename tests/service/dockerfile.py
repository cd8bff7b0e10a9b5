"""Reads a Dockerfile and performs its steps without an engine, in a folder instead of a root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

# Steps that only make the base image smaller; there is no base image here.
IMAGE_ONLY = ("rm -rf /usr/local/lib/python3.11/site-packages/pip* /usr/local/bin/pip*",)
MAPPED = ("/opt/matchserve", "/opt/build", "/src", "/empty")
STARTS = tuple(f"{start}{path}" for path in MAPPED[:2] for start in ("", "python3 -m venv "))


@dataclass
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return [text for name, text in self.steps if name == instruction][-1]

    def environment(self) -> dict[str, str]:
        return dict(text.split("=", 1) for name, text in self.steps if name == "ENV")


def parse(path: Path) -> dict[str, Stage]:
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    current: Stage | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            base = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], base)
            current = stages[name or "default"] = Stage(name or "default", base)
        elif instruction == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif current is not None:
            current.steps.append((instruction, rest.strip()))
    return stages


class Rehearsal:
    """A folder that stands for the root of an image."""

    def __init__(self, root: Path, context: Path, python: str) -> None:
        self.root = root
        self.context = context
        self.python = python
        self.directory = root

    def mapped(self, text: str) -> str:
        for path in MAPPED:
            text = re.sub(rf"(?<![\w/.]){path}\b", f"{self.root}{path}", text)
        return text

    def perform(self, stage: Stage) -> None:
        for instruction, text in stage.steps:
            getattr(self, f"do_{instruction.lower()}")(text)

    def do_workdir(self, text: str) -> None:
        self.directory = Path(self.mapped(text))
        self.directory.mkdir(parents=True)

    def do_copy(self, text: str) -> None:
        words = text.split()
        if words[0].startswith("--from="):
            assert words[1] == words[2], "a stage's files keep their place here"
            return
        *sources, target = words
        for source in sources:
            place = self.directory / target / (source if target.endswith("/") else "")
            origin = self.context / source
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin, place, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(origin, place)

    def do_run(self, text: str) -> None:
        if text in IMAGE_ONLY or text.startswith("apt-get "):
            return  # changes the base image
        assert text.startswith(STARTS), f"this test does not know what to do with RUN {text}"
        command = self.mapped(text).replace("python3 -m venv", f"{self.python} -m venv", 1)
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=self.directory, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def start_environment(self, stage: Stage) -> dict[str, str]:
        return {name: self.mapped(value) for name, value in stage.environment().items()}

    def start_command(self, stage: Stage) -> list[str]:
        words = [*json.loads(stage.last("ENTRYPOINT")), *json.loads(stage.last("CMD"))]
        program = shutil.which(words[0], path=self.start_environment(stage)["PATH"])
        assert program is not None
        assert program.startswith(str(self.root))
        return [program, *words[1:]]

    def _nothing(self, text: str) -> None:
        """Read by the test itself, or by the engine only."""

    do_env = do_user = do_expose = do_stopsignal = _nothing
    do_healthcheck = do_entrypoint = do_cmd = _nothing


def health_command(stage: Stage) -> list[str]:
    words: list[str] = json.loads(stage.last("HEALTHCHECK").partition(" CMD ")[2])
    return words


def user_of(stage: Stage) -> tuple[int, int]:
    user, _, group = stage.last("USER").partition(":")
    return int(user), int(group)


def size_bytes(folder: Path) -> int:
    return sum(
        os.lstat(Path(base) / name).st_size for base, _, names in os.walk(folder) for name in names
    )
