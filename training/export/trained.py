"""A trained network with everything that an export needs: recipe, patches, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from matchserve.archives import read_npy
from matchserve.errors import InvalidParameter
from matchserve.types import PatchSpec, UInt8
from training.errors import ExportRefused
from training.export.pooling import domain_entries, domains_of, middle
from training.networks import DescriptorNet, build_network
from training.runs.checkpoint import BLEND_ENTRY, START_ENTRY
from training.runs.directory import SAMPLES_FILE, read_recipe
from training.runs.recipe import Recipe
from training.runs.report import read_log
from training.runs.weights import load_network_weights, read_network


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A trained network, and what the card of its model will say.

    `spec` is the crop of the patches that the model takes. It is that of the network, unless there
    are `sides`: then the model averages the descriptors of these middle parts, in samples.
    `samples` are training patches; `metrics` is the last validation.
    """

    net: DescriptorNet
    recipe: Recipe
    spec: PatchSpec
    training_data: tuple[str, ...]
    samples: UInt8
    metrics: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)
    sides: tuple[int, ...] = ()

    @classmethod
    def load(cls, run_dir: Path) -> Trained:
        """Read a run with its final weights, or those of its newest checkpoint.

        Raises:
            RecipeError, CheckpointError, ExportRefused: the message names the file.
        """
        recipe = read_recipe(run_dir)
        entries = read_network(run_dir).entries
        spec = PatchSpec(**entries["patch_spec"])
        net = build_network(recipe.network, spec.size)
        load_network_weights(net, run_dir)
        try:
            samples = read_npy(run_dir / SAMPLES_FILE)
        except InvalidParameter as error:
            raise ExportRefused(
                f"{run_dir / SAMPLES_FILE}: missing or damaged; the check of the export needs it"
            ) from error
        made_by = tuple(str(store["made_by"]) for store in entries["training_data"])
        metrics = _last_validation(run_dir)
        provenance = {key: entries[key] for key in (START_ENTRY, BLEND_ENTRY) if key in entries}
        return cls(net.eval(), recipe, spec, made_by, samples, metrics, provenance)

    def describe(self, patches: UInt8) -> NDArray[Any]:
        """Return the descriptors that the exported model must give, computed by the network."""
        if self.sides:
            return pooled_reference(self.net, patches, self.sides)
        return reference(self.net, patches)

    def pooled(self, ratios: Sequence[float]) -> Trained:
        """Return this network with further domains, each about one of `ratios` times as large.

        Raises:
            ExportRefused: the descriptors are bits, which have no mean, or the crop is not legal.
        """
        refuse_bits(self.net.head)
        spec, sides = domains_of(self.spec, ratios)
        # The surroundings of these patches were not stored. To compare two graphs on them, enlarged
        # patches are just as good.
        enlarged = [cv2.resize(patch[0], (spec.size, spec.size)) for patch in self.samples]
        samples = np.stack(enlarged)[:, None].astype(np.uint8)
        provenance = {**self.provenance, **domain_entries(sides)}
        # The validation of the run does not apply to the pooled model.
        return replace(
            self, spec=spec, samples=samples, metrics={}, provenance=provenance, sides=sides
        )


def refuse_bits(head: str) -> None:
    """Refuse to average bits.

    Raises:
        ExportRefused: the head is binary.
    """
    if head == "binary":
        raise ExportRefused("binary descriptors of several domain sizes cannot be averaged")


@torch.no_grad()
def reference(net: DescriptorNet, patches: UInt8) -> NDArray[Any]:
    """Describe `patches` with the trained network, as the exported model must."""
    features = net.eval().features(torch.from_numpy(patches))
    if net.head == "binary":
        return np.packbits(features.numpy() > 0, axis=1)
    return functional.normalize(features, dim=1).numpy()


@torch.no_grad()
def pooled_reference(net: DescriptorNet, patches: UInt8, sides: Sequence[int]) -> NDArray[Any]:
    """Average the descriptors of several domain sizes, cropped and reduced by torch's functions."""
    inputs, inner = torch.from_numpy(patches).float(), net.patch_size
    total = torch.zeros(())
    for side in sides:
        part = middle(inputs, side)
        if side != inner:
            part = functional.interpolate(part, inner, mode="bilinear", antialias=True)
        total = total + functional.normalize(net.eval().features(part), dim=1)
    return functional.normalize(total, dim=1).numpy()


def _last_validation(run_dir: Path) -> dict[str, Any]:
    figures: dict[str, float] = {}
    for line in read_log(run_dir):
        figures |= {k.removeprefix("fpr95/"): v for k, v in line.items() if k.startswith("fpr95/")}
    return {"validation_fpr95": figures} if figures else {}
