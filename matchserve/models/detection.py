"""Find keypoints with the detector that the options and the model's card choose."""

from __future__ import annotations

from matchserve.errors import InvalidParameter
from matchserve.models.descriptor import Descriptor, KeypointDetector
from matchserve.types import Image, Keypoints
from matchserve.vision.keypoints import Check, DetectOptions, Region, detect, go_on


def chosen_detector(descriptor: Descriptor, options: DetectOptions) -> KeypointDetector | None:
    """Return the learned detector that the options choose, or None for DoG.

    Raises:
        InvalidParameter: a learned detector is asked for, and the model has none.
    """
    learned = descriptor.detector
    if options.detector == "learned" and learned is None:
        raise InvalidParameter(
            f"model {descriptor.card.name!r} has no learned detector; "
            "`matchserve models` lists the detectors of each"
        )
    if learned is None or options.detector == "dog":
        return None
    return learned if options.detector == "learned" or learned.is_default else None


def find_keypoints(
    descriptor: Descriptor,
    image: Image,
    options: DetectOptions,
    mask: Region | None = None,
    check: Check = go_on,
) -> Keypoints:
    """Find keypoints, best first, in pixels of the image as sent.

    Raises:
        InvalidParameter: a learned detector is asked for, and the model has none.
    """
    learned = chosen_detector(descriptor, options)
    if learned is None:
        return detect(image, options, mask, check)
    return learned.detect(image, options, mask, check)
