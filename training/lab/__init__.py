"""Research tools around runs: studies, weight averaging, verification, timing, plots."""
