"""Train with several processes: gather descriptors, share statistics, sum gradients.

Every process computes the loss of the *whole* batch from the gathered descriptors of all processes.
Its gradient is the part that belongs to its own descriptors, and the gradient of a parameter is the
sum over all processes. Two processes with B pairs each therefore give the same result as one with
2B pairs, including mining and statistics. A rank is the number of a process, from 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.nn.functional import all_reduce
from torch.distributed.rendezvous import rendezvous

from training.errors import RanksNotConnected
from training.runtime.meeting import own_store

CONNECT_S = 300.0
"""Maximum time until all processes have started and are connected."""


def start(device: torch.device) -> None:
    """Join the process group that `torchrun` describes in the environment, if there is one.

    Raises:
        RanksNotConnected: the processes are not connected after `CONNECT_S` seconds.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    limit = timedelta(seconds=CONNECT_S)
    is_cuda = device.type == "cuda"
    try:
        store, own_rank, count = next(rendezvous("env://", timeout=limit))
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=own_store(store, own_rank, count, CONNECT_S),
            rank=own_rank,
            world_size=count,
            timeout=None if is_cuda else limit,
            device_id=device if is_cuda else None,
        )
    except RuntimeError as error:
        raise RanksNotConnected(
            f"training process {launched_rank()} is not connected to the others: {error}"
        ) from error
    if not is_cuda:
        # Gloo has one limit for connecting and for waiting for a process that is slower.
        _set_pg_timeout(default_pg_timeout)


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; rank 0 writes the files."""
    return dist.get_rank() if dist.is_initialized() else 0


def launched_rank() -> int:
    """Return the rank that `torchrun` gave this process, also before it has joined the group."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Return the rank of this process on its machine, which is the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def own_slice(rows: int) -> slice:
    """Return the part of a batch of `rows` that belongs to this process."""
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
    """Return the rows of all processes by rank; gradients flow to this process's own rows."""
    if world_size() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum of `value` over all processes, differentiably."""
    summed: Tensor = all_reduce(value)  # type: ignore[no-untyped-call]
    return summed


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over all processes, with one reduction."""
    if world_size() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    start_at = 0
    for gradient in gradients:
        gradient.copy_(flat[start_at : start_at + gradient.numel()].view_as(gradient))
        start_at += gradient.numel()
