"""A feed-forward layer computed over some tokens at a time (Reformer, arXiv 2001.04451, Sec. 3)."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def check_chunks(chunks: int) -> int:
    """Return chunks; ValueError unless it is positive."""
    if chunks < 1:
        raise ValueError(f"mlp_chunks={chunks} leaves no tokens; use 1 for all at once, or more to save memory.")
    return chunks


def keeps_autograd_graph(x: Tensor) -> bool:
    """Whether this very call builds the graph of x: not in inference, nor while something else records the model."""
    recorded = isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return torch.is_grad_enabled() and not recorded


def apply_in_chunks(module: nn.Module, x: Tensor, chunks: int) -> Tensor:
    """`module(x)` for a module that treats each of the tokens `[B, N, C]` by itself, in `chunks` parts of the tokens.

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
