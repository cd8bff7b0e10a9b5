"""Random generators that depend only on (seed, step, purpose), so that none has to be saved."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """The purpose of random draws; streams of different purposes are independent."""

    WEIGHTS = 0
    CLASSES = 1
    AUGMENT = 2
    CHOICE = 3
    LOSS = 4
    DROPOUT = 5
    VALIDATION = 6
    EPOCH = 7


def numpy_stream(seed: int, step: int, stream: Stream) -> np.random.Generator:
    """Return the numpy generator of a stream."""
    return np.random.default_rng([seed, step, int(stream)])


def stream_seed(seed: int, step: int, stream: Stream) -> int:
    """Return a 63-bit seed for torch from a stream."""
    state = np.random.SeedSequence([seed, step, int(stream)]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def torch_stream(seed: int, step: int, stream: Stream) -> torch.Generator:
    """Return the torch generator (CPU) of a stream."""
    return torch.Generator().manual_seed(stream_seed(seed, step, stream))
