"""Operators by name, as functions of queries, keys and values, and models by names such as `soft_tiny+naive`."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from operator import methodcaller
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.naive import naive_formulation, naive_soft_attention
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.models.base import require_known
from soft_vit.models.folding import fold_batch_norm
from soft_vit.models.swap import swap_attention
from soft_vit.ops import soft_attention
from soft_vit.ops.linear import elu_features, linear_attention
from soft_vit.ops.soft.options import BACKENDS


class Graphed:
    """Replays a CUDA graph of a softmax-free operator, without the time that Python takes to launch it.

    The graph is captured at the first call with each tensor of queries. Forward only.
    """

    def __init__(self, operator: Callable[..., Tensor]) -> None:
        self.operator, self.captured = operator, {}

    def __call__(self, q: Tensor, bottleneck: Tensor, v: Tensor) -> Tensor:
        if q not in self.captured:
            # Compile first: a capture does not allow it.
            self.operator(q, bottleneck, v)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.operator(q, bottleneck, v)
            # Frees the graph of the previous length.
            self.captured = {q: (graph, out)}
        graph, out = self.captured[q]
        graph.replay()
        return out


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "naive": naive_soft_attention,
    **{inverse: partial(soft_attention, inverse=inverse) for inverse in ("newton", "cholesky")},
    **{f"{i}-{b}": partial(soft_attention, inverse=i, backend=b) for i in ("newton", "cholesky") for b in BACKENDS},
    "newton-triton+graph": Graphed(partial(soft_attention, backend="triton")),
    # A function, as the operator of torch has no signature.
    "softmax": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "linear": partial(linear_attention, phi=elu_features),
}
"""Functions of q, v and either k, `[B, H, N, D]`, or bottleneck `[B, H, M, D]`: softmax-free attention as released, by
default and with each backend, and its baselines."""


def inputs_of(operator: Callable[..., Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors among q, k, v and bottleneck that are arguments of an operator."""
    return {name: tensor for name, tensor in tensors.items() if name in signature(operator).parameters}


def with_attributes(model: nn.Module, **attributes: Any) -> nn.Module:
    """Set attributes of every softmax-free attention and return the model. ValueError for a model without any."""
    attentions = [module for module in model.modules() if isinstance(module, SoftAttention)]
    if not attentions:
        raise ValueError(f"model must be a SOFT model to take {attributes}, got {type(model).__name__}.")
    for attention in attentions:
        vars(attention).update(attributes)
    return model


def changed(change: Callable[[nn.Module], Any], model: nn.Module) -> nn.Module:
    """Change a model in place, and return it."""
    change(model)
    return model


VARIANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": naive_formulation,
    **{backend: partial(with_attributes, backend=backend) for backend in BACKENDS},
    # As max_bottleneck=(7, 7): the cost is linear in the image, and at 224 pixels nothing changes.
    "capped": partial(with_attributes, limit=(7, 7)),
    "folded": fold_batch_norm,
    # Convolutions take over the layout of their weights.
    "channels_last": partial(nn.Module.to, memory_format=torch.channels_last),
    # By default, torch would compile the second batch size for any size.
    "compiled": partial(torch.compile, dynamic=False),
    "checkpointed": partial(changed, methodcaller("set_grad_checkpointing")),
    **{kind: partial(changed, partial(swap_attention, kind=kind)) for kind in ATTENTIONS},
}
"""Changes to a model, by their names after a `+`, as in `soft_tiny+naive`. A folded model cannot be trained."""


def create_variant(name: str, img_size: tuple[int, int] | None = None, **kwargs: Any) -> nn.Module:
    """Create a timm model by name, with the variants after each `+` applied in turn; kwargs go to `timm.create_model`.

    img_size: the size (H, W) of images, for models that have `set_input_size`. Raises ValueError for an unknown model
    or variant.
    """
    model_name, *variants = name.split("+")
    require_known(model_name)
    if unknown := set(variants) - set(VARIANTS):
        raise ValueError(f"variants must be among {', '.join(VARIANTS)}, got {min(unknown)} in {name}.")
    model = timm.create_model(model_name, **kwargs)
    if img_size is not None and hasattr(model, "set_input_size"):
        # By the argument, Swin keeps its windows; by set_input_size, they would grow with the image.
        model = timm.create_model(model_name, img_size=img_size, **kwargs)
    for variant in variants:
        model = VARIANTS[variant](model)
    return model
