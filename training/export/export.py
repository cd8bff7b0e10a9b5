"""From a run to a model directory that matchserve serves, or to a refusal.

The graph takes uint8 patches and gives unit rows or packed bits: everything between is inside it,
with batch normalisation folded into the convolutions. The directory gets its name only after the
very file that will be served, loaded as it will be loaded, agrees with the trained network.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from matchserve.errors import InvalidParameter
from matchserve.files import WholeDirectory
from matchserve.models.card import GOLDEN_FILE, MODEL_FILE, ModelCard, is_model_name, write_card
from matchserve.models.onnx_model import INPUT, OUTPUT, OnnxDescriptor, sha256_hex
from matchserve.types import PatchSpec, UInt8
from training.errors import ExportRefused
from training.export.pooling import (
    TwoDomains,
    mean_of_domains,
    wider,
)
from training.networks import DescriptorNet, build_network
from training.networks.folding import folded
from training.networks.published import DOMAIN_ENTRY
from training.runs.checkpoint import load_network_weights, read_network
from training.runs.recipe import Recipe
from training.runs.report import read_log
from training.runs.run import (
    BLEND_ENTRY,
    SAMPLES_FILE,
    START_ENTRY,
    read_recipe,
)

OPSET = 18
TOLERANCE = 1e-5
PARITY_PATCHES = 1000
GOLDEN_PATCHES = 32


@dataclass(frozen=True, slots=True)
class CardText:
    """What people add to a card. Without a method or data, it says what the run knows of them."""

    licence: str = "Apache-2.0"
    method: str = ""
    training_data: tuple[str, ...] = ()
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Parity:
    """How far the served file is from the network: largest difference, bits that differ."""

    patches: int
    difference: float
    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A trained network with what its card will say.

    `spec` is the crop that is served: that of the network or, of one that `is_pooled`, a wider one,
    whose middle and whole the graph describes and averages.
    """

    net: DescriptorNet
    recipe: Recipe
    spec: PatchSpec
    training_data: tuple[str, ...]
    samples: UInt8
    metrics: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)
    is_pooled: bool = False

    @classmethod
    def load(cls, run_dir: Path) -> Trained:
        """Read a run's final weights, or its newest checkpoint's.

        Raises:
            RecipeError, CheckpointError, ExportRefused: with the file that is at fault.
        """
        recipe = read_recipe(run_dir)
        entries = read_network(run_dir).entries
        spec = PatchSpec(**entries["patch_spec"])
        net = build_network(recipe.network, spec.size)
        load_network_weights(net, run_dir)
        try:
            samples = np.load(run_dir / SAMPLES_FILE, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ExportRefused(f"{run_dir / SAMPLES_FILE}: no patches to compare on") from error
        made_by = tuple(str(store["made_by"]) for store in entries["training_data"])
        metrics = _last_validation(run_dir)
        provenance = {key: entries[key] for key in (START_ENTRY, BLEND_ENTRY) if key in entries}
        return cls(net.eval(), recipe, spec, made_by, samples, metrics, provenance)

    def describe(self, patches: UInt8) -> NDArray[Any]:
        """What a served file must say of `patches`, by the network itself."""
        return (pooled_reference if self.is_pooled else reference)(self.net, patches)

    def pooled(self, ratio: float) -> Trained:
        """The same, served from a crop about `ratio` times as large.

        Raises:
            ExportRefused: its descriptors are bits, which have no mean, or there is no such crop.
        """
        if self.net.head == "binary":
            raise ExportRefused("domain sizes cannot be pooled into bits")
        try:
            spec = wider(self.spec, ratio)
        except InvalidParameter as error:
            raise ExportRefused(f"a domain of {ratio:g} times the patch: {error}") from error
        if spec.size <= self.spec.size:
            raise ExportRefused(f"a domain of {ratio:g} times the patch is no larger than it")
        # What lies around these patches was not kept: they are enlarged to compare the graphs on.
        enlarged = [cv2.resize(patch[0], (spec.size, spec.size)) for patch in self.samples]
        samples = np.stack(enlarged)[:, None].astype(np.uint8)
        provenance = {**self.provenance, DOMAIN_ENTRY: spec.size / self.spec.size}
        # What the run was validated with is not what this describes.
        return replace(
            self, spec=spec, samples=samples, metrics={}, provenance=provenance, is_pooled=True
        )


class Served(nn.Module):
    """A network as it is served: folded, with unit rows or packed bits at the end.

    With `domains`, the mean of what it says of both.
    """

    def __init__(self, net: DescriptorNet, domains: TwoDomains | None = None) -> None:
        super().__init__()
        self.trunk = folded(net).trunk
        self.dim, self.is_binary = net.dim, net.head == "binary"
        self.domains = domains
        self.register_buffer("places", 2.0 ** torch.arange(7, -1, -1), persistent=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Describe uint8 (N, 1, S, S)."""
        shown = patches.float()
        if self.domains is not None:
            shown = self.domains(shown)
        features = self.trunk(shown).flatten(1)
        if self.is_binary:
            bits = (features > 0).float().reshape(-1, self.dim // 8, 8)
            packed: Tensor = (bits * self.places).sum(2)
            return packed.to(torch.uint8)
        unit = _unit(features)
        return unit if self.domains is None else _unit(mean_of_domains(unit))


def _unit(rows: Tensor) -> Tensor:
    length = (rows * rows).sum(1, keepdim=True).sqrt()
    return rows / length.clamp_min(1e-12)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep libraries that log advice as warnings from doing so."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def to_onnx(net: DescriptorNet, spec: PatchSpec, *, is_pooled: bool = False) -> bytes:
    """Return the served graph of `net`, for patches cut as `spec`, as an ONNX file."""
    domains = TwoDomains(net.patch_size, spec.size) if is_pooled else None
    example = torch.zeros(2, 1, spec.size, spec.size, dtype=torch.uint8)
    with quiet(), warnings.catch_warnings():
        # The exporter warns about its own internals.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Served(net, domains).eval().to("cpu", memory_format=torch.contiguous_format),  # type: ignore[call-overload]
            (example,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={"patches": {0: torch.export.Dim("N")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise ExportRefused("torch returned no ONNX program")
    model = program.model_proto
    _strip(model)
    onnx.helper.set_model_props(model, {"patch_spec": json.dumps(asdict(spec), sort_keys=True)})
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def export(
    run_dir: Path, out: Path, text: CardText | None = None, *, domain_size: float = 1.0
) -> tuple[ModelCard, Parity]:
    """Write the model directory `out` from a run.

    With a `domain_size` above 1 it also describes that much more around a keypoint, and averages.

    Raises:
        ExportRefused: `out` is there, is no model name, there is no such domain, or the file
            disagrees with the network.
    """
    trained = Trained.load(run_dir)
    if domain_size != 1.0:
        trained = trained.pooled(domain_size)
    data = to_onnx(trained.net, trained.spec, is_pooled=trained.is_pooled)
    return write_model(trained, data, out, text)


def write_model(
    trained: Trained, data: bytes, out: Path, text: CardText | None = None
) -> tuple[ModelCard, Parity]:
    """Write, load and compare a model of the trained network; name it only if it agrees."""
    with model_directory(out) as temporary:
        golden = trained.describe(trained.samples[:GOLDEN_PATCHES])
        card = fill_directory(
            trained, data, temporary, name=out.name, golden=golden, text=text or CardText()
        )
        parity = compare(trained, OnnxDescriptor(temporary, provider="cpu"))
    return card, parity


def model_directory(out: Path) -> WholeDirectory:
    """Start the model directory `out`; it gets its name when the `with` block ends.

    Raises:
        ExportRefused: `out` exists, or its last part is not a valid model name.
    """
    if not is_model_name(out.name):
        raise ExportRefused(f"{out.name!r} is no model name: lower case, digits, dot, dash")
    if out.exists():
        raise ExportRefused(f"{out}: already there; remove it first")
    return WholeDirectory(out)


def fill_directory(
    trained: Trained,
    data: bytes,
    directory: Path,
    *,
    name: str,
    golden: NDArray[Any],
    text: CardText,
) -> ModelCard:
    """Write graph, golden patches with their descriptors, and card into `directory`."""
    (directory / MODEL_FILE).write_bytes(data)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, patches=trained.samples[:GOLDEN_PATCHES], descriptors=golden)
    (directory / GOLDEN_FILE).write_bytes(buffer.getvalue())
    is_binary = trained.net.head == "binary"
    card = ModelCard(
        name=name,
        version="1",
        kind="binary" if is_binary else "float",
        dim=trained.net.dim,
        patch=trained.spec,
        sha256=sha256_hex(data),
        golden_sha256=sha256_hex(buffer.getvalue()),
        licence=text.licence,
        method=text.method or _method(trained.recipe),
        training_data=text.training_data or trained.training_data,
        recipe=_public(trained.recipe, trained.provenance),
        metrics=trained.metrics,
        notes=text.notes,
    )
    write_card(card, directory)
    return card


@torch.no_grad()
def reference(net: DescriptorNet, patches: UInt8) -> NDArray[Any]:
    """Describe `patches` with the trained network itself, as it must be served."""
    features = net.eval().features(torch.from_numpy(patches))
    if net.head == "binary":
        return np.packbits(features.numpy() > 0, axis=1)
    return functional.normalize(features, dim=1).numpy()


@torch.no_grad()
def pooled_reference(net: DescriptorNet, patches: UInt8) -> NDArray[Any]:
    """Describe two domains of `patches` one by one, cut and reduced by torch's own operations."""
    given, inner = torch.from_numpy(patches).float(), net.patch_size
    margin = (given.shape[-1] - inner) // 2
    middle = given[..., margin : margin + inner, margin : margin + inner]
    whole = functional.interpolate(given, inner, mode="bilinear", antialias=True)
    both = [functional.normalize(net.eval().features(part), dim=1) for part in (middle, whole)]
    return functional.normalize(both[0] + both[1], dim=1).numpy()


def compare(trained: Trained, served: OnnxDescriptor) -> Parity:
    """Compare the served file with the network on a thousand patches.

    Raises:
        ExportRefused: rows differ by more than 1e-5; or a bit differs whose value is farther than
            that from zero, which rounding cannot explain.
    """
    patches = trained.samples[:PARITY_PATCHES]
    expected, found = trained.describe(patches), served.describe_patches(patches)
    if trained.net.head == "binary":
        differs = np.unpackbits(expected ^ found, axis=1).astype(bool)
        with torch.no_grad():
            values = trained.net.eval().features(torch.from_numpy(patches)).numpy()
        worst = float(np.abs(values[differs]).max(initial=0.0))
        parity = Parity(len(patches), worst, int(differs.sum()))
    else:
        parity = Parity(len(patches), float(np.abs(expected - found).max()), 0)
    if not parity.difference <= TOLERANCE:
        raise ExportRefused(
            f"the exported file differs from the network by {parity.difference:.2g} on "
            f"{parity.patches} patches; {TOLERANCE:g} is allowed"
        )
    return parity


def _strip(model: Any) -> None:
    # The exporter notes source files and stack traces on every node.
    model.ClearField("metadata_props")
    model.doc_string = ""
    model.producer_name, model.producer_version = "matchserve", ""
    graph = model.graph
    graph.name, graph.doc_string = "descriptor", ""
    graph.ClearField("metadata_props")
    graph.ClearField("value_info")
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        item.doc_string = ""
        item.ClearField("metadata_props")


def _method(recipe: Recipe) -> str:
    return f"{recipe.loss.name}, {recipe.sampler.name} sampling"


def _public(recipe: Recipe, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe as plain values; of paths, which belong to a machine, the last part.

    `provenance` is what else made the model: the digest of the weights it started from, of a blend
    the share of what was learned since, of a pooled one the size of its second domain.
    """
    table = {**asdict(recipe), **provenance}
    table["init_from"] = Path(recipe.init_from).name
    for part in ("train", "validation"):
        table["data"][part] = [
            {**source, "path": Path(source["path"]).name} for source in table["data"][part]
        ]
    plain: dict[str, Any] = json.loads(json.dumps(table), parse_constant=str)
    return plain


def _last_validation(run_dir: Path) -> dict[str, Any]:
    figures: dict[str, float] = {}
    for line in read_log(run_dir):
        figures |= {k.removeprefix("fpr95/"): v for k, v in line.items() if k.startswith("fpr95/")}
    return {"validation_fpr95": figures} if figures else {}
