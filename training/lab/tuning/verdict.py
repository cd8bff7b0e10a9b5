"""Whether tuning helped: the table before and after, and the decision which model is kept."""

from __future__ import annotations

from dataclasses import dataclass

from training.evaluation.compare import Comparison, compare
from training.evaluation.protocol import BenchmarkResult
from training.lab.tuning.steps import AFTER, BEFORE, MIN_HELD_OUT
from training.metrics.metric import CORRECT, MMA, find_metric

_SHOWN = (CORRECT.name, MMA.of(1), MMA.of(3))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of both models, and whether the tuned one is kept."""

    rows: tuple[Comparison, ...]
    is_better: bool

    @property
    def groups(self) -> int:
        """Number of photographs that were kept apart."""
        return self.rows[0].groups

    def table(self) -> str:
        """Return the figures before and after, with 95 % intervals over photographs."""
        lines = [f"{'':22}{'before':>10}{'after':>10}{'change':>10}   95 % interval"]
        for row in self.rows:
            metric = find_metric(row.figure)
            before, after = metric.format(row.mean_a), metric.format(row.mean_b)
            change, low, high = (
                f"{metric.scaled(value):+.2f}"
                for value in (row.difference, row.group_low, row.group_high)
            )
            title = f"{metric.title}, per pair" if metric.name == CORRECT.name else metric.title
            lines.append(f"{title:22}{before:>10}{after:>10}{change:>10}   {low} to {high}")
        return "\n".join(lines)

    def text(self, start: str, out: str) -> str:
        """Say in words what was found and what was written."""
        decided = {row.figure: row for row in self.rows}[CORRECT.name]
        gain = 100 * decided.difference / max(decided.mean_a, 1e-9)
        if self.is_better:
            return (
                f"Tuning helped: {gain:+.1f} % correct matches on photographs it did not see. "
                f"{out} is the tuned model."
            )
        if decided.verdict == "B is worse":
            reason = "it finds fewer correct matches"
        elif self.groups < MIN_HELD_OUT:
            reason = f"{self.groups} photographs are too few to tell; {MIN_HELD_OUT} are needed"
        elif decided.verdict == "B is better":
            reason = "but fewer of its matches are right"
        else:
            reason = "the difference is within what chance explains"
        return (
            f"Tuning did not help: {gain:+.1f} % correct matches on photographs it did not see; "
            f"{reason}. {out} is {start}, unchanged. More photographs, or photographs that differ "
            f"more from what {start} was trained on, help more than more steps."
        )


def judge(result: BenchmarkResult, seed: int = 0) -> Verdict:
    """Decide by the correct matches: the tuned model must be better for certain, else it is not.

    A model that finds more matches of which fewer are right is not better either.
    """
    found = {row.figure: row for row in compare(result, BEFORE, result, AFTER, seed=seed)}
    rows = tuple(found[name] for name in _SHOWN)
    is_better = found[CORRECT.name].verdict == "B is better"
    is_less_precise = found[MMA.of(3)].verdict == "B is worse"
    is_shown = found[CORRECT.name].groups >= MIN_HELD_OUT
    return Verdict(rows, is_shown and is_better and not is_less_precise)
