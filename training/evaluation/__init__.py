"""Measure descriptors: predictions first, then scores."""
