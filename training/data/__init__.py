"""Patch stores: what training reads, and the tools that make them."""
