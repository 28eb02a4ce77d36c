"""Pure functions on tensors; imports torch only."""

from soft_vit.ops.gaussian import gaussian_attention, gaussian_kernel, self_gaussian_kernel
from soft_vit.ops.soft.attention import soft_attention
from soft_vit.ops.soft.cholesky import cholesky_solve
from soft_vit.ops.soft.newton import newton_inverse, newton_step_size
from soft_vit.ops.soft.reference import eigh_inverse, soft_attention_reference

__all__ = [
    "cholesky_solve",
    "eigh_inverse",
    "gaussian_attention",
    "gaussian_kernel",
    "newton_inverse",
    "newton_step_size",
    "self_gaussian_kernel",
    "soft_attention",
    "soft_attention_reference",
]
