"""The golden batch and naive loop twins of the losses, written without looking at their code."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from training.methods import Pairs

N = 8


def descriptors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    i = np.arange(N)
    anchors = np.stack([np.sin(i + 1), np.cos(2 * i + 1), np.sin(3 * i + 2), np.cos(5 * i)], 1)
    anchors /= np.linalg.norm(anchors, axis=1, keepdims=True)
    shift = np.stack([np.cos(i), np.sin(2 * i), np.cos(3 * i), np.sin(4 * i + 1)], 1)
    positives = anchors + 0.3 * shift
    positives /= np.linalg.norm(positives, axis=1, keepdims=True)
    return torch.tensor(anchors, dtype=dtype), torch.tensor(positives, dtype=dtype)


def pairs(progress: float = 0.5, seed: int = 0, **changes: Tensor) -> Pairs:
    anchors, positives = descriptors()
    given = {"anchors": anchors, "positives": positives} | changes
    generator = torch.Generator().manual_seed(seed)
    return Pairs(**given, generator=generator, progress=progress)


def random_pairs(count: int, dim: int, seed: int, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    positives = anchors + noise * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return anchors / anchors.norm(dim=1, keepdim=True), positives / positives.norm(
        dim=1, keepdim=True
    )


def naive_negative(anchors: Tensor, positives: Tensor, mining: str, ceiling: float) -> list[float]:
    """Similarity of the hardest allowed negative of each pair, by loops."""
    a, p = anchors.tolist(), positives.tolist()

    def dot(x: list[float], y: list[float]) -> float:
        return sum(u * v for u, v in zip(x, y, strict=True))

    result = []
    for i in range(len(a)):
        found = []
        for j in range(len(a)):
            if i == j:
                continue
            across = [dot(a[i], p[j]), dot(a[j], p[i])]
            if mining == "row_column":
                found += [s for s in across if s < ceiling]
            else:
                # The four are one candidate: the most similar of them decides.
                best = max([*across, dot(a[i], a[j]), dot(p[i], p[j])])
                found += [best] if best < ceiling else []
        result.append(max(found))
    return result


def naive_distance(s: float) -> float:
    return math.sqrt(2 * (1 - s + 1e-6))
