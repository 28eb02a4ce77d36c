"""Models by names such as `soft_tiny+naive` or `soft_tiny+folded+compiled`."""

from collections.abc import Callable
from functools import partial

import timm
import torch
from torch import nn

from soft_vit.analysis.naive import naive_formulation
from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.models.folding import fold_batch_norm
from soft_vit.models.names import require_known
from soft_vit.ops.numerics import BACKENDS


def checkpointed(model: nn.Module) -> nn.Module:
    """Let a timm model compute its activations again in backward; returns it."""
    model.set_grad_checkpointing()
    return model


def with_attributes(model: nn.Module, **attributes: object) -> nn.Module:
    """Set attributes of every softmax-free attention; returns the model. ValueError for one that has none."""
    attentions = [module for module in model.modules() if isinstance(module, SoftAttention)]
    if not attentions:
        options = ", ".join(f"{name}={value!r}" for name, value in attributes.items())
        raise ValueError(f"{type(model).__name__} has no softmax-free attention to give {options}; use a SOFT model.")
    for attention in attentions:
        vars(attention).update(attributes)
    return model


FORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": naive_formulation,
    **{backend: partial(with_attributes, backend=backend) for backend in BACKENDS},
}
"""Ways to compute the softmax-free attentions of a model, which therefore has at most one of them."""

VARIANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    **FORMS,
    # What max_bottleneck=(7, 7) does: the cost is linear in the image, and at 224 pixels nothing changes.
    "capped": partial(with_attributes, limit=(7, 7)),
    "folded": fold_batch_norm,
    # Compiled for each batch size; by default torch would compile for any size from the second on.
    "compiled": partial(torch.compile, dynamic=False),
    "checkpointed": checkpointed,
}
"""What a name such as `soft_tiny+naive` makes of the model; a folded one has inference alone."""


def create_variant(name: str, img_size: tuple[int, int] | None = None, **kwargs: object) -> nn.Module:
    """A timm model by name, with the variants after each `+` applied in turn; kwargs go to `timm.create_model`.

    img_size: the size (H, W) of images that a model is set to where it has `set_input_size`. Raises ValueError for a
    model or a variant that there is not, and for two of `FORMS`.
    """
    model_name, *variants = name.split("+")
    require_known(model_name)
    if unknown := set(variants) - set(VARIANTS):
        raise ValueError(f"{name} has no variant {min(unknown)}; after a + stand {', '.join(VARIANTS)}.")
    if len(forms := set(variants) & set(FORMS)) > 1:
        raise ValueError(f"{name} is {' and '.join(sorted(forms))} at once; choose one of {', '.join(FORMS)}.")
    model = timm.create_model(model_name, **kwargs)
    if img_size is not None and hasattr(model, "set_input_size"):
        model.set_input_size(img_size)
    for variant in variants:
        model = VARIANTS[variant](model)
    return model
