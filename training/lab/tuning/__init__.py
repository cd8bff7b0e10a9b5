"""Tune a shipped model on photographs of your own, and say whether it helped."""

from __future__ import annotations
