"""Learned local descriptors, from training to a served match.

>>> from matchserve import Matcher
>>> result = Matcher("rootsift").match("a.jpg", "b.jpg")  # doctest: +SKIP
>>> result.points(), result.verification.matrix  # doctest: +SKIP
"""

from matchserve.errors import MatchServeError
from matchserve.limits import Limits
from matchserve.matcher import Matcher, Options, match_images
from matchserve.models.card import ModelCard
from matchserve.models.descriptor import Descriptor
from matchserve.models.onnx_model import OnnxDescriptor
from matchserve.models.registry import list_models, load_descriptor
from matchserve.types import (
    Features,
    Image,
    Keypoints,
    Matches,
    MatchResult,
    PatchSpec,
    Verification,
)
from matchserve.vision.geometry import Camera, VerifyOptions
from matchserve.vision.keypoints import DetectOptions
from matchserve.vision.matching import MatchOptions

__version__ = "0.1.0"

__all__ = [
    "Camera",
    "Descriptor",
    "DetectOptions",
    "Features",
    "Image",
    "Keypoints",
    "Limits",
    "MatchOptions",
    "MatchResult",
    "MatchServeError",
    "Matcher",
    "Matches",
    "ModelCard",
    "OnnxDescriptor",
    "Options",
    "PatchSpec",
    "Verification",
    "VerifyOptions",
    "__version__",
    "list_models",
    "load_descriptor",
    "match_images",
]
