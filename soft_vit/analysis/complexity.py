"""Parameters and multiply-adds of a model, module by module, counted from the operations that it runs.

One multiply-add is one FLOP, as in the papers and in fvcore. Convolutions, linear layers, all matrix products
(attention, Newton's iteration) and, by the formulas below, factorisations and triangular solves are counted; fused
attention counts as its two products. Element-wise work is not counted. The counter looks into every layer, so the last
block of a pyramid computes all of its tokens, as the papers count them.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from soft_vit.text_tables import markdown_table


@dataclass
class Complexity:
    """params, and macs: multiply-adds of one forward pass; by_module holds both by dotted name."""

    params: int
    macs: int
    by_module: dict[str, tuple[int, int]] = field(default_factory=dict)


def count_complexity(model: nn.Module, input_shape: tuple[int, ...] = (1, 3, 224, 224)) -> Complexity:
    """Count one forward pass of model, in evaluation mode, on an input of shape `[B, C, H, W]`.

    On the meta device this computes nothing. The model keeps its mode.
    """
    parameter = next(model.parameters())
    x = torch.empty(input_shape, device=parameter.device, dtype=parameter.dtype)
    if parameter.device.type != "meta":
        x.normal_()
    counter = FlopCounterMode(display=False, custom_mapping=EXTRA_FLOPS)
    training = model.training
    try:
        with torch.no_grad(), counter:
            model.eval()(x)
    finally:
        model.train(training)
    # The counter's names begin with the class of the model, and it counts a multiply-add as two.
    root = type(model).__name__
    macs = {name: sum(ops.values()) // 2 for name, ops in counter.get_flop_counts().items()}

    def macs_of(name: str, module: nn.Module) -> int:
        counted = macs.get(f"{root}.{name}" if name else root)
        if counted is None:
            # A ModuleList is never called itself.
            return sum(macs_of(f"{name}.{child}", submodule) for child, submodule in module.named_children())
        return counted

    by_module = {
        name: (sum(p.numel() for p in module.parameters()), macs_of(name, module))
        for name, module in model.named_modules()
    }
    return Complexity(by_module[""][0], macs.get("Global", 0), by_module)


def complexity_table(complexity: Complexity, depth: int = 2) -> str:
    """A Markdown table of the modules down to `depth` levels below the model, and of the whole model."""
    rows = [
        (name, f"{params / 1e6:.3f}", f"{macs / 1e9:.4f}")
        for name, (params, macs) in complexity.by_module.items()
        if name and name.count(".") < depth and (params or macs)
    ]
    rows.append(("**total**", f"**{complexity.params / 1e6:.3f}**", f"**{complexity.macs / 1e9:.4f}**"))
    return markdown_table(["module", "params (M)", "FLOPs (G)"], rows)


def _cholesky_flop(shape: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Factorisations of `[..., M, M]`: M^3 / 6 multiply-adds each."""
    return 2 * prod(shape) * shape[-1] // 6


def _cholesky_solve_flop(right: Any, factor: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Two triangular solves of `[..., M, M]` with K columns: M^2 K multiply-adds each pair."""
    return 2 * prod(factor) * right[-1]


def _triangular_solve_flop(factor: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """One triangular solve of `[..., M, M]` with K columns, or K rows from the right: M^2 K / 2 multiply-adds each."""
    return prod(out_shape) * factor[-1]


def _fused_attention_flop(q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(q, k, v)


EXTRA_FLOPS = {
    # torch 2.11 does not count the CPU's fused kernel.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flop,
    torch.ops.aten.linalg_cholesky_ex: _cholesky_flop,
    torch.ops.aten.cholesky_solve: _cholesky_solve_flop,
    torch.ops.aten.linalg_solve_triangular: _triangular_solve_flop,
}
