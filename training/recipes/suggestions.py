"""Suggest the legal name that a mistyped one probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, legal: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the legal name nearest to `word`, or an empty string."""
    close = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def unknown_name(what: str, name: str, legal: Iterable[str]) -> str:
    """Say that there is no `what` called `name`, with the nearest legal name or all of them."""
    names = list(legal)
    return f"no {what} {name!r}" + (suggestion(name, names) or f"; known are {', '.join(names)}")
