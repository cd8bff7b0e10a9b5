"""Experiments with runs: studies, weight averaging, checks of methods, speed and plots."""
