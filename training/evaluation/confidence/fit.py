"""Fit the two networks, judge them on scenes left out, write them beside the model's card."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from matchserve.files import write_text_whole
from matchserve.models import handcrafted
from matchserve.models.confidence import (
    CONFIDENCE_DIAGRAM_FILE,
    CONFIDENCE_FILE,
    Confidence,
    Layer,
    Network,
)
from matchserve.models.registry import shipped_models_dir
from matchserve.types import Bool, Float32, Float64
from matchserve.vision.confidence import FIRST_CUES, SECOND_CUES, second_cues
from training.evaluation.calibration.fit import divide_scenes
from training.evaluation.calibration.scoring import probability_scores, reliability
from training.evaluation.confidence.diagram import draw_confidence
from training.evaluation.confidence.measure import RIGHT_PX, MeasuredPair, masked

_DIGITS = 5
_BATCH = 4096
_RATE = 3e-3


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Sizes of the hidden layers, passes over the matches, folds of scenes, and the seed.

    Matches that the first network gives less than `refine_from` are not refined.
    """

    hidden: tuple[int, ...] = (32, 32)
    epochs: int = 6
    folds: int = 5
    refine_from: float = 0.02
    seed: int = 0


def fit_confidence(
    measured: Sequence[MeasuredPair], options: FitOptions, command: str = ""
) -> Confidence:
    """Fit on all pairs; figures are of pairs whose scenes the judging fit did not see."""
    held_out = [np.zeros(0, np.float32)] * len(measured)
    folds = divide_scenes([s for m in measured for s in m.pair.scenes], options.folds, options.seed)
    for fold in range(options.folds):
        is_seen = [all(folds[s] != fold for s in m.pair.scenes) for m in measured]
        first, second = _fit_both([m for m, s in zip(measured, is_seen, strict=True) if s], options)
        for number, m in enumerate(measured):
            # A pair of two scenes is judged by the fold of the first one, which saw neither.
            if folds[m.pair.scenes[0]] == fold:
                held_out[number] = judge(m, first, second, options.refine_from)[0]
    first, second = _fit_both(measured, options)
    probability = np.concatenate(held_out).astype(np.float64)
    is_right = np.concatenate([m.is_right for m in measured])
    weights = np.ones(len(is_right))
    return Confidence(
        first=first,
        second=second,
        refine_from=options.refine_from,
        held_out=_figures(probability, is_right),
        reliability=reliability(probability, is_right, weights),
        protocol=_protocol(measured, is_right, options),
        command=command,
    )


def judge(
    measured: MeasuredPair, first: Network, second: Network, refine_from: float | None
) -> tuple[Float32, Bool]:
    """Judge a pair as the service does; also say which matches are right, at the points used."""
    judged = first.arrays().probability(measured.cues.rows)
    if refine_from is None:
        cues = second_cues(measured.cues, judged, None)
        return second.arrays().probability(cues), measured.is_right_raw
    kept = judged >= refine_from
    cues = second_cues(measured.cues, judged, _masked(measured, kept))
    is_right = np.where(kept, measured.is_right, measured.is_right_raw)
    return second.arrays().probability(cues), is_right


def write_confidence(confidence: Confidence, path: Path) -> None:
    """Write as JSON, indented, with each row of numbers on one line."""
    text = json.dumps(confidence.model_dump(), indent=1)
    rows = re.sub(r"\[[-+.\de,\s]+\]", lambda found: " ".join(found[0].split()), text)
    write_text_whole(path, rows.replace("[ ", "[").replace(" ]", "]") + "\n")


def write_beside_card(model: str, name: str, confidence: Confidence) -> Path:
    """Write the networks and their diagram to the directory of the model's card, and return it."""
    if model in handcrafted.NAMES:
        directory = handcrafted.calibration_directory(model)
        directory.mkdir(parents=True, exist_ok=True)
    else:
        directory = Path(model) if "/" in model else shipped_models_dir() / model
    write_confidence(confidence, directory / CONFIDENCE_FILE)
    draw_confidence(confidence, name, directory / CONFIDENCE_DIAGRAM_FILE)
    return directory


