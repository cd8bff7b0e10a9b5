"""Learned local descriptors, from training to a served match.

>>> from matchserve import Matcher
>>> result = Matcher("rootsift").match("a.jpg", "b.jpg")  # doctest: +SKIP
>>> result.points(), result.verification.matrix  # doctest: +SKIP

The names are imported when they are first used, so that `matchserve.client` needs neither OpenCV
nor FAISS.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matchserve.collections.collection import Collection
    from matchserve.errors import MatchServeError
    from matchserve.limits import Limits
    from matchserve.matcher import Matcher, match_images
    from matchserve.models.card import ModelCard
    from matchserve.models.descriptor import Descriptor
    from matchserve.models.onnx_model import OnnxDescriptor
    from matchserve.models.registry import list_models, load_descriptor
    from matchserve.options import Options
    from matchserve.pipeline.inputs import ImageInput
    from matchserve.pipeline.judging import JudgeOptions
    from matchserve.types import (
        Features,
        Image,
        Keypoints,
        Matches,
        MatchResult,
        PatchSpec,
        RefinedPoints,
        Verification,
    )
    from matchserve.vision.cameras import Camera
    from matchserve.vision.geometry import VerifyOptions
    from matchserve.vision.given_points import GivenPoints
    from matchserve.vision.keypoints import DetectOptions
    from matchserve.vision.masks import Mask, parse_shapes
    from matchserve.vision.matching import MatchOptions

__version__ = "0.1.0"

_MODULES = {
    "matchserve.collections.collection": ("Collection",),
    "matchserve.errors": ("MatchServeError",),
    "matchserve.pipeline.inputs": ("ImageInput",),
    "matchserve.pipeline.judging": ("JudgeOptions",),
    "matchserve.limits": ("Limits",),
    "matchserve.matcher": ("Matcher", "match_images"),
    "matchserve.options": ("Options",),
    "matchserve.models.card": ("ModelCard",),
    "matchserve.models.descriptor": ("Descriptor",),
    "matchserve.models.onnx_model": ("OnnxDescriptor",),
    "matchserve.models.registry": ("list_models", "load_descriptor"),
    "matchserve.types": (
        "Features",
        "Image",
        "Keypoints",
        "MatchResult",
        "Matches",
        "PatchSpec",
        "RefinedPoints",
        "Verification",
    ),
    "matchserve.vision.cameras": ("Camera",),
    "matchserve.vision.geometry": ("VerifyOptions",),
    "matchserve.vision.given_points": ("GivenPoints",),
    "matchserve.vision.keypoints": ("DetectOptions",),
    "matchserve.vision.masks": ("Mask", "parse_shapes"),
    "matchserve.vision.matching": ("MatchOptions",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Camera",
    "Collection",
    "Descriptor",
    "DetectOptions",
    "Features",
    "GivenPoints",
    "Image",
    "ImageInput",
    "JudgeOptions",
    "Keypoints",
    "Limits",
    "Mask",
    "MatchOptions",
    "MatchResult",
    "MatchServeError",
    "Matcher",
    "Matches",
    "ModelCard",
    "OnnxDescriptor",
    "Options",
    "PatchSpec",
    "RefinedPoints",
    "Verification",
    "VerifyOptions",
    "__version__",
    "list_models",
    "load_descriptor",
    "match_images",
    "parse_shapes",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'matchserve' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
