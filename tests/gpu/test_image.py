"""The GPU image as far as it can be had without a device: installed, linked, loaded, started."""

from __future__ import annotations

import json

import pytest

from tests.gpu import elf
from tests.gpu.conftest import Installation
from tests.service import dockerfile
from tests.service.test_container import ROOT

pytestmark = pytest.mark.nightly

MAX_BYTES = 4_500_000_000
# Optional, and not installed: nothing of it is loaded unless the provider `tensorrt` is named.
TENSORRT = {"libnvinfer.so.10", "libnvonnxparser.so.10"}


def test_its_size(installation: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    size = dockerfile.size_bytes(installation.root)
    with capsys.disabled():
        print(f"\ninstalled size of the gpu image's own layer: {size / 1e9:.2f} GB")  # noqa: T201
    assert size < MAX_BYTES


def test_every_needed_library_is_found(installation: Installation) -> None:
    libraries = elf.shared_libraries(installation.packages)
    present = {path.name for path in libraries} | elf.OF_THE_BASE_IMAGE | {elf.DRIVER}
    missing = {
        f"{path.name} needs {name}"
        for path in libraries
        for name in elf.needed(path)
        if name not in present and name not in TENSORRT
    }
    assert not missing, "\n".join(sorted(missing))
    names = {path.name for path in libraries}
    assert {"libonnxruntime_providers_cuda.so", "libfaiss.so", "libcudnn.so.9"} <= names


LOAD = """
import ctypes, json, pathlib, sys
import faiss, onnxruntime
from matchserve.gpu import load_cuda_libraries, missing_libraries
assert not missing_libraries(), missing_libraries()
failed = {}
for path in map(pathlib.Path, json.loads(sys.argv[-1])):
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        failed[path.name] = str(error)
print(json.dumps(failed))
"""


def test_every_library_loads_with_the_driver(installation: Installation) -> None:
    folders = ("onnxruntime", "faiss", "faiss_gpu.libs", "nvidia")
    paths = [
        str(path)
        for folder in folders
        for path in elf.shared_libraries(installation.packages / folder)
        if "tensorrt" not in path.name  # optional, and its libraries are not installed
        and path.name != "libonnxruntime_providers_cuda.so"  # loaded by a session, below
        and ".alt." not in path.name  # a second copy of NVRTC with the same names in it
    ]
    done = installation.run("python3", "-c", LOAD, json.dumps(paths))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}


def test_onnxruntime_offers_cuda(installation: Installation) -> None:
    script = "import onnxruntime; print(onnxruntime.get_available_providers())"
    assert "CUDAExecutionProvider" in installation.python(script)


PROBE = """
from matchserve.models.providers import probe
from matchserve.errors import ProviderUnavailable
try:
    print(probe("cuda"))
except ProviderUnavailable as error:
    print(error.code, error.exit_code, error.message)
"""


def test_cuda_ends_with_no_device(installation: Installation) -> None:
    text = installation.python(PROBE)
    assert text.startswith("provider_unavailable 78")
    assert "no device: the driver sees none" in text
    assert "missing" not in text


def test_cuda_without_a_driver_says_so(installation: Installation) -> None:
    text = installation.python(PROBE, driver=False)
    assert "no device: the NVIDIA driver (libcuda.so.1) is not installed" in text


def test_the_image_does_not_start_without_a_device(installation: Installation) -> None:
    done = installation.run("matchserve", "serve", MATCHSERVE_PORT="0")
    assert done.returncode == 78
    assert "no device" in done.stderr


def test_doctor_names_every_library_and_runs_on_the_cpu(installation: Installation) -> None:
    done = installation.run("matchserve", "doctor", "--json", MATCHSERVE_PROVIDER="auto")
    assert done.returncode == 0, done.stdout
    assert "running on the CPU: no device" in done.stderr
    report = {check["name"]: check for check in json.loads(done.stdout)}
    for name in ("libcudart.so.12", "libcublas.so.12", "libcufft.so.11", "libcudnn.so.9"):
        assert report[name]["ok"] is True
        assert str(installation.root) in report[name]["detail"]
    assert "no NVIDIA driver" in report["driver"]["detail"]
    assert "no device" in report["cuda"]["detail"]
    assert "CPUExecutionProvider" in report["model compact"]["detail"]


def test_doctor_fails_on_what_the_image_asks_for(installation: Installation) -> None:
    done = installation.run("matchserve", "doctor", "--json")
    assert done.returncode == 1
    report = {check["name"]: check for check in json.loads(done.stdout)}
    assert "no device" in report["model compact"]["detail"]


def test_auto_serves_a_match_on_the_cpu(installation: Installation) -> None:
    web = ROOT / "matchserve" / "web"
    images = [str(web / f"sample{i}.jpg") for i in (0, 1)]
    done = installation.run("matchserve", "match", *images, MATCHSERVE_PROVIDER="auto")
    assert done.returncode == 0, done.stderr
    assert "running on the CPU: no device" in done.stderr
