"""Decode images in processes that can be killed."""
