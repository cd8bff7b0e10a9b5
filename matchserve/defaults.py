"""Default values of a match, defined once for the library, the command line and the service."""

from __future__ import annotations

from typing import Literal

MODEL = "compact"
"""Model used when none is named."""

MAX_KEYPOINTS = 2048
"""Maximum number of keypoints per image."""

COLLECTION_MAX_KEYPOINTS = 8192
"""The same for collections: several times as many points (docs/research/collections.md)."""

MAX_SIDE = 2048
"""Longest side, in pixels, of the copy on which keypoints are found; 0 for the full size.

Measured on a generated pair of 24 megapixels (docs/research/working-size.md): beyond this side
time and memory grow with the number of pixels, while a fixed number of keypoints gains nothing.
"""

THRESHOLD_PX = 3.0
"""Maximum distance, in pixels, between an inlier and the estimated geometry."""

VERIFY: Literal["fundamental"] = "fundamental"
"""Geometry that the matches are checked against."""

MIN_CONFIDENCE = 0.6
"""Least probability of being right with which a match is returned; 0 returns all.

Chosen on generated views of photographs: it returns 99 % of the right matches that 0.5 returns, and
77 % of the wrong ones (docs/research/match-quality.md).
"""

COLLECTION_MIN_CONFIDENCE = 0.1
"""The same for collections, where a mapper sees each match together with those of other images.

Chosen on training scenes (docs/research/match-quality.md).
"""

SUPPORT_CONFIDENCE = 0.1
"""Least confidence of a match that the geometry is fitted to; it may be too low to be returned."""

REGISTRATION_SUPPORT = 0.02
"""As `SUPPORT_CONFIDENCE`, for a similarity or an affine map, which few right matches determine.

Chosen on held-out pairs of other times and sensors (docs/research/models.md).
"""

REFINE: Literal["affine"] = "affine"
"""How matched points are refined to a fraction of a pixel."""

DETECTOR: Literal["auto"] = "auto"
"""How keypoints are found: as the model's card says."""

SELECTION: Literal["repeatable"] = "repeatable"
"""Which of the keypoints are used.

Keypoints that are most likely found again give more right matches and better poses than those of
the highest contrast (docs/research/keypoints.md).
"""

FURTHER_ORIENTATIONS = 0.5
"""Share of the best keypoints that are described in each of their dominant orientations
(docs/research/keypoints.md)."""

ORIENTATION: Literal["auto"] = "auto"
"""Whether patches are turned by the orientation of their keypoint."""

VIEWS: Literal["auto"] = "auto"
"""Which synthetic views are matched; 1 for the images as sent alone."""

ENOUGH_CONFIDENCE = 0.999
ENOUGH_INLIERS = 60.0
ENOUGH_SHARE = 0.1
"""No more views are matched once the geometry has this confidence, and this number of inliers, or
this share of the keypoints of the image that has fewer, is expected to be right
(docs/research/match-quality.md)."""

HINT_MATCHES = 3.0
PROMISING_MATCHES = 10.0
"""With `views` of "auto", least expected number of right matches of the images as sent, and of a
pair of views with a small tilt before larger ones are matched.

Unrelated images seldom have as many, and would be searched to the end
(docs/research/match-quality.md).
"""

GUIDED = False
"""Whether more matches are searched along the geometry."""
