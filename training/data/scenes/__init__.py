"""Patches from multi-view scenes, by structure from motion."""
