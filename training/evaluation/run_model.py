"""Describe with the network of a run, so that it is evaluated before it is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn import functional

from matchserve.clock import Call
from matchserve.models.card import ModelCard
from matchserve.types import Image, Keypoints, PatchSpec, UInt8
from matchserve.vision.patches import crop
from training.errors import CheckpointError
from training.networks import build_network
from training.networks.start import load_state
from training.runs.checkpoint import with_prefix
from training.runs.directory import RECIPE_FILE, find_run
from training.runs.recipe import Recipe, recipe_from_table
from training.runs.validation import describe
from training.runs.weights import read_network


def is_run(location: str) -> bool:
    """Return whether `location` is a run directory or a weights file."""
    path = Path(location)
    if path.suffix == ".safetensors":
        return path.is_file()
    return "/" in location and (find_run(path) / RECIPE_FILE).is_file()


class RunDescriptor:
    """The network of a run on the CPU; its card has the digest of the weights."""

    detector = None

    def __init__(self, location: Path) -> None:
        """Load the final weights of a run (or its newest checkpoint), or a weights file.

        Raises:
            CheckpointError: the weights cannot be read.
            RecipeError: this version does not accept the recipe in the file.
        """
        stored = read_network(location)
        if "recipe" not in stored.entries:
            raise CheckpointError(f"{stored.path}: has no recipe")
        recipe = recipe_from_table(stored.entries["recipe"], str(stored.path))
        spec = PatchSpec(**stored.entries["patch_spec"])
        self._net = build_network(recipe.network, spec.size)
        load_state(self._net, with_prefix(stored.tensors, "net."))
        self.card = _card(location, recipe, spec, stored.sha256)
        self.provider = "torch"

    def describe(
        self, image: Image, keypoints: Keypoints, call: Call | None = None
    ) -> NDArray[Any]:
        """Cut the patches of the keypoints and describe them."""
        call = call or Call()
        with call.clock.stage("crop"):
            patches = crop(image, keypoints, self.card.patch)
        return self.describe_patches(patches, call)

    def describe_patches(self, patches: UInt8, call: Call | None = None) -> NDArray[Any]:
        """Describe (N, 1, S, S) patches as the exported model would."""
        with (call or Call()).clock.stage("infer"):
            rows = describe(self._net, patches, torch.device("cpu"))
        if self._net.head != "linear":
            return rows
        # The exported model normalises them too.
        return functional.normalize(torch.from_numpy(rows), dim=1).numpy()


def _card(location: Path, recipe: Recipe, spec: PatchSpec, digest: str) -> ModelCard:
    is_file = location.suffix == ".safetensors"
    name = f"{location.resolve().parent.name}-{location.stem}" if is_file else location.name
    return ModelCard(
        name=re.sub("[^a-z0-9.-]", "-", name.lower()),
        version="0",
        kind="binary" if recipe.network.head == "binary" else "float",
        dim=recipe.network.dim,
        patch=spec,
        sha256=digest,
        licence="not published",
        method=f"{recipe.loss.name}, {recipe.sampler.name} sampling",
    )
