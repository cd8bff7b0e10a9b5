"""Write the lock files of the images: exact versions with the hash of each wheel (`make lock`).

pip resolves `pyproject.toml` under the constraints, reads the hashes of the public package index,
and downloads only the metadata. Configuration of the machine, such as mirrors, is ignored.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
PYTHON = "3.11"
"""Python version of the base image."""
PLATFORMS = tuple(f"manylinux{v}_x86_64" for v in ("_2_28", "_2_27", "_2_17", "2014"))
"""Platforms whose wheels run on the base image (Debian 12, glibc 2.36)."""

_LINE = re.compile(r"(?P<name>\S+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True, order=True)
class Pin:
    """Package with its exact version and the SHA-256 of its wheel."""

    name: str
    version: str
    sha256: str

    def line(self) -> str:
        """Return the line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class LockFile:
    """Lock file, with the part of `pyproject.toml` and the constraints that it is made from."""

    name: str
    constraints: tuple[str, ...] = ("constraints.txt",)

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return FOLDER / f"{self.name}.txt"

    def requirements(self) -> list[str]:
        """Return the direct requirements: of an extra, or of the build."""
        with (ROOT / "pyproject.toml").open("rb") as file:
            settings = tomllib.load(file)
        if self.name == "build":
            return list(settings["build-system"]["requires"])
        project = settings["project"]
        return [*project["dependencies"], *project["optional-dependencies"][self.name]]


LOCK_FILES = (
    LockFile("cpu"),
    LockFile("gpu", ("constraints.txt", "constraints-gpu.txt")),
    LockFile("build"),
)


def normalised(name: str) -> str:
    """Return a package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(path: Path) -> list[Pin]:
    """Read a lock file.

    Raises:
        ValueError: a line has no exact version or no hash.
    """
    pins = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            found = _LINE.fullmatch(line)
            if found is None:
                raise ValueError(f"{path.name}: not an exact version with a hash: {line}")
            pins.append(Pin(found["name"], found["version"], found["sha256"]))
    return pins


def pins_of_report(report: str) -> list[Pin]:
    """Return the packages of a report of `pip install --report`, sorted by name.

    Raises:
        ValueError: the index gave no hash for a package.
    """
    pins = []
    for item in json.loads(report)["install"]:
        name = normalised(item["metadata"]["name"])
        algorithm, _, digest = item["download_info"]["archive_info"].get("hash", "").partition("=")
        if algorithm != "sha256":
            raise ValueError(f"{name}: the index gives no SHA-256")
        pins.append(Pin(name, item["metadata"]["version"], digest))
    return sorted(pins)


def resolve(requirements: Iterable[str], constraints: Iterable[str]) -> list[Pin]:
    """Resolve requirements with pip, for the platform of the images."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "pip", "install", "--isolated", "--dry-run", "--quiet",
            "--disable-pip-version-check", "--ignore-installed", "--use-feature=fast-deps",
            "--only-binary=:all:", "--target", f"{folder}/unused", "--python-version", PYTHON,
            *(f"--platform={platform}" for platform in PLATFORMS),
            *(f"--constraint={ROOT / name}" for name in constraints),
            "--report", str(report), *requirements,
        ]  # fmt: skip
        subprocess.run(command, check=True)  # noqa: S603  the words are ours
        return pins_of_report(report.read_text(encoding="utf-8"))


def text_of(lock: LockFile, pins: Iterable[Pin]) -> str:
    """Return the contents of a lock file."""
    sources = ", ".join(("pyproject.toml", *lock.constraints))
    head = f"# Made by `make lock` from {sources}, for Python {PYTHON} on Linux (x86-64).\n"
    return head + "".join(f"{pin.line()}\n" for pin in pins)


def main() -> None:
    """Write all lock files."""
    FOLDER.mkdir(exist_ok=True)
    for lock in LOCK_FILES:
        pins = resolve(lock.requirements(), lock.constraints)
        lock.path.write_text(text_of(lock, pins), encoding="utf-8")
        sys.stdout.write(f"{lock.path.relative_to(ROOT)}: {len(pins)} packages\n")


if __name__ == "__main__":
    main()
