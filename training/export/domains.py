"""Average the descriptors of several domain sizes with the network of a published model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matchserve.models.card import ModelCard, read_card, write_card
from matchserve.models.onnx_model import OnnxDescriptor
from training.errors import ExportRefused
from training.export.cards import CardText, derived_card
from training.export.export import (
    GOLDEN_PATCHES,
    new_model_directory,
    write_graph_and_golden,
)
from training.export.graph import to_onnx
from training.export.half import generated_patches
from training.export.parity import Parity, compare_floats
from training.export.pooling import domain_entries, domains_of
from training.export.trained import pooled_reference, refuse_bits
from training.networks.published import DOMAIN_ENTRY, network_of


def export_domains(
    source: Path, out: Path, domain_sizes: Sequence[float], text: CardText | None = None
) -> tuple[ModelCard, Parity]:
    """Write the model directory `out`: the model `source`, averaged over these domains as well.

    The card stays, with the texts that are given, but without what was measured on `source`.

    Raises:
        ExportRefused: `out` exists, a domain size is not possible, the model is binary or averages
            domain sizes already, or the file disagrees with the network.
        CheckpointError: `source` cannot be read, or is quantised.
    """
    text = text or CardText()
    card = read_card(source)
    refuse_bits(card.kind)
    if DOMAIN_ENTRY in card.recipe:
        raise ExportRefused(f"{source}: averages several domain sizes already")
    net = network_of(source)
    spec, sides = domains_of(card.patch, domain_sizes)
    graph = to_onnx(net, spec, sides)
    patches = generated_patches(spec)
    expected = pooled_reference(net, patches, sides)
    golden = patches[:GOLDEN_PATCHES]
    with new_model_directory(out) as directory:
        npz = write_graph_and_golden(directory, graph, golden, expected[:GOLDEN_PATCHES])
        made = derived_card(
            card,
            out.name,
            graph=graph,
            golden=npz,
            patch=spec,
            recipe={**card.recipe, **domain_entries(sides)},
            calibration=None,
            confidence=None,
            method=text.method or card.method,
            purpose=text.purpose or card.purpose,
            notes=text.notes,
        )
        write_card(made, directory)
        parity = compare_floats(expected, OnnxDescriptor(directory, provider="cpu"), patches)
    return made, parity
