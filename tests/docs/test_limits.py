"""The table of other families of matchers: each figure has a source, and README repeats it."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

GUIDE = (ROOT / "docs" / "guides" / "limits.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
FAMILIES = ("SuperPoint", "ALIKED", "XFeat", "LightGlue", "RoMa")


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each table: its head, then its rows."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [[line.strip("|").split("|") for line in table.splitlines()] for table in found]
    return [[[cell.strip() for cell in row] for row in (t[0], *t[2:])] for t in rows]


def test_every_figure_has_a_source() -> None:
    sources = set(re.findall(r"^(\d+)\. ", GUIDE, re.MULTILINE))
    sourced = [table for table in tables(GUIDE) if table[0][-1] == "source"]
    cited = {row[-1] for table in sourced for row in table[1:]}
    assert len(sourced) == 2
    assert cited == sources
    figures = " ".join(" ".join(row) for table in sourced for row in table)
    assert all(name in figures for name in FAMILIES)


def test_the_readme_repeats_the_figures_of_the_guide() -> None:
    (short,) = [table for table in tables(README) if "XFeat" in table[0]]
    guide = [" ".join(row) for table in tables(GUIDE) for row in table]
    for name, *figures in short[1:]:
        (row,) = [line for line in guide if line.startswith(name.partition(",")[0])]
        assert all(figure in row for figure in figures), name
    assert "docs/guides/limits.md" in README
