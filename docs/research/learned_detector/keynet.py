"""A network that finds its own keypoints: derivatives, then convolutions shared by a pyramid.

As in Key.Net (Barroso-Laguna et al. 2019), the input of the convolutions are products of first and
second Gaussian derivatives, and the loss compares, in windows of several sizes, the soft maximum of
one score map with the highest place of the other one. The second loss is that of `scored.py`: the
expected number of keypoints that both images choose and that show one point.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pairs import correspondences
from scored import chance_chosen
from torch import Tensor, nn
from torch.nn import functional

from matchserve.types import UInt8

BORDER = 8
"""Scores this near to the border of a level are not used."""
PEAK_SIDE = 5
"""A keypoint is the highest score in a square of this side."""
_WINDOWS = ((8, 1.0), (16, 0.5), (24, 0.25), (40, 0.1))
_SHARPNESS = 8.0
_DERIVATIVE_SIGMA, _LOCAL_SIGMA = 1.2, 6.0
_EPSILON = 6.0  # grey levels
_RADIUS_PX = 1.5


def _derivatives() -> Tensor:
    """Return Gaussian derivative filters (5, 1, 9, 9): x, y, xx, yy, xy, of equal power."""
    x = np.arange(-4, 5)
    variance = _DERIVATIVE_SIGMA**2
    smooth = np.exp(-(x**2) / (2 * variance))
    smooth /= smooth.sum()
    first = -x / variance * smooth
    second = (x**2 / variance - 1) / variance * smooth
    second -= second.sum() * smooth
    rows = [
        np.outer(smooth, first), np.outer(first, smooth), np.outer(smooth, second),
        np.outer(second, smooth), np.outer(first, first),
    ]  # fmt: skip
    return torch.tensor(np.stack(rows)[:, None], dtype=torch.float32)


def _blur(sigma: float) -> Tensor:
    x = np.arange(-round(2 * sigma), round(2 * sigma) + 1)
    smooth = np.exp(-(x**2) / (2 * sigma**2))
    return torch.tensor(smooth / smooth.sum(), dtype=torch.float32)


class KeyNet(nn.Module):
    """Returns the logarithm of the score of each pixel of a level."""

    derivatives: Tensor
    blur: Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("derivatives", _derivatives())
        self.register_buffer("blur", _blur(_LOCAL_SIGMA))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(10),
            nn.Conv2d(10, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 1, 3, padding=1),
        )  # fmt: skip

    def forward(self, pixels: Tensor) -> Tensor:
        """Score levels (N, 1, H, W) of 0 to 255."""
        mean = self._blurred(pixels)
        spread = (self._blurred(pixels.square()) - mean.square()).clamp_min(0).sqrt()
        normal = (pixels - mean) / (spread + _EPSILON)
        padded = functional.pad(normal, (4, 4, 4, 4), mode="replicate")
        dx, dy, dxx, dyy, dxy = functional.conv2d(padded, self.derivatives).unbind(1)
        known = [dx, dy, dx**2, dy**2, dx * dy, dxx, dyy, dxy, dxx * dyy, dxy**2]
        return torch.as_tensor(self.layers(torch.stack(known, 1)))

    def _blurred(self, pixels: Tensor) -> Tensor:
        reach = len(self.blur) // 2
        padded = functional.pad(pixels, (reach, reach, reach, reach), mode="replicate")
        across = functional.conv2d(padded, self.blur[None, None, None])
        return functional.conv2d(across, self.blur[None, None, :, None])


@dataclass(frozen=True, slots=True, eq=False)
class _Warped:
    """The score map of the other crop seen in this one, and where it is seen."""

    score: Tensor
    is_seen: Tensor


def train(crops: UInt8, homographies: np.ndarray, net: KeyNet, steps: int, seed: int = 0) -> None:
    """Train for `steps` batches of two pairs of crops."""
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, steps)
    logged: list[tuple[float, float]] = []
    net.train()
    for step in range(steps):
        rows = rng.permutation(len(crops))[:2]
        pixels = torch.from_numpy(crops[rows]).float().flatten(0, 1)[:, None]
        scores = net(pixels).view(len(rows), 2, *pixels.shape[2:])
        places, both = torch.zeros(()), torch.zeros(())
        for pair, row in zip(scores, rows, strict=True):
            truth = homographies[row]
            offset = int(rng.integers(0, 8))
            places = places + _place_loss(pair[0], _warp(pair[1], truth), offset)
            places = places + _place_loss(pair[1], _warp(pair[0], np.linalg.inv(truth)), offset)
            both = both + _choice_loss(pair, truth)
        loss = (places / 2 + 4.0 * both) / len(rows)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        logged.append((places.item() / 2 / len(rows), -both.item() / len(rows)))
        if (step + 1) % 100 == 0:
            shown = np.mean(logged[-100:], axis=0)
            print(f"step {step + 1}: places {shown[0]:.3f}, chosen {shown[1]:.3f}", flush=True)  # noqa: T201
    net.eval()


def peaks(score: Tensor) -> Tensor:
    """Return where the scores (H, W) are the highest around, away from the border."""
    highest = functional.max_pool2d(score[None, None], PEAK_SIDE, 1, PEAK_SIDE // 2)[0, 0]
    inside = torch.zeros_like(score, dtype=torch.bool)
    inside[BORDER:-BORDER, BORDER:-BORDER] = True
    return (score == highest) & inside


def _warp(score: Tensor, homography: np.ndarray) -> _Warped:
    """Sample the other score map (H, W) at the places of this one; `homography` leads there."""
    height, width = score.shape
    y, x = np.mgrid[:height, :width]
    there = np.stack([x, y, np.ones_like(x)], -1) @ np.asarray(homography).T
    xy = there[..., :2] / there[..., 2:]
    last = np.array([width - 1, height - 1])
    is_seen = ((xy >= BORDER) & (xy <= last - BORDER)).all(-1) & (there[..., 2] > 0)
    grid = torch.tensor(2 * xy / last - 1, dtype=torch.float32).clamp(-2, 2)
    sampled = functional.grid_sample(score[None, None], grid[None], align_corners=True)
    border = np.zeros_like(is_seen)
    border[BORDER:-BORDER, BORDER:-BORDER] = True
    return _Warped(sampled[0, 0], torch.from_numpy(is_seen & border))


def _place_loss(score: Tensor, other: _Warped, offset: int) -> Tensor:
    """Compare the soft maximum of each window with the highest place of the other map."""
    loss = torch.zeros(())
    for side, weight in _WINDOWS:
        mine, theirs, seen = (
            _windows(each, side, offset) for each in (score, other.score, other.is_seen.float())
        )
        whole = seen.amin(1) > 0
        if int(whole.sum()) < 2:
            continue
        mine, theirs = mine[whole], theirs[whole]
        grid = torch.stack(torch.meshgrid(*[torch.arange(float(side))] * 2, indexing="ij"), -1)
        grid = grid.view(-1, 2)
        soft = torch.softmax(_SHARPNESS * mine, 1) @ grid
        distance = (soft - grid[theirs.argmax(1)]).square().sum(1)
        # Windows with high scores count more: so scores are learned to be high where places agree.
        importance = (mine.amax(1) + theirs.amax(1)).exp().clamp_max(1e4)
        loss = loss + weight * (importance * distance).sum() / importance.sum() / side
    return loss


def _windows(values: Tensor, side: int, offset: int) -> Tensor:
    cut = values[offset:, offset:]
    cut = cut[: cut.shape[0] // side * side, : cut.shape[1] // side * side]
    return functional.unfold(cut[None, None], side, stride=side)[0].T


def _choice_loss(pair: Tensor, truth: np.ndarray, share: float = 0.4) -> Tensor:
    """Return the negative share of keypoints that both crops choose, of those seen in both."""
    chances, places = [], []
    for score, homography in ((pair[0], truth), (pair[1], np.linalg.inv(truth))):
        seen = _warp(torch.zeros_like(score), homography).is_seen
        found = (peaks(score.detach()) & seen).nonzero()
        places.append(found.numpy()[:, ::-1].astype(np.float64))
        chances.append(score[found[:, 0], found[:, 1]])
    if min(len(each) for each in places) < 20:
        return torch.zeros(())
    rows = torch.from_numpy(correspondences(truth, places[0], places[1], _RADIUS_PX))
    one, other = (chance_chosen(each, share) for each in chances)
    total = share * min(len(one), len(other))
    return -(one[rows[:, 0]] * other[rows[:, 1]]).sum() / total


def load(path: Path) -> KeyNet:
    """Read a trained network."""
    from safetensors.torch import load_file

    state = load_file(path)
    net = KeyNet(width=state["layers.1.weight"].shape[0])
    net.load_state_dict(state)
    return net.eval()
