"""A network that scores DoG candidates, trained so that both images choose the same ones.

The loss is the expected number of keypoints that both images choose and that show one point: the
chance to be chosen is a logistic function of the score minus a threshold, and the threshold of an
image is the one for which the expected number of chosen keypoints is the wanted one. So a higher
score of one keypoint makes all others of its image less likely, as in the real choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pairs import Pair
from torch import Tensor, nn

from matchserve.models.descriptor import Descriptor
from matchserve.types import Bool, Float64, Image, Keypoints, PatchSpec, UInt8
from matchserve.vision import keypoints as detection
from matchserve.vision.matching import mutual_nn
from matchserve.vision.patches import crop
from matchserve.vision.selection import is_best_nearby
from training.detector.losses import chance_chosen, correspondences

SPECS = (PatchSpec(size=16, magnification=12.0), PatchSpec(size=16, magnification=36.0))
RADIUS_PX = 3.0
_MOST_CANDIDATES = 4096
_WANTED_SHARES = (0.35, 0.75)  # of the candidates of an image, drawn for each step
_LEAST_PAIRS = 20
_EPSILON = 4.0  # grey levels


class ScoreNet(nn.Module):
    """Scores candidates from two patches, contrast and sigma; untrained, contrast x sigma."""

    def __init__(self, *, reads_patches: bool = True) -> None:
        super().__init__()
        self.reads_patches = reads_patches
        self.features = nn.Sequential(
            nn.Conv2d(2, 8, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(64 + 4, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.zeros_(self.head[2].weight)
        nn.init.zeros_(self.head[2].bias)

    def forward(self, patches: Tensor, scalars: Tensor) -> Tensor:
        """Score uint8 patches (N, 2, 16, 16) and scalars (N, 2): log contrast, log sigma."""
        pixels = patches.float()
        pixels = pixels - pixels.mean((2, 3), keepdim=True)
        std = pixels.square().mean((2, 3), keepdim=True).sqrt()
        found = self.features(pixels / (std + _EPSILON))
        known = [scalars, (std + _EPSILON).log().flatten(1) - 3]
        joined = torch.cat([found if self.reads_patches else 0 * found, *known], 1)
        start = scalars.sum(1)
        return torch.as_tensor(start + self.head(joined)[:, 0])


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows (N, 5) of DoG keypoints with their patches (N, 2, 16, 16)."""

    rows: Float64
    patches: UInt8

    @property
    def scalars(self) -> Tensor:
        """Log contrast and log sigma, about zero."""
        contrast, sigma = self.rows[:, 4], self.rows[:, 2]
        columns = [np.log(np.maximum(contrast, 1e-4)) + 3.5, np.log(sigma) - 0.5]
        return torch.tensor(np.column_stack(columns), dtype=torch.float32)


def find_candidates(
    image: Image, wanted: int, *, upright: bool = False, mask: detection.Region | None = None
) -> Candidates:
    """Return the `wanted` DoG keypoints of the highest contrast, in working pixels."""

    def is_allowed(rows: Float64) -> Bool:
        if mask is None:
            return np.ones(len(rows), np.bool_)
        return mask.allows(image.to_sent(rows[:, :2]), image.size)

    rule = detection.DetectOptions(upright=upright)
    rows = detection._strongest(image.grey, rule, wanted, is_allowed)
    rows = rows[np.lexsort((*rows.T[:4], -rows[:, 4]))][:wanted]
    points = Keypoints(*_columns(rows))
    patches = np.concatenate([crop(image, points, spec) for spec in SPECS], axis=1)
    return Candidates(rows, patches)


def choose(net: ScoreNet, candidates: Candidates, image: Image, wanted: int) -> Float64:
    """Return the rows of the `wanted` keypoints of the highest score, with the score."""
    with torch.inference_mode():
        score = net(torch.from_numpy(candidates.patches), candidates.scalars).numpy()
    rows = candidates.rows.copy()
    rows[:, 4] = np.exp(score)
    gives_way = ~is_best_nearby(rows[:, :2], rows[:, 4], image.grey.shape)
    return np.asarray(rows[np.lexsort((-rows[:, 4], gives_way))[:wanted]])


def detect(
    net: ScoreNet,
    per_keypoint: float,
    image: Image,
    options: detection.DetectOptions,
    mask: detection.Region | None = None,
) -> Keypoints:
    """Find DoG keypoints and return those of the highest score."""
    wanted = math.ceil(per_keypoint * options.max_keypoints)
    candidates = find_candidates(image, wanted, upright=options.upright, mask=mask)
    rows = choose(net, candidates, image, options.max_keypoints)
    scale = math.sqrt(float(np.prod(image.scale_xy)))
    _, sigma, angle, score = _columns(rows)
    xy = image.to_sent(rows[:, :2]).astype(np.float32)
    return Keypoints(xy, sigma / np.float32(scale), angle, score)


def write_pair(pair: Pair, model: Descriptor, path: Path) -> None:
    """Write the candidates of both images, and which show one point and match."""
    found = [find_candidates(image, _MOST_CANDIDATES) for image in pair.images]
    xy = [candidates.rows[:, :2] for candidates in found]
    same = correspondences(pair.homography, xy[0], xy[1], RADIUS_PX)
    described = [
        model.describe(image, Keypoints(*_columns(candidates.rows)))
        for image, candidates in zip(pair.images, found, strict=True)
    ]
    matched = np.asarray(mutual_nn(*described).pairs)
    right = {tuple(row) for row in same.tolist()} & {tuple(row) for row in matched.tolist()}
    np.savez(
        path,
        rows0=found[0].rows, patches0=found[0].patches,
        rows1=found[1].rows, patches1=found[1].patches,
        same=same, matched=np.array(sorted(right), np.int64).reshape(-1, 2),
    )  # fmt: skip


def train(files: Sequence[Path], net: ScoreNet, steps: int, reward: str, seed: int = 0) -> None:
    """Train for `steps` pairs; `reward` is `same` or `matched`: the pairs to choose in both."""
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, steps)
    gains = []
    for step in range(steps):
        with np.load(files[int(rng.integers(len(files)))]) as file:
            data = {name: file[name] for name in file.files}
        if len(data[reward]) < _LEAST_PAIRS:
            continue
        sides = [Candidates(data[f"rows{k}"], data[f"patches{k}"]) for k in (0, 1)]
        if min(len(side.rows) for side in sides) < _MOST_CANDIDATES:
            continue  # a small image, where all are chosen
        share = float(rng.uniform(*_WANTED_SHARES))
        chances, starts = [], []
        for side in sides:
            scalars = side.scalars
            score = net(torch.from_numpy(side.patches), scalars)
            chances.append(chance_chosen(score, share))
            starts.append(chance_chosen(scalars.sum(1), share))
        rows = torch.from_numpy(data[reward])
        both, before = (
            (each[0][rows[:, 0]] * each[1][rows[:, 1]]).sum() for each in (chances, starts)
        )
        loss = -both / before
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        gains.append(-loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: gain {np.mean(gains[-100:]):.4f}", flush=True)  # noqa: T201


def _columns(rows: Float64) -> tuple[np.ndarray, ...]:
    values = rows.astype(np.float32)
    return values[:, :2], values[:, 2], values[:, 3], values[:, 4]
