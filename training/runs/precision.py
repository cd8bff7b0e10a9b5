"""Mixed precision: the type in which a device computes, and the scale of a float16 loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def amp_type(device: torch.device) -> torch.dtype:
    """Return the type of mixed precision: bfloat16 where the device computes it, else float16."""
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


class LossScale(nn.Module):
    """A factor on the loss that keeps float16 gradients from becoming 0.

    It doubles after `interval` finite steps and halves after a step whose gradients overflow,
    which is left out. `torch.amp.GradScaler` does the same, but waits for the device once more
    in each step and keeps its state outside of tensors.
    """

    value: Tensor
    finite_steps: Tensor

    def __init__(self, value: float = 2.0**16, interval: int = 2000) -> None:
        super().__init__()
        self.interval = interval
        self.register_buffer("value", torch.tensor(value))
        self.register_buffer("finite_steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def unscale(self, gradients: list[Tensor]) -> None:
        """Divide gradients by the scale."""
        torch._foreach_mul_(gradients, self.value.reciprocal())

    @torch.no_grad()
    def update(self, *, is_finite: bool) -> bool:
        """Grow or shrink after a step; return whether the next one can do better than this one.

        Gradients that overflow at a scale of 1 do not overflow because of the scale.
        """
        if not is_finite:
            self.finite_steps.zero_()
            self.value.mul_(0.5)
            return bool(self.value >= 1.0)
        self.finite_steps += 1
        is_due = self.finite_steps >= self.interval
        self.value.mul_(torch.where(is_due, 2.0, 1.0))
        self.finite_steps.mul_(~is_due)
        return True
