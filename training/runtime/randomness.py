"""Random streams that are functions of (seed, step): nothing to save, nothing to restore."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """What the draws are for; streams of one step are independent of each other."""

    WEIGHTS = 0
    CLASSES = 1
    AUGMENT = 2
    CHOICE = 3
    LOSS = 4
    DROPOUT = 5
    VALIDATION = 6
    EPOCH = 7


def numpy_stream(seed: int, step: int, stream: Stream) -> np.random.Generator:
    """Return numpy's generator of a stream."""
    return np.random.default_rng([seed, step, int(stream)])


def stream_seed(seed: int, step: int, stream: Stream) -> int:
    """Return one 63-bit number of a stream, to seed torch with."""
    state = np.random.SeedSequence([seed, step, int(stream)]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def torch_stream(seed: int, step: int, stream: Stream) -> torch.Generator:
    """Return torch's (CPU) generator of a stream."""
    return torch.Generator().manual_seed(stream_seed(seed, step, stream))
