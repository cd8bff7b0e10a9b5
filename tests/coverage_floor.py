"""`python -m tests.coverage_floor`: fail if a package has fewer lines covered than its floor.

A floor is what was measured when it was set, rounded down. Raise it when coverage grows.
"""

from __future__ import annotations

import io
import sys

import coverage

FLOORS = {"matchserve": 90, "training": 95}


def main() -> int:
    """Print the coverage of each package; return 1 if one is below its floor."""
    measured = coverage.Coverage()
    measured.load()
    failed = False
    for package, floor in FLOORS.items():
        percent = measured.report(include=[f"{package}/*"], file=io.StringIO())
        failed |= percent < floor
        verdict = "below the floor of" if percent < floor else "floor"
        sys.stdout.write(f"coverage of {package}: {percent:.1f} % ({verdict} {floor} %)\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
