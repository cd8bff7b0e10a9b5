"""`python docs/make_calibration.py`: writes the figures of calibrate.md from the cards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from matchserve.models import handcrafted
from matchserve.models.calibration import DIAGRAM_FILE
from matchserve.models.card import ModelCard
from matchserve.models.registry import list_models, shipped_models_dir

DOCS = Path(__file__).resolve().parent
MARK = "<!-- Below this line: written by docs/make_calibration.py from the cards. -->\n"
FIGURES = {"Brier": "brier", "log loss": "log_loss", "AUC": "auc"}


def tables() -> str:
    """Figures on scenes left out, coefficients and diagrams of every calibrated model."""
    cards = [card for card in list_models().values() if isinstance(card, ModelCard)]
    rows = ["| model | geometry | " + " | ".join(FIGURES) + " | calibration error |"]
    rows.append("|" + "---|" * (len(FIGURES) + 3))
    notes = []
    for card in cards:
        if card.calibration is None:
            continue
        for kind, fitted in card.calibration.geometries.items():
            held = fitted.held_out
            cells = [f"{held[key]:.4f}" for key in FIGURES.values()]
            error = f"{held['expected_calibration_error']:.4f}"
            rows.append(f"| {card.name} | {kind} | {' | '.join(cells)} | {error} |")
        notes.append(_note(card))
    return "\n".join(["", *rows, "", *notes])


def _note(card: ModelCard) -> str:
    """What a model's figures are of, the command that prints them, and the diagram."""
    made = card.calibration
    if made is None:
        return ""
    protocol = made.protocol
    directory = (
        handcrafted.calibration_directory(card.name)
        if card.name in handcrafted.NAMES
        else shipped_models_dir() / card.name
    )
    diagram = Path(os.path.relpath(directory / DIAGRAM_FILE, DOCS / "guides")).as_posix()
    return (
        f"`{card.name}`: {protocol['same']} pairs of one scene, {protocol['different']} of two, "
        f"from {protocol['scenes']} scenes and {protocol['photographs']} photographs\n"
        f"(`{made.command}`)\n\n![Reliability of {card.name}]({diagram})\n"
    )


def page() -> str:
    """docs/guides/calibrate.md with its figures written anew."""
    head = (DOCS / "guides" / "calibrate.md").read_text(encoding="utf-8").partition(MARK)[0]
    return head + MARK + tables()


def main() -> None:
    """Write the page."""
    (DOCS / "guides" / "calibrate.md").write_text(page(), encoding="utf-8")
    sys.stdout.write("wrote docs/guides/calibrate.md\n")


if __name__ == "__main__":
    main()
