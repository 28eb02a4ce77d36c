"""Find, name and switch off the attentions of a model."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from inspect import signature
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS, Attention


def attentions(model: nn.Module) -> dict[str, Attention]:
    """Return the attentions of a model by their names, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Attention)}


def kind_name(attn: Attention) -> str:
    """Return the name of an attention in `soft_vit.layers.ATTENTIONS`, otherwise of its class."""
    kinds = {kind: name for name, kind in ATTENTIONS.items()}
    # Attentions of timm's ViTs are subclasses.
    return next((kinds[cls] for cls in type(attn).__mro__ if cls in kinds), type(attn).__name__)


def stage_number(name: str) -> int | None:
    """Return the stage of a module of a pyramid, counted from 1; None outside of stages."""
    # Where no number of a block follows, as in Vision-RWKV, layers are blocks.
    found = re.search(r"(?:stages|layers)\.(\d+)\..*\.\d+\.", name)
    return int(found[1]) + 1 if found else None


def replaced_attend(attn: Attention, attend: Callable[..., Tensor]) -> AbstractContextManager:
    """Replace the method `attend` of attn within this context; contexts can be nested."""
    return patch.object(attn, "attend", attend)


@contextmanager
def switched_off(*layers: Attention) -> Iterator[None]:
    """Replace the products of attentions by zero within this context; a convolution or bias of the layer remains."""
    with ExitStack() as stack:
        for attn in layers:
            if hasattr(attn, "attend"):
                stack.enter_context(replaced_attend(attn, _zero_attend(attn.attend)))
            else:
                # Not linear in its values: everything that it mixes goes through its projection. A hook would not run
                # where the weight of a plain layer is read.
                stack.callback(setattr, attn, "proj", attn.proj)
                attn.proj = nn.Sequential(_Zeros(), attn.proj)
        yield


class _Zeros(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def _zero_attend(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an `attend` that returns zero, plus the residual if there is one."""

    # With attend's signature, for a context within this one.
    @wraps(attend)
    def zero(*args: Any, **kwargs: Any) -> Tensor:
        call = signature(attend).bind(*args, **kwargs)
        residual = call.arguments.pop("residual", None)
        x = torch.zeros_like(attend(*call.args, **call.kwargs))
        return x if residual is None else x + residual

    return zero
