"""How all studies train their small models."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def one_cycle(
    model: nn.Module, rate: float, steps: int, decay: float, clip: float = 1.0, **options: Any
) -> Callable[[Tensor], None]:
    """Return a function that takes a step down a loss: AdamW, with a learning rate of one cycle over the steps.

    decay: of weights. clip: the largest norm of the gradient. options: of AdamW, such as the groups of its params.
    """
    optimizer = torch.optim.AdamW(**{"params": model.parameters(), **options}, lr=rate, weight_decay=decay)
    rates = [rate * group.get("lr_scale", 1) for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, pct_start=0.1)

    def descend(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()

    return descend
