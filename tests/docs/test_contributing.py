"""The map of CONTRIBUTING.md leads to files that exist, and every package of the code is on it."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = set(re.findall(r"`((?:matchserve|training|tests|docs|models)/[\w./-]*)`", TEXT))


def test_every_path_exists() -> None:
    assert len(PATHS) > 40
    written = {path for path in PATHS if "NAME" not in path}
    assert not [path for path in written if not (ROOT / path).exists()]


def test_every_package_is_on_the_map() -> None:
    packages = [
        path.parent.relative_to(ROOT).as_posix() + "/"
        for top in ("matchserve", "training")
        for path in (ROOT / top).glob("*/__init__.py")
    ]
    missing = [p for p in packages if not any(path.startswith(p) for path in PATHS)]
    assert set(missing) <= {"training/runtime/"}
