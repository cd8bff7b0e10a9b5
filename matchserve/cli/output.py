"""Output of the command line: results to files or standard output, messages to standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from matchserve.bench import STAGES, Report
from matchserve.encoding import to_json
from matchserve.errors import InvalidParameter
from matchserve.types import MatchResult

STANDARD_OUTPUT = Path("-")


def check_outputs(paths: Sequence[Path | None], *, picture: Path | None = None) -> None:
    """Check the output options before any work is done.

    Raises:
        InvalidParameter: two outputs go to standard output, or a picture is not PNG.
    """
    if sum(path == STANDARD_OUTPUT for path in paths) > 1:
        raise InvalidParameter("only one output can go to standard output (-)")
    if picture not in (None, STANDARD_OUTPUT) and picture.suffix.lower() != ".png":
        raise InvalidParameter(f"pictures are PNG: name it {picture.with_suffix('.png')}")


def printable(text: str) -> str:
    """Replace control characters, which could change the terminal, by a question mark."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def write(path: Path, data: bytes) -> None:
    """Write a result to a file, or to standard output for `-`.

    Raises:
        InvalidParameter: the file cannot be written.
    """
    try:
        if path == STANDARD_OUTPUT:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            path.write_bytes(data)
    except (OSError, AttributeError) as error:  # AttributeError: standard output is closed
        reason = getattr(error, "strerror", None) or "it is closed"
        name = "standard output" if path == STANDARD_OUTPUT else path
        raise InvalidParameter(f"cannot write {name}: {reason}") from error


def write_json(path: Path, value: object, *, indent: bool = False) -> None:
    """Write values and arrays as JSON with a line end."""
    write(path, to_json(value, indent=indent) + b"\n")


def say(text: str) -> None:
    """Print a message, which may contain rich markup, to standard error."""
    Console(stderr=True).print(printable(text), highlight=False, soft_wrap=True)


def print_summary(result: MatchResult, provider: str) -> None:
    """Print the numbers of matches and inliers, the probability of one scene, and notes."""
    verification = result.verification
    text = f"{len(result.matches)} matches"
    if verification.kind != "none":
        text += (
            f", {result.inlier_count} inliers of one {verification.kind}"
            f" (confidence {verification.confidence:.3f})"
        )
    if result.refined is not None:
        text += f", {int(result.refined.is_refined.sum())} refined"
    counts = f"{len(result.features0)} and {len(result.features1)} keypoints"
    timing = f"{result.timings_ms['total']:.0f} ms"
    say(
        f"[bold]{text}[/]\n{same_scene_text(result.same_scene, verification.kind)}\n"
        f"{counts}, {result.model} on {provider}, {timing}"
    )
    for note in (*result.notes, verification.reason):
        if note:
            say(f"note: {note}")


def same_scene_text(probability: float | None, kind: str) -> str:
    """Return the probability as text with two digits, between 0.01 and 0.99, or why it is unknown.

    `kind` is the geometry that was checked.
    """
    if probability is None and kind == "none":
        return "same_scene: unknown (no geometry was checked)"
    if probability is None:
        return f"same_scene: unknown (the model has no calibration for --verify {kind})"
    return f"same_scene: {min(max(probability, 0.01), 0.99):.2f}"


def print_bench(report: Report) -> None:
    """Print the timings of a benchmark as tables."""
    width, height = report.size
    title = (
        f"CPU-ms per pair, {width}x{height}, {report.keypoints} keypoints, "
        f"{report.threads} thread(s), best of {report.rounds}"
    )
    table = Table("pipeline", *STAGES, "x", "added", title=title)
    for name, stages in report.pipelines.items():
        cells = [f"{stages[s].cpu_ms:.0f}" if s in stages else "-" for s in STAGES]
        added = f"{100 * report.added_share(name):.0f} %" if report.has_raw(name) else "-"
        table.add_row(name, *cells, f"{report.ratio(name):.2f}", added)
    table.caption = "added: confidence, refinement and geometry, beside raw mutual neighbours"
    parts = Table("part / what it replaces", "ours ms", "peer ms", "times faster")
    for name, (ours, peer) in report.components.items():
        speedup = f"{peer.cpu_ms / ours.cpu_ms:.2f}"
        parts.add_row(name, f"{ours.cpu_ms:.1f}", f"{peer.cpu_ms:.1f}", speedup)
    Console(stderr=True).print(table, parts)
