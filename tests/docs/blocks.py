"""Fenced blocks of code in Markdown pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language and its text."""

    page: str
    language: str
    text: str

    def lines(self) -> list[str]:
        """Shell commands of the block, without comments."""
        joined = self.text.replace("\\\n", " ")
        lines = [re.sub(r"\s+#.*$", "", line).rstrip() for line in joined.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(page, *found) for found in FENCE.findall(text)]


def lines(page: str) -> set[str]:
    """Every shell command of a page."""
    return {line for block in blocks(page) if block.language == "sh" for line in block.lines()}


def user_pages() -> list[str]:
    """Pages whose commands must work: README, Start, Guides, Operations."""
    folders = ("start", "guides", "operations")
    found = [path for folder in folders for path in (ROOT / "docs" / folder).glob("*.md")]
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in found)]