def _masked(measured: MeasuredPair, kept: Bool) -> Any:
    cues = measured.cues
    return masked(measured.refinement, cues.keypoints[1].xy, cues.maps, kept)


def _fit_both(measured: Sequence[MeasuredPair], options: FitOptions) -> tuple[Network, Network]:
    rows = np.concatenate([m.cues.rows for m in measured])
    right = np.concatenate([m.is_right for m in measured])
    first = fit_network(FIRST_CUES, rows, right, options)
    second_rows, second_right = [], []
    for number, m in enumerate(measured):
        judged = first.arrays().probability(m.cues.rows)
        # One pair in five is judged without refinement, as when there are only features.
        kept = judged >= options.refine_from
        if number % 5 == 0:
            second_rows.append(second_cues(m.cues, judged, None))
            second_right.append(m.is_right_raw)
            continue
        second_rows.append(second_cues(m.cues, judged, _masked(m, kept)))
        second_right.append(np.where(kept, m.is_right, m.is_right_raw))
    second = fit_network(
        SECOND_CUES, np.concatenate(second_rows), np.concatenate(second_right), options
    )
    return first, second


def fit_network(
    inputs: Sequence[str], rows: Float32, is_right: Bool, options: FitOptions
) -> Network:
    """Fit a network by the log loss with Adam and a cosine schedule."""
    generator = torch.Generator().manual_seed(options.seed)
    mean, scale = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-3)
    x = torch.from_numpy(((rows - mean) / scale).astype(np.float32))
    y = torch.from_numpy(is_right.astype(np.float32))
    layers = _layers(len(inputs), options.hidden, generator)
    weights = [parameter for layer in layers for parameter in layer]
    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=1e-3)
    steps = options.epochs * -(-len(x) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(options.epochs):
        for batch in torch.randperm(len(x), generator=generator).split(_BATCH):  # type: ignore[no-untyped-call]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                _forward(layers, x[batch]), y[batch]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return Network(
        inputs=tuple(inputs),
        mean=_rounded(mean),
        scale=_rounded(scale),
        layers=tuple(
            Layer(
                weights=tuple(_rounded(row) for row in weight.detach().numpy()),
                bias=_rounded(bias.detach().numpy()),
            )
            for weight, bias in layers
        ),
    )


_Layers = list[tuple[torch.Tensor, torch.Tensor]]


def _layers(inputs: int, hidden: Sequence[int], generator: torch.Generator) -> _Layers:
    sizes = [inputs, *hidden, 1]
    layers = []
    for before, after in itertools.pairwise(sizes):
        weight = torch.randn(after, before, generator=generator) * (2 / before) ** 0.5
        layers.append((weight.requires_grad_(), torch.zeros(after, requires_grad=True)))
    return layers


def _forward(layers: _Layers, x: torch.Tensor) -> torch.Tensor:
    for number, (weight, bias) in enumerate(layers):
        x = torch.nn.functional.linear(torch.relu(x) if number else x, weight, bias)
    return x[:, 0]


def _rounded(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values.tolist())


def _figures(probability: Float64, is_right: Bool) -> dict[str, float]:
    inside = np.clip(probability, 1e-6, 1 - 1e-6)
    found = probability_scores(inside, is_right, np.ones(len(is_right)))
    sure = probability >= 0.9
    found["right_at_0.9"] = float(is_right[sure].mean()) if sure.any() else 0.0
    found["share_at_0.9"] = float((sure & is_right).sum() / max(int(is_right.sum()), 1))
    return {name: round(value, _DIGITS) for name, value in found.items()}


def _protocol(
    measured: Sequence[MeasuredPair], is_right: Bool, options: FitOptions
) -> dict[str, Any]:
    kinds = [m.pair.kind for m in measured]
    return {
        "pairs": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "matches": len(is_right),
        "right": int(is_right.sum()),
        "right_px": RIGHT_PX,
        "max_keypoints": sorted({m.pair.max_keypoints for m in measured}),
        "held_out": f"{options.folds} folds of whole scenes and photographs",
        "seed": options.seed,
    }
