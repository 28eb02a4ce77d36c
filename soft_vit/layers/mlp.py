"""The feed-forward layer of a block, and ways to compute it in less time or memory."""

from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from soft_vit.layers.shortcuts import is_untouched, keeps_autograd_graph
from soft_vit.ops.numerics import are_dispatched, in_function_transform

Approximation = Literal["none", "tanh"]

# Leaves of symbolic tracing, so that a traced model takes the same path and gives the same bits.
torch.fx.wrap("linear_gelu")
torch.fx.wrap("linear")


class Mlp(nn.Module):
    """`fc2(drop(gelu(fc1(x))))` on tokens `[B, N, C]`, GELU exact (`none`) or approximated (`tanh`)."""

    def __init__(
        self, dim: int, hidden_dim: int, approximate: Approximation = "none", drop: float = 0.0, device=None, dtype=None
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim, device=device, dtype=dtype)
        self.act = nn.GELU(approximate=approximate)
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_dim, dim, device=device, dtype=dtype)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(linear_gelu(x, self.fc1, self.act))
        return self.drop2(linear(x, self.fc2))


def linear_gelu(x: Tensor, layer: nn.Linear, act: nn.GELU) -> Tensor:
    """`act(layer(x))` of tokens `[B, N, C]`, in one pass over memory where neither was replaced."""
    if not is_untouched(layer, nn.Linear) or not is_untouched(act, nn.GELU):
        return act(layer(x))
    if can_fuse(x, layer):
        return fused_linear(x, layer.weight, layer.bias, act.approximate)
    return gelu_of_temporary(layer(x), act.approximate)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """`layer(x)` of tokens `[B, N, C]`, in one pass over memory where it was not replaced."""
    if is_untouched(layer, nn.Linear) and can_fuse(x, layer):
        return fused_linear(x, layer.weight, layer.bias)
    return layer(x)


def gelu_of_temporary(x: Tensor, approximate: str) -> Tensor:
    """GELU of x, any shape; x itself is overwritten when autograd is off, so nothing else may hold it.

    In inference the hidden map of an MLP is the largest tensor of a block, and two of them set the peak of memory.
    """
    if torch.is_grad_enabled() or torch.jit.is_tracing() or in_function_transform():
        return F.gelu(x, approximate=approximate)
    return torch.ops.aten.gelu_(x, approximate=approximate)


def can_fuse(x: Tensor, layer: nn.Linear) -> bool:
    """Whether `fused_linear` may replace the layer and GELU: on a CPU, without gradients, unwatched.

    In fp32, and in bf16 or under its autocast where the CPU has it.
    """
    weight = layer.weight
    # Gradient checkpointing runs a block without gradients first, then with them: both must give the same bits.
    # Counters and recorders of operations must see documented ones.
    if layer.training or torch.is_grad_enabled() or are_dispatched(x, weight):
        return False
    return (
        x.device.type == weight.device.type == "cpu"
        and x.layout == weight.layout == torch.strided
        and _has_dtypes(x.dtype, weight.dtype)
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _has_dtypes(x: torch.dtype, weight: torch.dtype) -> bool:
    if torch.is_autocast_enabled("cpu"):
        known = {x, weight} <= {torch.float32, torch.bfloat16} and torch.get_autocast_dtype("cpu") == torch.bfloat16
        return known and has_bfloat16()
    return x == weight and (x == torch.float32 or (x == torch.bfloat16 and has_bfloat16()))


@cache
def has_bfloat16() -> bool:
    """Whether oneDNN multiplies bf16 on this CPU."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None = None) -> Tensor:
    """`x W^T + b`, or GELU of it, exact or approximated by tanh; x `[..., C]`, weight `[C', C]`, bias `[C']`.

    Apart, the bias is written first, the product added to it, and the result read and written again for GELU. oneDNN
    does all of it where the product is in cache, by a private operation of torch that torch.compile uses too: inference
    of soft_tiny takes 7 % longer without it at batch 1, and 12 % at batch 8.
    Only where `can_fuse`. The result has the dtype of `F.linear`, under autocast as well.
    """
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.bfloat16(), weight.bfloat16()
        bias = None if bias is None else bias.bfloat16()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu" if gelu else "none", [], gelu or "")


def check_chunks(chunks: int) -> int:
    """Return chunks; ValueError unless it is positive."""
    if chunks < 1:
        raise ValueError(f"mlp_chunks={chunks} leaves no tokens; use 1 for all at once, or more to save memory.")
    return chunks


def apply_in_chunks(module: nn.Module, x: Tensor, chunks: int) -> Tensor:
    """`module(x)` for a module that treats each of the tokens `[B, N, C]` by itself, in `chunks` parts of the tokens.

    Reformer, arXiv 2001.04451, Sec. 3.

    Hidden activations exist for one part at a time, also in backward, where each part is computed again. Traced and
    compiled models compute nothing again: there, only inference uses less memory. Dropout inside draws another mask
    than it would for all tokens at once.
    """
    if chunks == 1:
        return module(x)
    parts = torch.tensor_split(x, chunks, dim=1)
    if keeps_autograd_graph(x):
        results = [checkpoint(module, parts[i], use_reentrant=False) for i in range(chunks)]
    else:
        results = [module(parts[i]) for i in range(chunks)]
    return torch.cat(results, dim=1)
