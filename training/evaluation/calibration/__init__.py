"""Calibrate `same_scene`: the probability that two images show the same scene."""
