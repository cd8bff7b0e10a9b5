"""Learned local descriptors, from training to a served match."""
