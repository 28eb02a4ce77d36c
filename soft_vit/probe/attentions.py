"""What the attentions of a model do in a forward: their share of the output, their inverses, a forward without them."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops import self_gaussian_kernel
from soft_vit.ops.soft.inverse import newton_residual

__all__ = [
    "LEAST_SHARE",
    "attention_shares",
    "attentions",
    "kind_name",
    "newton_residuals",
    "output_shares",
    "replaced_attend",
    "stage_means",
    "switched_off",
]

LEAST_SHARE = 1e-3
"""Below this share of its layer's output, accuracy does not notice an attention."""


def attentions(model: nn.Module) -> dict[str, Attention]:
    """The attentions of a model by their names, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Attention)}


def kind_name(attn: Attention) -> str:
    """The name of an attention in `soft_vit.layers.ATTENTIONS`, or else that of its class."""
    kinds = {kind: name for name, kind in ATTENTIONS.items()}
    # timm's ViTs hold subclasses.
    return next((kinds[cls] for cls in type(attn).__mro__ if cls in kinds), type(attn).__name__)


@contextmanager
def switched_off(*layers: Attention) -> Iterator[None]:
    """Within this context the attentions mix nothing; what a layer adds beside, such as a convolution, is left."""
    with ExitStack() as stack:
        for attn in layers:
            attend: Any = getattr(attn, "attend", None)
            if attend is not None:
                stack.enter_context(replaced_attend(attn, _nothing(attend)))
            else:
                # A kind that is not linear in its values; all that it mixes goes through its projection.
                projection: Any = attn.proj
                stack.callback(projection.register_forward_pre_hook(_zeros).remove)
        yield


def _zeros(projection: nn.Module, args: tuple[Tensor]) -> Tensor:
    return torch.zeros_like(args[0])


@contextmanager
def replaced_attend(attn: Attention, attend: Callable[..., Tensor]) -> Iterator[None]:
    """Within this context attn mixes by attend; contexts may lie within one another."""
    hidden = vars(attn).get("attend")
    # An attribute of the module hides the method of its class.
    vars(attn)["attend"] = attend
    try:
        yield
    finally:
        if hidden is None:
            del vars(attn)["attend"]
        else:
            vars(attn)["attend"] = hidden


def _nothing(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An `attend` with the result zero, plus its residual where it has one."""

    # With attend's signature, for a context within this one.
    @wraps(attend)
    def nothing(*args: Any, **kwargs: Any) -> Tensor:
        call = signature(attend).bind(*args, **kwargs)
        residual = call.arguments.pop("residual", None)
        x = torch.zeros_like(attend(*call.args, **call.kwargs))
        return x if residual is None else x + residual

    return nothing


@torch.no_grad()
def attention_shares(model: nn.Module, images: Tensor) -> dict[str, float]:
    """The share of each attention in its layer's output, by its name: the first of `output_shares`."""
    return {name: share for name, (share, _) in output_shares(model, images).items()}


@torch.no_grad()
def output_shares(model: nn.Module, images: Tensor) -> dict[str, tuple[float, float]]:
    """The shares of each attention and of what is beside it in its layer's output, by its name, over the batch.

    `||y - y'|| / ||y||` and `||y'|| / ||y||`, where y' is the output with the attention off: a local branch, biases.
    Where both point against one another, the shares add up to more than 1. model runs in eval mode and is left as it
    was. images: normalised, `[B, C, H, W]`.
    """
    found: dict[str, tuple[float, float]] = {}

    def compare(attn: Attention, args: tuple, kwargs: dict[str, Any], output: Tensor, name: str) -> None:
        with switched_off(attn):
            without = attn.forward(*args, **kwargs)
        whole = output.float().norm()
        norms = (output - without).float().norm(), without.float().norm()
        found[name] = (float(norms[0] / whole), float(norms[1] / whole)) if whole > 0 else (0.0, 0.0)

    with ExitStack() as stack:
        for name, attn in attentions(model).items():
            hook = attn.register_forward_hook(partial(compare, name=name), with_kwargs=True)
            stack.callback(hook.remove)
        _forward(model, images)
    return found


@torch.no_grad()
def newton_residuals(model: nn.Module, images: Tensor) -> dict[str, float]:
    """The mean of `newton_residual` over images and heads, for each attention that inverts by Newton's iteration.

    model runs in eval mode and is left as it was. images: normalised, `[B, C, H, W]`.
    """
    found: dict[str, Tensor] = {}

    def measured(attn: SoftAttention, name: str, q: Tensor, bottleneck: Tensor, *rest: Any) -> Tensor:
        how = attn.options
        residual = newton_residual(self_gaussian_kernel(bottleneck), how.iters, how.ridge, how.start)
        found[name] = residual.mean()
        return type(attn).attend(attn, q, bottleneck, *rest)

    watched = {
        name: attn
        for name, attn in attentions(model).items()
        if isinstance(attn, SoftAttention) and attn.options.inverse == "newton"
    }
    if not watched:
        return {}
    with ExitStack() as stack:
        for name, attn in watched.items():
            stack.enter_context(replaced_attend(attn, partial(measured, attn, name)))
        _forward(model, images)
    return {name: value.item() for name, value in found.items()}


def stage_means(values: Mapping[str, float]) -> dict[str, float]:
    """Means over the attentions of a stage, as `stage1` and so on; an attention outside of stages keeps its name."""
    stages: dict[str, list[float]] = defaultdict(list)
    for name, value in values.items():
        stage = re.search(r"(?:stages|layers)\.(\d+)\.", name)
        stages[f"stage{int(stage[1]) + 1}" if stage else name].append(value)
    return {key: sum(found) / len(found) for key, found in sorted(stages.items())}


def _forward(model: nn.Module, images: Tensor) -> None:
    with eval_mode(model):
        # Calling the module would run its compiled form, which skips what is watched.
        model.forward(images.to(next(model.parameters(), images).dtype))
