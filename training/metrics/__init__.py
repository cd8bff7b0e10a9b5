"""Metrics as pure functions on arrays, and the registry that gives each a unit and a direction."""
