"""The cost of a network: its parameters, and its multiply-accumulates (MAC) for one patch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from training.networks.layers import DescriptorNet


def parameter_count(net: nn.Module) -> int:
    """Return the number of learned values."""
    return sum(p.numel() for p in net.parameters())


def mac_count(net: DescriptorNet) -> int:
    """Return the multiply-accumulates of convolutions and linear layers for one patch."""
    total = 0

    def count(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d | nn.Linear):
            per_output = module.weight.numel() // module.weight.shape[0]
            total += output.numel() * per_output

    hooks = [m.register_forward_hook(count) for m in net.modules()]
    training = net.training
    net.eval()
    with torch.no_grad():
        net(torch.zeros(1, 1, net.patch_size, net.patch_size))
    net.train(training)
    for hook in hooks:
        hook.remove()
    return total
