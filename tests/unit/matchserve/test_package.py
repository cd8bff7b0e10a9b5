"""What the package promises as a whole: its names, what it imports, what its wheel holds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import matchserve
from matchserve import errors
from matchserve.hardware import available_cpus, cgroup_cpu_quota, memory_limit_bytes

ROOT = Path(__file__).parents[3]


def test_public_names_are_sorted_and_there() -> None:
    assert matchserve.__all__ == sorted(matchserve.__all__)
    assert all(hasattr(matchserve, name) for name in matchserve.__all__)


def test_importing_matchserve_needs_no_torch_and_reads_no_extra() -> None:
    code = (
        "import sys, matchserve, matchserve.cli\n"
        "extras = {'torch', 'onnx', 'onnxruntime', 'faiss', 'pycolmap', 'matplotlib', 'training'}\n"
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_has_a_code_of_its_own_and_is_in_the_tree() -> None:
    def below(cls: type[errors.MatchServeError]) -> list[type[errors.MatchServeError]]:
        return [cls, *(c for sub in cls.__subclasses__() for c in below(sub))]

    classes = [c for c in below(errors.MatchServeError) if c.__module__ == "matchserve.errors"]
    codes = [c.code for c in classes]
    assert len(set(codes)) == len(codes)
    for cls in classes:
        assert cls.__name__ in (errors.__doc__ or "")
        assert 400 <= cls.status < 600
        assert cls.exit_code > 0


def test_version_is_the_same_everywhere() -> None:
    assert f'version = "{matchserve.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_processors_respect_the_container(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cgroup_cpu_quota(tmp_path) == quota
    assert available_cpus(tmp_path) >= 1
    if quota == 0.5:
        assert available_cpus(tmp_path) == 1


def test_memory_respects_the_container(tmp_path: Path) -> None:
    whole = memory_limit_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory_limit_bytes(tmp_path) == 1_000_000 < whole


@pytest.mark.slow
def test_the_wheel_holds_the_models_and_works_from_anywhere(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "-w", str(tmp_path), str(ROOT)],
        check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert any(n.startswith("training/") for n in names)
    for card in (ROOT / "models").glob("*/card.json"):
        assert f"matchserve/shipped_models/{card.parent.name}/model.onnx" in names
    code = (
        "import matchserve; from matchserve.models.registry import shipped_models_dir as d;"
        "print(matchserve.__file__); print(d()); print(sorted(matchserve.list_models()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
    )  # fmt: skip
    where, models, listed = done.stdout.splitlines()
    assert where.startswith(str(tmp_path))
    assert models.startswith(str(tmp_path))
    for card in (ROOT / "models").glob("*/card.json"):
        assert card.parent.name in listed
