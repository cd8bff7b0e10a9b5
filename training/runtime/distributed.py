"""Several processes as one: gathered descriptors, shared statistics, summed gradients.

Every rank computes the loss of the *whole* batch from gathered descriptors, so a rank's gradient
with respect to its own descriptors is a slice, and the gradient of a parameter is the sum over
ranks. That makes 2 ranks of B pairs equal 1 rank of 2B pairs, mining and statistics included.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


def start(device: torch.device) -> None:
    """Join the group that `torchrun` describes in the environment; alone without one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def stop() -> None:
    """Leave the group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, 0 for the one that writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def launched_rank() -> int:
    """Number of this process as `torchrun` says it, also before the processes have met."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def own_slice(rows: int) -> slice:
    """Return the rows of a batch of `rows` that this rank works on."""
    share = rows // world_size()
    return slice(rank() * share, (rank() + 1) * share)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.share = len(rows)
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        start_row = rank() * ctx.share
        return gradients[0][start_row : start_row + ctx.share]


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all ranks in rank order; gradients flow back to this rank's own."""
    if world_size() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


def sum_over_ranks(value: Tensor) -> Tensor:
    """Sum `value` over ranks, differentiably."""
    summed: Tensor = all_reduce(value)  # type: ignore[no-untyped-call]
    return summed


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over ranks, in one message."""
    if world_size() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    start_at = 0
    for gradient in gradients:
        gradient.copy_(flat[start_at : start_at + gradient.numel()].view_as(gradient))
        start_at += gradient.numel()
