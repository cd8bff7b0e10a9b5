"""`python -m tests.gpu.checklist serving|training`: run the commands of the GPU checklist.

A step of docs/operations/gpu-checklist.md is a command and the lines that its output must have, as
regular expressions; a second block of lines is what it prints on a machine without a device.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations" / "gpu-checklist.md"

_STEP = re.compile(
    r"^### (?P<number>\d+)\. (?P<title>[^\n]+)\n.*?```sh\n(?P<command>[^\n]+)\n```\n"
    r".*?```text\n(?P<expected>.*?)\n```\n"
    r"(?:\nWithout a device:\n\n```text\n(?P<without>.*?)\n```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """One command with the lines it must print; `without` is None if it needs a device."""

    number: int
    part: str
    title: str
    command: str
    expected: tuple[str, ...]
    without: tuple[str, ...] | None

    def missing(self, output: str, *, has_device: bool) -> list[str]:
        """List the expected lines that the output does not have."""
        lines = self.expected if has_device else self.without or ()
        return [line for line in lines if not re.search(line, output)]

    def run(self, environment: dict[str, str] | None = None) -> str:
        """Run the command at the root of the repository; return all that it printed."""
        done = subprocess.run(
            ["/bin/sh", "-c", self.command],
            cwd=ROOT,
            env=environment or dict(os.environ),
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr


def read_steps() -> list[Step]:
    text = PAGE.read_text(encoding="utf-8")
    steps = []
    for part in ("serving", "training"):
        body = text.partition(f"\n## {part.capitalize()}\n")[2].partition("\n## ")[0]
        for found in _STEP.finditer(body):
            without = found["without"]
            steps.append(
                Step(
                    int(found["number"]),
                    part,
                    found["title"],
                    found["command"],
                    tuple(found["expected"].splitlines()),
                    None if without is None else tuple(without.splitlines()),
                )
            )
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the commands of the GPU checklist.")
    parser.add_argument("part", choices=["serving", "training"])
    part = parser.parse_args().part
    failed = 0
    for step in [step for step in read_steps() if step.part == part]:
        output = step.run()
        missing = step.missing(output, has_device=True)
        sys.stdout.write(f"{'FAIL' if missing else 'ok  '} {step.number}. {step.title}\n")
        sys.stdout.write("".join(f"     expected: {line}\n" for line in missing))
        sys.stdout.write(f"{output.strip()}\n" if missing else "")
        failed += bool(missing)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
