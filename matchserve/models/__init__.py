"""Descriptor models: cards, the directory of models, and what runs them."""
