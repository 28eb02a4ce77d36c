"""Options of softmax-free attention, and helpers of all inverses of its kernel matrix."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from soft_vit.ops.numerics import check_choice

Inverse = Literal["newton", "cholesky", "eigh"]
NewtonStart = Literal["rowsum", "guarded_image", "guarded_batch"]
NewtonGradient = Literal["closed_form", "unrolled"]
Backend = Literal["eager", "triton"]

BACKENDS = get_args(Backend)


@dataclass(frozen=True)
class InverseOptions:
    """How softmax-free attention inverts its kernel matrix; `soft_vit.ops.soft_attention` explains each option.

    ValueError for an unknown choice, a negative number of steps or ridge, and `cholesky` without a ridge.
    """

    inverse: Inverse = "newton"
    normalize: bool = False
    newton_iters: int = 20
    ridge: float = 0.01
    newton_start: NewtonStart = "rowsum"
    newton_gradient: NewtonGradient = "closed_form"

    def __post_init__(self) -> None:
        check_choice("inverse", self.inverse, get_args(Inverse))
        check_choice("newton_start", self.newton_start, get_args(NewtonStart))
        check_choice("newton_gradient", self.newton_gradient, get_args(NewtonGradient))
        if self.inverse == "cholesky":
            check_ridge(self.ridge)
        for name in ("newton_iters", "ridge"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")


def check_ridge(ridge: float) -> None:
    """Raise a ValueError unless the ridge makes every kernel matrix positive definite."""
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, got {ridge}: the kernel matrix of equal tokens is singular.")


def add_ridge(a: Tensor, ridge: float) -> Tensor:
    """Return `A + ridge I` for `[..., M, M]`."""
    return a if ridge == 0 else a + ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
