"""Patch stores of registered pairs of images of one place in other light, seasons and sensors."""
