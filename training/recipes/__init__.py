"""Shipped recipes (TOML files), and the code that reads and checks recipe files.

- `reading`: TOML files and what they extend; `overrides`: `--set` of the command line;
- `options`: the base class of every table; `checking`: errors with the place in the file.

The recipe itself is `training.runs.recipe.Recipe`.
"""
