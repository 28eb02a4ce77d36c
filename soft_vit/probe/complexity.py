"""Parameters and multiply-adds of a model, module by module, counted from the operations that it runs.

One multiply-add is one FLOP, as in the papers and in fvcore. Convolutions, linear layers, all matrix products
(attention, Newton's iteration) and, by the formulas below, factorisations and triangular solves are counted; fused
attention counts as its two products. Element-wise work is not counted. The counter looks into every layer, so the last
block of a pyramid computes all of its tokens, as the papers count them.
"""

from dataclasses import dataclass, field

import torch
from torch import nn

from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops.flops import flop_counter
from soft_vit.text_tables import markdown_table


@dataclass
class Complexity:
    """Parameters and multiply-adds of one forward pass; by_module holds both by dotted name."""

    params: int
    macs: int
    by_module: dict[str, tuple[int, int]] = field(default_factory=dict)


def count_complexity(model: nn.Module, input_shape: tuple[int, ...] = (1, 3, 224, 224)) -> Complexity:
    """Count one forward pass of model in eval mode on an input of shape `[B, C, H, W]`.

    On the meta device only shapes are computed. The model keeps its mode.
    """
    parameter = next(model.parameters())
    x = torch.randn(input_shape, device=parameter.device, dtype=parameter.dtype)
    with eval_mode(model), torch.no_grad(), flop_counter() as counter:
        model(x)
    # The counter's names begin with the class of the model, and it counts a multiply-add as two.
    root = type(model).__name__
    macs = {name: sum(ops.values()) // 2 for name, ops in counter.get_flop_counts().items()}

    def macs_of(name: str, module: nn.Module) -> int:
        # A ModuleList is never called, and some models call parts of a stage, such as its downsampling, beside it.
        parts = (macs_of(f"{name}.{child}".lstrip("."), submodule) for child, submodule in module.named_children())
        return max(macs.get(f"{root}.{name}" if name else root, 0), sum(parts))

    params = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_modules()}
    by_module = {name: (params[name], macs_of(name, module)) for name, module in model.named_modules()}
    return Complexity(by_module[""][0], macs.get("Global", 0), by_module)


def complexity_table(complexity: Complexity, depth: int = 2) -> str:
    """Return a Markdown table of the modules down to `depth` levels below the model, and of the whole model."""
    rows = [
        (name, f"{params / 1e6:.3f}", f"{macs / 1e9:.4f}")
        for name, (params, macs) in complexity.by_module.items()
        if name and name.count(".") < depth and (params or macs)
    ]
    rows.append(("**total**", f"**{complexity.params / 1e6:.3f}**", f"**{complexity.macs / 1e9:.4f}**"))
    return markdown_table(["module", "params (M)", "FLOPs (G)"], rows)
