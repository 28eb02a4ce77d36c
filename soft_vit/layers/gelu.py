"""GELU that reuses its input's memory where no gradient needs it."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch.fx.wrap("gelu_of_temporary")


def gelu_of_temporary(x: Tensor, approximate: str) -> Tensor:
    """GELU of x, any shape; x itself is overwritten when autograd is off, so nothing else may hold it."""
    if torch.is_grad_enabled():
        return F.gelu(x, approximate=approximate)
    return torch.ops.aten.gelu_(x, approximate=approximate)


class GELU(nn.Module):
    """GELU of the output of a linear layer, exact (`none`) or approximated (`tanh`).

    In inference the hidden map of an MLP is the largest tensor of a block; a second one costs more in page faults than
    the function itself.
    """

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"

    def forward(self, x: Tensor) -> Tensor:
        return gelu_of_temporary(x, self.approximate)
