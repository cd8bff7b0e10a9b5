"""The base image: one argument for all stages, and a command that adds its digest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supply import base_image
from tests.service import dockerfile

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


def test_all_stages_have_the_base_image_of_the_argument() -> None:
    text = base_image.DOCKERFILE.read_text(encoding="utf-8")
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE_IMAGE}", "cpu"}
    stages = dockerfile.parse(base_image.DOCKERFILE)
    assert stages["cpu"].base.startswith("python:3.11-slim-")


def test_a_digest_is_written_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script in the place of Docker checks its arguments and prints a digest."""
    path = tmp_path / "Dockerfile"
    path.write_bytes(base_image.DOCKERFILE.read_bytes())
    docker = tmp_path / "docker"
    tag = dockerfile.parse(path)["cpu"].base.partition("@")[0]
    expected = f"buildx imagetools inspect --format {{{{.Manifest.Digest}}}} {tag}"
    docker.write_text(f'#!/bin/sh\n[ "$*" = "{expected}" ] || exit 1\necho {DIGEST}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert base_image.check(path) == (0 if "@sha256:" in path.read_text() else 1)
    for _ in range(2):
        base_image.main(path)
        assert base_image.check(path) == 0
        assert dockerfile.parse(path)["build-gpu"].base == f"{tag}@{DIGEST}"
        assert path.read_text().count(DIGEST) == 1
    assert DIGEST in capsys.readouterr().out


def test_an_image_without_a_digest_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("ARG BASE_IMAGE=python:3.11-slim\nFROM ${BASE_IMAGE}\n")
    assert base_image.check(path) == 1
    assert "make pin-base-image" in capsys.readouterr().err
    path.write_text(f"ARG BASE_IMAGE=python:3.11-slim@{DIGEST}\nFROM ${{BASE_IMAGE}}\n")
    assert base_image.check(path) == 0
    path.write_text("FROM scratch\n")
    assert base_image.check(path) == 1


def test_a_release_refuses_an_image_that_is_not_pinned() -> None:
    release = (base_image.DOCKERFILE.parent / ".github" / "workflows" / "release.yml").read_text()
    steps = [line.strip() for line in release.splitlines() if "run:" in line]
    checks = [number for number, step in enumerate(steps) if "base_image --check" in step]
    builds = [number for number, step in enumerate(steps) if "docker build" in step]
    assert checks
    assert builds
    assert max(checks) < min(builds)
    assert "||" not in steps[checks[0]]


@pytest.mark.parametrize("digest", ["", "sha256:12", f"{DIGEST}\nRUN evil"])
def test_anything_else_than_a_digest_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        base_image.pinned("ARG BASE_IMAGE=python:3.11\n", digest)


def test_a_dockerfile_without_the_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="ARG BASE_IMAGE"):
        base_image.pinned("FROM scratch\n", DIGEST)
