"""The page of shipped models, from `models/README.md`."""

from __future__ import annotations

import re
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"


def page() -> str:
    """Return `models/README.md` without its title, with links as the site needs them."""
    text = (MODELS / "README.md").read_text(encoding="utf-8")
    body = text.partition("\n")[2].lstrip()
    return re.sub(r"\]\(\.\./docs/", "](../", body)
