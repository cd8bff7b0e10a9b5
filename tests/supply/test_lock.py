"""The lock files: they agree with the constraints, and the images install nothing else."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply import lock
from tests.service import dockerfile

IDS = [file.name for file in lock.LOCK_FILES]


def constraints(*names: str) -> dict[str, str]:
    pins = {}
    for name in names:
        for line in (lock.ROOT / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                package, _, version = line.partition("==")
                pins[lock.normalised(package)] = version
    return pins


@pytest.mark.parametrize("file", lock.LOCK_FILES, ids=IDS)
def test_a_lock_file_agrees_with_the_constraints(file: lock.LockFile) -> None:
    allowed = constraints(*file.constraints)
    pins = lock.read(file.path)
    assert {pin.name: pin.version for pin in pins} == {
        pin.name: allowed.get(pin.name) for pin in pins
    }, "run `make lock`"
    assert pins == sorted(pins)
    assert file.path.read_text(encoding="utf-8") == lock.text_of(file, pins)


@pytest.mark.parametrize("file", lock.LOCK_FILES, ids=IDS)
def test_a_lock_file_has_every_direct_requirement(file: lock.LockFile) -> None:
    pins = {pin.name: pin.version for pin in lock.read(file.path)}
    for text in file.requirements():
        requirement = Requirement(text)
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), "run `make lock`"


def test_the_cpu_lock_file_has_what_its_packages_require() -> None:
    """Follow the requirements of the installed packages, at the versions of the lock file."""
    pins = {pin.name: pin.version for pin in lock.read(lock.FOLDER / "cpu.txt")}
    for name, version in pins.items():
        assert metadata.version(name) == version
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in pins, f"{name} requires {text}"


def test_serving_needs_neither_torch_nor_many_packages() -> None:
    cpu = {pin.name for pin in lock.read(lock.FOLDER / "cpu.txt")}
    assert not {name for name in cpu if name.startswith(("torch", "nvidia", "onnx-"))}
    assert len(cpu) <= 40


@pytest.mark.parametrize("image", ["cpu", "gpu"])
def test_an_image_installs_by_hash_only(image: str) -> None:
    steps = dockerfile.parse(lock.ROOT / "Dockerfile")[f"build-{image}"].steps
    installs = [text for name, text in steps if name == "RUN" and "pip install" in text]
    locked = [text for text in installs if "--require-hashes" in text]
    assert [text.split("-r ")[1] for text in locked] == [
        f"requirements/{image}.txt",
        "requirements/build.txt",
    ]
    (own,) = [text for text in installs if text not in locked]
    assert "--no-deps" in own
    assert "--no-index" in own
    (built,) = [text for name, text in steps if name == "RUN" and "pip wheel" in text]
    assert "--no-build-isolation" in built
    assert "--no-deps" in built


def test_a_line_without_a_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cpu.txt"
    path.write_text("# comment\nnumpy==2.4.6\n")
    with pytest.raises(ValueError, match=r"numpy==2\.4\.6"):
        lock.read(path)


def test_a_package_without_a_hash_in_the_index_is_refused() -> None:
    item = {"metadata": {"name": "a", "version": "1"}, "download_info": {"archive_info": {}}}
    with pytest.raises(ValueError, match="a: the index gives no SHA-256"):
        lock.pins_of_report(json.dumps({"install": [item]}))


def test_pip_refuses_another_wheel(tmp_path: Path) -> None:
    """Install from a folder a wheel that has the locked version but not the locked bytes."""
    pin = next(pin for pin in lock.read(lock.FOLDER / "cpu.txt") if pin.name == "h11")
    wheel = tmp_path / f"h11-{pin.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("h11/__init__.py", "")
        info = f"h11-{pin.version}.dist-info"
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: h11\nVersion: {pin.version}\n"
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() != pin.sha256
    path = tmp_path / "locked.txt"
    path.write_text(pin.line() + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--isolated", "--no-index", "--find-links",
         str(tmp_path), "--require-hashes", "--target", str(tmp_path / "to"), "-r", str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "to" / "h11").exists()
