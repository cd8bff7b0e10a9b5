"""Shipped recipes (TOML files), and the code that reads, extends and checks a recipe file."""
