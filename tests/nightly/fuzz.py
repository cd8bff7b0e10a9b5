"""`python -m tests.nightly.fuzz TARGET --seconds 60`: look for bytes that break a parser.

Atheris (`pip install '.[fuzz]'`) mutates guided by coverage. Without it, or with `--engine mutate`,
seeds are mutated at random. The exit code is 1 if something was found, and the input is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.nightly.fuzz_targets import CONTROL, TARGETS, Target

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
MAX_BYTES = 65_536
EXIT_FOUND = 1
# Atheris never frees the result of an instrumented comparison of arrays.
COMPARES_ARRAYS = {"_next_marker", "_outside_strings"}


def mutated(rng: random.Random, seed: bytes, other: bytes) -> bytes:
    """Return a seed with a few random changes."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        change = rng.randrange(6)
        if change == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1 and at < len(data):
            data[at] = rng.choice(INTERESTING)
        elif change == 2:
            del data[at : at + rng.choice((1, 4, 64, len(data)))]
        elif change == 3:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
        elif change == 4:
            start = rng.randrange(len(other) + 1)
            data[at : at + 32] = other[start : start + 32]
        else:
            data[at:at] = data[at : at + 64] * rng.choice((1, 8))
    return bytes(data[:MAX_BYTES])


def run_mutations(target: Target, seconds: float, max_cases: int, seed: int = 0) -> int:
    """Run mutated seeds for a while; return how many were run.

    Raises:
        Finding: an error that the target must not raise.
    """
    rng = random.Random(seed)
    seeds = target.seeds()
    for data in seeds:
        _run(target, data)
    end = time.monotonic() + seconds
    cases = 0
    while time.monotonic() < end and cases < max_cases:
        _run(target, mutated(rng, rng.choice(seeds), rng.choice(seeds)))
        cases += 1
    return cases


class Finding(Exception):
    """An input that breaks a parser."""

    def __init__(self, data: bytes, error: Exception) -> None:
        super().__init__(f"{error!r} from {len(data)} bytes: {data[:400].hex()}")
        self.data = data


def _run(target: Callable[[bytes], None], data: bytes) -> None:
    try:
        target(data)
    except Exception as error:
        raise Finding(data, error) from error


def run_atheris(target: Target, seconds: float, folder: Path) -> None:
    """Fuzz guided by coverage; this ends the process."""
    import atheris

    seeds = folder / "seeds"
    seeds.mkdir()
    for number, data in enumerate(target.seeds()):
        (seeds / f"{number:03}").write_bytes(data[:MAX_BYTES])
    for name, module in list(sys.modules.items()):
        if name.startswith(("matchserve.", "PIL.", "python_multipart.", "tests.nightly.fuzz_t")):
            _instrument(atheris, module)
    options = [
        *(f"-max_total_time={int(seconds)}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=2048"),
        *("-timeout=20", "-print_final_stats=1", f"-artifact_prefix={folder}/"),
    ]
    atheris.Setup([sys.argv[0], *options, str(seeds)], lambda data: _run(target, data))
    atheris.Fuzz()


def _instrument(atheris: object, module: object) -> None:
    """Let a module's functions report which lines they run."""
    for function in list(vars(module).values()):
        is_own = getattr(function, "__module__", None) == getattr(module, "__name__", "")
        name = getattr(function, "__name__", "")
        if is_own and hasattr(function, "__code__") and name not in COMPARES_ARRAYS:
            atheris.instrument_func(function)  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for bytes that break a parser.")
    parser.add_argument("target", choices=[*TARGETS, "control"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="of the engine mutate")
    parser.add_argument("--engine", choices=["auto", "atheris", "mutate"], default="auto")
    given = parser.parse_args()
    target = TARGETS.get(given.target, CONTROL)
    has_atheris = importlib.util.find_spec("atheris") is not None
    if given.engine == "atheris" or (given.engine == "auto" and has_atheris):
        with tempfile.TemporaryDirectory() as folder:
            run_atheris(target, given.seconds, Path(folder))
        return 0
    try:
        cases = run_mutations(target, given.seconds, given.cases, seed=os.getpid())
    except Finding as finding:
        traceback.print_exc()
        sys.stderr.write(f"{finding}\n")
        return EXIT_FOUND
    sys.stdout.write(f"{given.target}: {cases} cases\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
