"""The GPU image's own installation, performed once in a folder, and a driver without a device."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gpu import driver_stub, elf
from tests.service import dockerfile
from tests.service.test_container import ROOT, usable_python

# Functions of the driver: cuInit, cuModuleLoadData; not cudaMalloc or cublasCreate.
_DRIVER_FUNCTION = re.compile(r"cu[A-Z]\w*$")


@dataclass(frozen=True)
class Installation:
    """The image's root as a folder, its last stage, and the folder of the stub driver."""

    root: Path
    environment: dict[str, str]
    driver: Path

    @property
    def packages(self) -> Path:
        (folder,) = (self.root / "opt/matchserve/lib").glob("python3.*/site-packages")
        return folder

    def run(
        self, *command: str, driver: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the image, with the stub driver or with none."""
        environment = {**self.environment, **variables}
        if driver:
            environment["LD_LIBRARY_PATH"] = str(self.driver)
        program = shutil.which(command[0], path=environment["PATH"])
        assert program is not None
        return subprocess.run(
            [program, *command[1:]], env=environment, capture_output=True, text=True, cwd="/"
        )

    def python(self, script: str, *, driver: bool = True) -> str:
        """Run a script with the image's Python and return what it prints."""
        done = self.run("python3", "-c", script, driver=driver)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    if driver_stub.compiler() is None:
        pytest.skip("no C compiler to build the stub driver with: apt-get install gcc libc6-dev")
    root = Path("/tmp") / f"matchserve-gpu-{os.getpid()}"
    root.mkdir(mode=0o755)
    try:
        stages = dockerfile.parse(ROOT / "Dockerfile")
        rehearsal = dockerfile.Rehearsal(root, ROOT, usable_python())
        rehearsal.perform(stages["build-gpu"])
        shutil.rmtree(root / "src")  # the last stage has only what it copies
        rehearsal.perform(stages["gpu"])
        folder = tmp_path_factory.mktemp("driver")
        imported = set().union(*map(elf.undefined_symbols, elf.shared_libraries(root)))
        driver_stub.build(folder, filter(_DRIVER_FUNCTION.match, imported))
        yield Installation(root, rehearsal.start_environment(stages["gpu"]), folder)
    finally:
        shutil.rmtree(root, ignore_errors=True)
