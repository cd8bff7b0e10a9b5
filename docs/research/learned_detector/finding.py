"""Find keypoints with the network of a run, before it is exported."""

from __future__ import annotations

import numpy as np
import torch

from matchserve.types import Float32, Image, Keypoints
from matchserve.vision.keypoints import DetectOptions, Region
from matchserve.vision.learned_keypoints import detect_learned
from matchserve.vision.score_peaks import Pyramid
from training.detector.network import ScoreNetwork

PER_OCTAVE, SIGMA = 2, 2.4


def find(
    net: ScoreNetwork,
    sigma: float,
    image: Image,
    options: DetectOptions | None = None,
    mask: Region | None = None,
) -> Keypoints:
    """Return the keypoints of the highest score, as the exported network finds them."""

    def score(level: Float32) -> Float32:
        with torch.inference_mode():
            return np.asarray(net(torch.from_numpy(level)[None, None])[0, 0].numpy(), np.float32)

    pyramid = Pyramid(PER_OCTAVE, sigma)
    return detect_learned(score, pyramid, image, options or DetectOptions(), mask)
