"""Make the card of an exported model: who made it, how, from what, and how good it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matchserve.models.card import DefaultGeometry, ModelCard
from matchserve.models.model_files import sha256_hex
from training.export.trained import Trained
from training.runs.recipe import Recipe

# Entry of a card's recipe: the SHA-256 of the published file that a model was imported from.
IMPORT_ENTRY = "imported_sha256"


@dataclass(frozen=True, slots=True)
class CardText:
    """The parts of a card that people decide; an empty method or data is filled in from the run."""

    licence: str = "Apache-2.0"
    method: str = ""
    training_data: tuple[str, ...] = ()
    notes: str = ""
    purpose: str = ""
    searches_turn: bool = False
    verify: DefaultGeometry | None = None


def make_card(
    trained: Trained, name: str, text: CardText, *, graph: bytes, golden: bytes
) -> ModelCard:
    """Return the card of the model `name` with the files `graph` (ONNX) and `golden` (npz)."""
    is_imported = IMPORT_ENTRY in trained.provenance
    return ModelCard(
        name=name,
        version="1",
        kind="binary" if trained.net.head == "binary" else "float",
        dim=trained.net.dim,
        patch=trained.spec,
        sha256=sha256_hex(graph),
        golden_sha256=sha256_hex(golden),
        licence=text.licence,
        method=text.method or _method(trained),
        training_data=text.training_data or trained.training_data,
        recipe=_imported(trained) if is_imported else _public(trained.recipe, trained.provenance),
        metrics=trained.metrics,
        notes=text.notes,
        purpose=text.purpose,
        searches_turn=text.searches_turn,
        verify=text.verify,
    )


def derived_card(
    source: ModelCard, name: str, *, graph: bytes, golden: bytes, **changes: Any
) -> ModelCard:
    """Return the card of a model whose ONNX file was converted from that of `source`.

    `changes` replace other fields. The figures are dropped: they were measured on another file.
    """
    sums = {"sha256": sha256_hex(graph), "golden_sha256": sha256_hex(golden)}
    return source.model_copy(update={"name": name, **sums, "metrics": {}, **changes})


def _method(trained: Trained) -> str:
    recipe = trained.recipe
    if IMPORT_ENTRY in trained.provenance:
        return f"published weights of {recipe.name}"
    return f"{recipe.loss.name}, {recipe.sampler.name} sampling"


def _imported(trained: Trained) -> dict[str, Any]:
    """Return what is known of weights that were trained elsewhere: their network and digest."""
    recipe = trained.recipe
    return {"name": recipe.name, "network": recipe.network.model_dump(), **trained.provenance}


def _public(recipe: Recipe, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe as plain values, with only the last part of each path.

    `provenance` is added to it: the digest of the weights that the run started from, the share of
    the run in averaged weights, and the wider domain sizes, where there are such.
    """
    table = {**recipe.model_dump(), **provenance}
    table["init_from"] = Path(recipe.init_from).name
    for part in ("train", "validation"):
        table["data"][part] = [
            {**source, "path": Path(source["path"]).name} for source in table["data"][part]
        ]
    plain: dict[str, Any] = json.loads(json.dumps(table), parse_constant=str)
    return plain
