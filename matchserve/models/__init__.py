"""Descriptor models as code: cards, the registry, ONNX Runtime and SIFT.

The model files themselves are in `models/` at the top of the repository.
"""
