"""Patches from single photographs, by synthetic views."""
