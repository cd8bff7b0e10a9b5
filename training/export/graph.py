"""Build the ONNX graph of a network as it is served.

The graph takes uint8 patches and returns unit vectors or packed bits. Everything in between is part
of it, with batch normalisation folded into the convolutions.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from matchserve.models.execution import INPUT, OUTPUT
from matchserve.types import PatchSpec
from training.errors import ExportRefused
from training.export.pooling import Domains, mean_of_domains
from training.networks import DescriptorNet
from training.networks.folding import folded

OPSET = 18


class Served(nn.Module):
    """A network as it is served: folded, with unit vectors or packed bits as output.

    With `domains`, the output is the mean descriptor of several domain sizes.
    """

    def __init__(self, net: DescriptorNet, domains: Domains | None = None) -> None:
        super().__init__()
        self.trunk = folded(net).trunk
        self.dim, self.is_binary = net.dim, net.head == "binary"
        self.domains = domains
        # Values of the eight bits of a byte. The name of the buffer is part of exported files.
        self.register_buffer("places", 2.0 ** torch.arange(7, -1, -1), persistent=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Describe uint8 patches (N, 1, S, S)."""
        inputs = patches.float()
        if self.domains is not None:
            inputs = self.domains(inputs)
        features = self.trunk(inputs).flatten(1)
        if self.is_binary:
            bits = (features > 0).float().reshape(-1, self.dim // 8, 8)
            packed: Tensor = (bits * self.places).sum(2)
            return packed.to(torch.uint8)
        unit = _unit(features)
        if self.domains is None:
            return unit
        return _unit(mean_of_domains(unit, len(self.domains.sides)))


def _unit(rows: Tensor) -> Tensor:
    length = (rows * rows).sum(1, keepdim=True).sqrt()
    return rows / length.clamp_min(1e-12)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress log messages up to warnings: exporters log advice to their own developers."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def to_onnx(net: DescriptorNet, spec: PatchSpec, sides: Sequence[int] = ()) -> bytes:
    """Return the served graph of `net` for patches of `spec`, as an ONNX file.

    `sides` are the domain sizes, in samples of the patch, whose descriptors are averaged.
    """
    domains = Domains(sides) if sides else None
    example = torch.zeros(2, 1, spec.size, spec.size, dtype=torch.uint8)
    with quiet(), warnings.catch_warnings():
        # The exporter warns about its own internals, which a user cannot change.
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
    strip(model, "descriptor")
    onnx.helper.set_model_props(model, {"patch_spec": json.dumps(asdict(spec), sort_keys=True)})
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def strip(model: Any, name: str) -> None:
    """Remove what depends on the machine from an ONNX model, and name its graph."""
    # The exporter adds source files and stack traces to every node.
    model.ClearField("metadata_props")
    model.doc_string = ""
    model.producer_name, model.producer_version = "matchserve", ""
    graph = model.graph
    graph.name, graph.doc_string = name, ""
    graph.ClearField("metadata_props")
    graph.ClearField("value_info")
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        item.doc_string = ""
        item.ClearField("metadata_props")
