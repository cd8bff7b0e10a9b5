"""Figures and diagrams of `same_scene`, from the models' cards."""

from __future__ import annotations

from pathlib import Path

from matchserve.models import handcrafted
from matchserve.models.calibration import DIAGRAM_FILE
from matchserve.models.card import ModelCard
from matchserve.models.registry import list_models, shipped_models_dir

FIGURES = {
    "Brier score": "brier",
    "log loss": "log_loss",
    "AUC": "auc",
    "calibration error": "expected_calibration_error",
}


def figures() -> str:
    """Tabulate the figures on held-out scenes of every calibrated model, then the diagrams."""
    rows = [
        "| model | geometry | " + " | ".join(FIGURES) + " |",
        "|---|---|" + "---|" * len(FIGURES),
    ]
    for card in _calibrated():
        assert card.calibration is not None  # noqa: S101
        for kind, fitted in card.calibration.geometries.items():
            cells = " | ".join(f"{fitted.held_out[key]:.4f}" for key in FIGURES.values())
            rows.append(f"| `{card.name}` | {kind} | {cells} |")
    notes = [_protocol(card) for card in _calibrated()]
    return "\n".join([*rows, "", *notes, *_borrowed()])


def diagrams() -> dict[str, Path]:
    """Return the reliability diagram of every calibrated model."""
    return {card.name: _directory(card) / DIAGRAM_FILE for card in _calibrated()}


def site_path(name: str) -> str:
    """Return where the site keeps the diagram of the model `name`."""
    return f"images/reliability/{name}.png"


def _with_calibration() -> list[ModelCard]:
    cards = [card for card in list_models().values() if isinstance(card, ModelCard)]
    return [card for card in cards if card.calibration is not None]


def _owner(card: ModelCard) -> ModelCard:
    """Return the first model with this calibration: a converted model has that of its source."""
    return next(c for c in _with_calibration() if c.calibration == card.calibration)


def _calibrated() -> list[ModelCard]:
    return [card for card in _with_calibration() if _owner(card).name == card.name]


def _borrowed() -> list[str]:
    """Say whose calibration a model has that was not calibrated itself."""
    return [
        f"`{card.name}` has the calibration of `{_owner(card).name}`, whose descriptors it gives.\n"
        for card in _with_calibration()
        if _owner(card).name != card.name
    ]


def _directory(card: ModelCard) -> Path:
    if card.name in handcrafted.NAMES:
        return handcrafted.calibration_directory(card.name)
    return shipped_models_dir() / card.name


def _protocol(card: ModelCard) -> str:
    """Say on which pairs a model was fitted, by which command, and show its diagram."""
    assert card.calibration is not None  # noqa: S101
    protocol = card.calibration.protocol
    return (
        f"`{card.name}`: {protocol['same']} pairs that show the same scene and "
        f"{protocol['different']} that do not, from {protocol['scenes']} scenes and "
        f"{protocol['photographs']} photographs\n(`{card.calibration.command}`)\n\n"
        f"![Reliability of {card.name}](../{site_path(card.name)})\n"
    )
