"""Where the browser is, if there is one."""

from __future__ import annotations

import os
import shutil


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def is_required() -> bool:
    return os.environ.get("PAGE_TESTS") == "required"
