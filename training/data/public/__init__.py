"""Readers of public patch data sets: PhotoTour and HPatches."""
