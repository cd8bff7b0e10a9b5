"""Pin the base image of the Dockerfile by its digest (`make pin-base-image`, needs Docker).

`python -m supply.base_image --check` needs no Docker: it fails if there is no digest.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from supply.lock import ROOT

DOCKERFILE = ROOT / "Dockerfile"
_ARGUMENT = re.compile(
    r"^ARG BASE_IMAGE=(?P<tag>[\w./-]+:[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?$", re.MULTILINE
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pinned(text: str, digest: str) -> str:
    """Return the text of a Dockerfile with the digest of its base image set.

    Raises:
        ValueError: the digest is not a SHA-256, or the Dockerfile names no base image.
    """
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"not a digest: {digest!r}")
    text, count = _ARGUMENT.subn(rf"ARG BASE_IMAGE=\g<tag>@{digest}", text)
    if count != 1:
        raise ValueError("the Dockerfile has no line ARG BASE_IMAGE=NAME:TAG")
    return text


def current_digest(tag: str) -> str:
    """Ask the registry for the digest that a tag has now."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", tag]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def is_pinned(text: str) -> bool:
    """Return whether the base image of a Dockerfile has a digest."""
    found = _ARGUMENT.search(text)
    return found is not None and found["digest"] is not None


def check(path: Path = DOCKERFILE) -> int:
    """Say whether the base image is pinned; return 1, an exit code, if it is not."""
    if is_pinned(path.read_text(encoding="utf-8")):
        return 0
    sys.stderr.write(
        f"{path.name}: the base image has no digest, so a build takes the present image of its "
        "tag; run `make pin-base-image` where Docker can reach the registry\n"
    )
    return 1


def main(path: Path = DOCKERFILE) -> None:
    """Write the present digest of the base image to the Dockerfile."""
    text = path.read_text(encoding="utf-8")
    found = _ARGUMENT.search(text)
    if found is None:
        raise ValueError(f"{path.name} has no line ARG BASE_IMAGE=NAME:TAG")
    digest = current_digest(found["tag"])
    path.write_text(pinned(text, digest), encoding="utf-8")
    sys.stdout.write(f"{found['tag']} is {digest}\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    main()
