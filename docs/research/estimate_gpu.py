"""`python docs/research/estimate_gpu.py`: what GPUs should do, from arithmetic and bandwidth."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from matchserve.models.registry import shipped_models_dir
from training.networks import NetworkOptions, build_network
from training.networks.cost import mac_count

BATCH = 2048
KEYPOINTS = 2048
KERNEL_S = 5e-6
# Shares of the peak that small convolutions reach; assumptions, not measurements.
FLOAT32_SHARE, FLOAT16_SHARE, TRAINING_SHARE = 0.3, 0.1, 0.35
CALL_S = 1e-3
# Processor seconds of finding keypoints and verifying a pair: models/README.md, `matchserve bench`.
CPU_S_PER_PAIR = 0.30


@dataclass(frozen=True)
class Gpu:
    """Peaks of the data sheet: TFLOP/s in float32 and float16, GB/s of memory and of PCIe."""

    name: str
    float32: float
    float16: float
    memory: float
    pcie: float


GPUS = (
    Gpu("T4", 8.1, 65, 320, 12),
    Gpu("L4", 30.3, 121, 300, 24),
    Gpu("A100 40 GB", 19.5, 312, 1555, 24),
)


@dataclass(frozen=True)
class Cost:
    """Of one patch: multiply-adds, bytes of activations written and read, bytes sent, kernels."""

    multiply_adds: int
    activation_bytes: int
    patch_bytes: int
    kernels: int


def graph_cost(name: str) -> Cost:
    """Add up the layers of a shipped graph."""
    graph = shape_inference.infer_shapes(
        onnx.load(shipped_models_dir() / name / "model.onnx"), data_prop=True
    ).graph
    shapes = {v.name: _sizes(v) for v in (*graph.value_info, *graph.output, *graph.input)}
    weights = {t.name: list(t.dims) for t in graph.initializer}
    multiply_adds = activations = 0
    for node in graph.node:
        output = shapes.get(node.output[0], [0])
        if node.op_type == "Conv":
            multiply_adds += math.prod(output) * math.prod(weights[node.input[1]][1:])
        if node.op_type == "Gemm":
            multiply_adds += max(math.prod(dims) for dims in weights.values())
        if node.op_type not in ("Relu", "Reshape", "Unsqueeze"):  # part of another kernel, or views
            activations += 2 * 4 * math.prod(output)
    size = shapes["patches"][-1]
    return Cost(multiply_adds, activations, size * size, len(graph.node))


def _sizes(value: Any) -> list[int]:
    """Return the shape per patch: its two crops are stacked in the first unnamed dimension."""
    return [
        dim.dim_value or (2 if dim.dim_param == "unk__0" else 1)
        for dim in value.type.tensor_type.shape.dim
    ]


def seconds_per_patch(cost: Cost, gpu: Gpu, *, half: bool) -> float:
    """Return the slowest of arithmetic, memory and PCIe, plus the kernels' starts."""
    peak = gpu.float16 * FLOAT16_SHARE if half else gpu.float32 * FLOAT32_SHARE
    compute = 2 * cost.multiply_adds / (peak * 1e12)
    memory = cost.activation_bytes / (2 if half else 1) / (gpu.memory * 1e9)
    return max(compute, memory, cost.patch_bytes / (gpu.pcie * 1e9)) + (
        cost.kernels * KERNEL_S / BATCH
    )


def main() -> None:
    """Print the tables."""
    cost = graph_cost("compact")
    out = sys.stdout.write
    out(
        f"compact: {cost.multiply_adds / 1e6:.2f} M multiply-adds, "
        f"{cost.activation_bytes / 1e3:.0f} kB of activations, {cost.patch_bytes} bytes of pixels, "
        f"{cost.kernels} nodes\n\n"
    )
    out("| device | compact, patches/s | compact-fp16, patches/s | pairs/s of the device | "
        "cores that feed it | sdgm-paper, steps/s |\n|---|---|---|---|---|---|\n")  # fmt: skip
    net = build_network(NetworkOptions(name="hynet"), 32)
    step_flop = 2 * 3 * 2048 * mac_count(net)  # forward and backward of 1024 pairs
    for gpu in GPUS:
        exact, half = (seconds_per_patch(cost, gpu, half=flag) for flag in (False, True))
        pair_s = 2 * KEYPOINTS * half + 2 * CALL_S
        peak = max(gpu.float32, gpu.float16 * 0.25) * TRAINING_SHARE
        row = (
            gpu.name,
            f"{1e-6 / exact:.1f} M",
            f"{1e-6 / half:.1f} M",
            f"{1 / pair_s:.0f}",
            f"{np.ceil(CPU_S_PER_PAIR / pair_s):.0f}",
            f"{peak * 1e12 / step_flop:.0f}",
        )
        out(f"| {' | '.join(row)} |\n")


if __name__ == "__main__":
    main()
