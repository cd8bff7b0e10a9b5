"""The page of guards: every test that it names exists, and no row is without one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations" / "guards.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
IDS = {
    *(f"D{number}" for number in range(1, 18)),
    *("supply", "L-4", "L-5", "L-8", "D-3", "D-8", "D-10", "D-12", "D-19", "D-21"),
    *("F-2", "F-4", "S-2", "S-4", "S-5", "S-6"),
}


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 50
    missing = [f"{file}::{test}" for file, test in named if test not in functions(ROOT / file)]
    assert missing == []


def test_every_guard_has_a_test() -> None:
    rows = [
        line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| [A-Z]|\| supply", line)
    ]
    found = {row[0].strip("| ") for row in rows}
    assert found >= IDS
    assert all(NAMED.search(row[-1]) for row in rows)
