"""The container, as far as it can be had without an engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tests.server_process import free_port
from tests.service import dockerfile

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 600_000_000


@pytest.fixture(scope="module")
def stages() -> dict[str, dockerfile.Stage]:
    return dockerfile.parse(ROOT / "Dockerfile")


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_is_unprivileged_and_has_no_tools(
    stages: dict[str, dockerfile.Stage], target: str
) -> None:
    stage = stages[target]
    assert dockerfile.user_of(stage) == (10001, 10001)
    assert "/readyz" in " ".join(dockerfile.health_command(stage))
    assert stage.last("ENTRYPOINT") == '["matchserve"]'
    assert not any("torch" in text or "git " in text for _, text in stage.steps)
    build = stages[f"build-{target}"]
    assert any(f"requirements/{target}.txt" in text for _, text in build.steps)
    assert any("pip uninstall" in text for _, text in build.steps)
    assert ":latest" not in stage.base


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_working_directory_is_empty(stages: dict[str, dockerfile.Stage], target: str) -> None:
    """ONNX Runtime reads relative paths of a model file from there."""
    stage = stages[target]
    assert stage.last("WORKDIR") == "/empty"
    assert not any("/empty" in text for name, text in stage.steps if name != "WORKDIR")
    copied = [text.split() for name, text in stage.steps if name == "COPY"]
    assert all(words[-1].startswith("/opt/") for words in copied)


def test_default_is_the_cpu_image(stages: dict[str, dockerfile.Stage]) -> None:
    assert stages["default"].base == "cpu"


def test_compose_locks_the_container_down() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["matchserve"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


def test_the_manifest_probes_and_scales_on_what_the_service_has(
    stages: dict[str, dockerfile.Stage],
) -> None:
    parts = {
        part["kind"]: part
        for part in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    }
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    user, group = dockerfile.user_of(stages["cpu"])
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (
        user,
        group,
    )
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    metric = parts["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    source = (ROOT / "matchserve" / "api" / "service.py").read_text()
    assert f'"{metric.removeprefix("matchserve_")}"' in source


def usable_python() -> str:
    """A Python of 3.11 or newer that an unprivileged user may run."""
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(name).exists():
            script = "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([name, "-c", script], capture_output=True).returncode == 0:
                return name
    return sys.executable


@pytest.mark.slow
def test_the_dockerfile_installs_and_starts(
    stages: dict[str, dockerfile.Stage], capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path("/tmp") / f"matchserve-image-{os.getpid()}"  # not below a private home
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o755)
    try:
        rehearsal = dockerfile.Rehearsal(root, ROOT, usable_python())
        rehearsal.perform(stages["build-cpu"])
        shutil.rmtree(root / "src")  # the last stage has only what it copies
        rehearsal.perform(stages["cpu"])
        size = dockerfile.size_bytes(root)
        with capsys.disabled():
            print(  # noqa: T201  a figure to be read
                f"\ninstalled size of the cpu image's own layer: {size / 1e6:.0f} MB"
            )
        assert size < MAX_BYTES
        packages = {p.name for p in (root / "opt/matchserve/lib").glob("*/site-packages/*")}
        assert not packages & {"torch", "pip", "setuptools", "onnx", "pytest"}
        _start_and_match(rehearsal, stages["cpu"])
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _start_and_match(rehearsal: dockerfile.Rehearsal, stage: dockerfile.Stage) -> None:
    """Start as the image's user, who may write nowhere, and ask the health check and a match."""
    port = free_port()
    environment = {**rehearsal.start_environment(stage), "MATCHSERVE_PORT": str(port)}
    user: dict[str, object] = {}
    if os.geteuid() == 0:
        uid, gid = dockerfile.user_of(stage)
        user = {"user": uid, "group": gid, "extra_groups": []}
    process = subprocess.Popen(
        rehearsal.start_command(stage),
        env=environment,
        cwd=rehearsal.directory,
        **user,  # type: ignore[call-overload]
    )
    try:
        check = [word.replace(":8000/", f":{port}/") for word in dockerfile.health_command(stage)]
        check[0] = str(shutil.which(check[0], path=environment["PATH"]))
        end = time.monotonic() + 60
        while subprocess.run(check, env=environment, capture_output=True).returncode != 0:
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.2)
        web = ROOT / "matchserve" / "web"
        images = {f"image{i}": (web / f"sample{i}.jpg").read_bytes() for i in (0, 1)}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/match", files=images, timeout=60)
        assert answer.json()["same_scene"] > 0.9
        assert httpx.get(f"http://127.0.0.1:{port}/").text.startswith("<!doctype html>")
    finally:
        process.terminate()
        assert process.wait(40) == 0
