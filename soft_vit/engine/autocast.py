"""Mixed precision on any device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import nn

from soft_vit.engine.errors import UserError
from soft_vit.registry import OPTIM_WRAPPERS, register

__all__ = ["AutocastOptimWrapper"]

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@register(OPTIM_WRAPPERS)
class AutocastOptimWrapper(OptimWrapper):
    """MMEngine's OptimWrapper with the forward pass under autocast, on the device that the model is on.

    MMEngine's AmpOptimWrapper refuses CPUs. bfloat16 has the exponents of float32 and needs no loss scale.

    dtype: "bfloat16", or "float32" for none. Raises UserError (a ValueError) for another one; other arguments are
    OptimWrapper's.
    """

    def __init__(self, *args: Any, dtype: str = "bfloat16", **kwargs: Any) -> None:
        if dtype not in _DTYPES:
            raise UserError(
                f"dtype is {dtype!r}, but autocast without a loss scale takes {' or '.join(_DTYPES)}; choose one of "
                "them, or AmpOptimWrapper for float16 on a GPU."
            )
        super().__init__(*args, **kwargs)
        self.dtype = _DTYPES[dtype]

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        device = next(model.parameters()).device.type
        enabled = self.dtype is not torch.float32
        with super().optim_context(model), torch.autocast(device, dtype=self.dtype, enabled=enabled):
            yield
