"""Fit the networks that judge single matches, on pairs of images with known geometry."""
