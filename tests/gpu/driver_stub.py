"""A libcuda.so.1 without a device: it loads, has every symbol, and `cuInit` finds no device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.gpu.elf import DRIVER

CUDA_ERROR_NO_DEVICE = 100
DRIVER_VERSION = 12090


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path, symbols: Iterable[str]) -> Path:
    """Compile the stub with the functions that the libraries import from the driver."""
    program = compiler()
    assert program is not None
    lines = [
        f"int cuDriverGetVersion(int *version) {{ *version = {DRIVER_VERSION}; return 0; }}",
        *(
            f"int {name}(void) {{ return {CUDA_ERROR_NO_DEVICE}; }}"
            for name in sorted({"cuInit", *symbols} - {"cuDriverGetVersion"})
        ),
    ]
    source, library = folder / "driver.c", folder / DRIVER
    source.write_text("\n".join(lines) + "\n", encoding="ascii")
    subprocess.run(
        [program, "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", library, source],
        check=True,
        capture_output=True,
    )
    return library
