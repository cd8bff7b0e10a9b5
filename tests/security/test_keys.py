"""Settings of keys: a service that is meant to be closed is never open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matchserve.api.access import WRONG_KEYS_BURST, Access, KeyRing, RateLimit
from matchserve.api.errors import RateLimited, Unauthorized
from matchserve.errors import InvalidParameter
from matchserve.settings import Settings


@pytest.mark.parametrize("text", ["", ",", " ", " , ,"])
def test_a_setting_without_a_key_is_an_error(text: str) -> None:
    with pytest.raises(InvalidParameter, match="no key"):
        Settings(api_keys=text).keys()  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# only a comment\n", b"\xff\xfe\x00k"])
def test_a_file_without_a_key_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InvalidParameter, match="API_KEYS_FILE"):
        Settings(api_keys_file=path).keys()


def test_comments_are_not_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n  # theirs\nsecond#2\n", encoding="utf-8")
    assert Settings(api_keys_file=path).keys() == ("first", "second#2")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_service_does_not_start_open(tmp_path: Path, workers: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xff\xfe")
    done = subprocess.run(
        [sys.executable, "-m", "matchserve", "serve", "--port", "0", "--workers", workers],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path),
             "MATCHSERVE_API_KEYS_FILE": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "API_KEYS_FILE" in done.stderr
    assert "Traceback" not in done.stderr


def request(key: str, host: str = "10.0.0.1") -> Any:
    return SimpleNamespace(headers={"x-api-key": key}, client=SimpleNamespace(host=host))


def test_wrong_keys_are_throttled_and_right_ones_are_not_locked_out() -> None:
    now = [0.0]
    access = Access(KeyRing(["right", "other"]), RateLimit(0, 1), clock=lambda: now[0])
    access.check(request("right"))
    for number in range(WRONG_KEYS_BURST):
        with pytest.raises(Unauthorized):
            access.check(request(f"wrong{number}"))
    with pytest.raises(RateLimited) as refusal:
        access.check(request("wrong"))
    assert refusal.value.retry_after_s is not None
    # Not even a right key is compared now, or guessing would go on; a known one still works.
    with pytest.raises(RateLimited):
        access.check(request("other"))
    access.check(request("right"))
    access.check(request("other", host="10.0.0.2"))
    now[0] = 2.0
    access.check(request("other"))
