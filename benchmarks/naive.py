"""Softmax-free attention as the released code computes it, the baseline of speed and memory.

The same function of the same weights as this package's models (arXiv 2110.11945, Eq. 8-10), in the order of the
formulas. Heads are copied, kernels of distances take several passes, `V <- 2 V - V P V` and `(K1 V_T)(K1^T V)` are
computed product by product from left to right, and GELU is written out in elementary functions.

In half precision, also under autocast, it inverts in half precision, and the logits of `soft_norm` models may be NaN.
Ratios to it then compare speed alone.
"""

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from soft_vit.layers.attention.soft import SoftAttention, SoftNormAttention
from soft_vit.ops.layout import Layout
from soft_vit.ops.soft.newton import newton_step_size


class NaiveTanhGELU(nn.Module):
    """`x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, with one pass over memory per operation."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class ClosedFormNewton(torch.autograd.Function):
    """Newton's iteration with the released backward of `soft_*`, `dP = -V^T G V^T`."""

    @staticmethod
    def forward(ctx, p: Tensor, v: Tensor, iters: int) -> Tensor:
        v = _newton(p, v, iters)
        ctx.save_for_backward(v)
        return v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (v,) = ctx.saved_tensors
        return -torch.matmul(v.mT, torch.matmul(grad, v.mT)), None, None


def _newton(p: Tensor, v: Tensor, iters: int) -> Tensor:
    for _ in range(iters):
        v = 2 * v - torch.matmul(torch.matmul(v, p), v)
    return v


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    # The released code gets the squares by products with matrices of ones.
    a_square = torch.matmul(a**2, torch.ones(b.mT.shape[-2:], dtype=a.dtype, device=a.device))
    b_square = torch.matmul(torch.ones(a.shape[-2:], dtype=a.dtype, device=a.device), b.mT**2)
    return torch.exp(-0.5 * (a_square + b_square - 2 * torch.matmul(a, b.mT)))


def naive_soft_attention(
    q: Tensor,
    bottleneck: Tensor,
    v: Tensor,
    normalize: bool = False,
    iters: int = 20,
    ridge: float = 0.01,
    start: str = "rowsum",
) -> Tensor:
    """`soft_vit.ops.soft_attention` with Newton's inverse; q and v `[B, H, N, D]`, bottleneck `[B, H, M, D]`.

    As in the released models, the plain form has the closed-form gradient and the normalised one backpropagates
    through the iterations.
    """
    k1 = _kernel(q, bottleneck)
    a = _kernel(bottleneck, bottleneck)
    p = a + ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    first = newton_step_size(a, ridge, start) * p
    if not normalize:
        inverse = ClosedFormNewton.apply(p, first.detach(), iters)
    else:
        inverse = _newton(p, first, iters)
        scale = a.sum(-1, keepdim=True).rsqrt()
        inverse = scale * inverse * scale.mT
    return torch.matmul(torch.matmul(k1, inverse), torch.matmul(k1.mT, v))


class NaiveSoftAttention(nn.Module):
    """The naive form of an attention of `soft` or `soft_norm`, with its weights and Newton's inverse.

    Tokens are `[B, N, C]` of a map (H, W).
    """

    def __init__(self, attention: SoftAttention) -> None:
        super().__init__()
        if type(attention) not in (SoftAttention, SoftNormAttention):
            raise ValueError(f"attention must be of soft or soft_norm, got {type(attention).__name__}.")
        self.attention = attention

    def forward(self, x: Tensor, feat_size: tuple[int, int], num_prefix_tokens: int = 0) -> Tensor:
        attention, options = self.attention, self.attention.options
        B, N, C = x.shape
        heads, dim = attention.num_heads, attention.head_dim
        q, v = (linear(x).reshape(B, N, heads, dim).transpose(1, 2) for linear in (attention.q, attention.v))
        q, v = q.contiguous() / dim**0.25, v.contiguous()
        bottleneck = attention.sample_bottleneck(q, Layout(feat_size, num_prefix_tokens))
        newton = (options.normalize, options.newton_iters, options.ridge, options.newton_start)
        x = naive_soft_attention(q, bottleneck, v, *newton)
        v_map = v.permute(0, 3, 1, 2).reshape(B * dim, heads, *feat_size)
        x = x + attention.local(v_map).reshape(B, dim, heads, N).permute(0, 2, 3, 1)
        return attention.proj_drop(attention.proj(x.transpose(1, 2).reshape(B, N, C)))


def naive_formulation(model: nn.Module) -> nn.Module:
    """Replace every softmax-free attention and tanh-approximated GELU by its naive form; return the model.

    Raises ValueError for a model without softmax-free attention, and for one that `NaiveSoftAttention` refuses.
    """
    if not any(isinstance(module, SoftAttention) for module in model.modules()):
        raise ValueError(f"model must be a SOFT pyramid, got {type(model).__name__}.")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, SoftAttention) and not isinstance(module, NaiveSoftAttention):
                setattr(module, name, NaiveSoftAttention(child))
            elif isinstance(child, nn.GELU) and child.approximate == "tanh":
                setattr(module, name, NaiveTanhGELU())
    return model
