"""Take optimizer steps in any precision, and skip those with a gradient that is not finite."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from soft_vit.ops.numerics import check_choice
from soft_vit.registry import OPTIM_WRAPPERS, register

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Below 1, the loss scale would make gradients smaller.
_LOWEST_SCALE = 1.0


@register(OPTIM_WRAPPERS)
class SafeOptimWrapper(OptimWrapper):
    """MMEngine's OptimWrapper with mixed precision on any device and a guard against losses that are not finite.

    A step with a loss or gradient that is not finite is skipped: parameters, optimizer and buffers, such as BatchNorm's
    statistics, stay as they were, gradients are dropped, and the iteration is logged. The test is the norm of the
    gradients, which clipping computes and MMEngine logs anyway: it costs no additional synchronisation with a GPU, and
    is equal on every rank.

    dtype: of the forward pass under autocast; "float32" disables autocast. float16 has a dynamic loss scale, which an
    overflow lowers without being counted. max_skipped: number of skipped steps in a row that ends the run with a
    ValueError. Windows of `accumulative_counts` batches restart with every epoch of a run by epoch, so that a
    checkpoint between epochs is between windows; a run by iteration is one pass. The last window of a pass may be
    shorter. A shorter window, or one that a resumed run continues, averages over its own batches. The schedule advances
    with every batch. Other arguments are OptimWrapper's.

    stepped: whether the last batch ended in an optimizer step. skipped: number of skipped steps. Raises ValueError
    for another dtype.
    """

    def __init__(self, *args: Any, dtype: str = "float32", max_skipped: int = 10, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dtype = _DTYPES[check_choice("dtype", dtype, tuple(_DTYPES))]
        self.max_skipped = max_skipped
        self.skipped = self._skipped_in_a_row = self._resumed_at = 0
        self.stepped = False
        self._device = self.optimizer.param_groups[0]["params"][0].device.type
        # It does nothing in other types.
        self._scaler = torch.amp.GradScaler(self._device, enabled=self.dtype is torch.float16)
        self._model: nn.Module | None = None
        self._buffers: list[Tensor] = []
        self._saved_buffers: list[Tensor] = []

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        self._watch(model)
        enabled = self.dtype is not torch.float32
        with super().optim_context(model), torch.autocast(self._device, dtype=self.dtype, enabled=enabled):
            yield

    def _watch(self, model: nn.Module) -> None:
        """Save the buffers before a forward pass, which may spoil them."""
        if model is not self._model:
            self._model = model
            self._buffers = list(model.buffers())
            self._saved_buffers = [buffer.clone() for buffer in self._buffers]
        elif self._buffers and self.should_update():
            torch._foreach_copy_(self._saved_buffers, self._buffers)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        scaled = self._scaler.scale(loss)
        # A loss that is not finite makes the gradients NaN, on every rank once they are averaged; so one test of the
        # gradients covers both.
        scaled.backward(torch.where(loss.isfinite(), torch.ones_like(scaled), math.nan), **kwargs)
        self._inner_count += 1
        self.stepped = False

    def step(self, **kwargs: Any) -> None:
        self._scaler.unscale_(self.optimizer)
        norm = self._clip_grad()
        self.stepped = math.isfinite(norm)
        if self.stepped:
            self.optimizer.step(**kwargs)
            self._skipped_in_a_row = 0
            self.message_hub.update_scalar("train/grad_norm", norm)
            self._scaler.update()
            return
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._saved_buffers)
        if not self._lower_scale():
            self._count_skipped()

    def _clip_grad(self) -> float:
        """Clip the gradients; return their norm before that."""
        by_norm = self.clip_grad_kwargs is not None and self.clip_func is clip_grad_norm_
        # Without clip_grad, clip at infinity to get the norm.
        options = self.clip_grad_kwargs if by_norm else {"max_norm": math.inf}
        params = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = float(clip_grad_norm_(params, **options))
        if self.clip_grad_kwargs is not None and not by_norm:
            self.clip_func(params, **self.clip_grad_kwargs)
        return norm

    def _lower_scale(self) -> bool:
        """Lower the loss scale after a gradient that is not finite, if it may be the cause; return whether it did."""
        scale = self._scaler.get_scale()
        if scale <= _LOWEST_SCALE:
            self._scaler.update(scale)
            return False
        self._scaler.update()
        self._log(f"a gradient overflowed in float16; skipped, and the loss scale is {self._scaler.get_scale():g}.")
        return True

    def _count_skipped(self) -> None:
        self.skipped += 1
        self._skipped_in_a_row += 1
        self.message_hub.update_scalar("train/skipped_steps", self.skipped)
        counts = f"{self._skipped_in_a_row} in a row and {self.skipped} in all"
        self._log(f"the loss or a gradient is not finite; the step is skipped, {counts}.")
        if self._skipped_in_a_row >= self.max_skipped:
            steps = f"{self._skipped_in_a_row} skipped steps in a row at iteration {self._inner_count}"
            raise ValueError(f"Gradients must be finite, got {steps}; load_from the newest checkpoint at a lower lr.")

    def _log(self, sentence: str) -> None:
        print_log(f"Iteration {self._inner_count}: {sentence}", "current", logging.WARNING)

    def state_dict(self) -> dict:
        state = super().state_dict()
        state["guard"] = {"skipped": self.skipped, "in_a_row": self._skipped_in_a_row}
        if self._scaler.is_enabled():
            state["loss_scaler"] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state; a loss scale or counters that it lacks keep their initial values."""
        guard = state_dict.pop("guard", {"skipped": 0, "in_a_row": 0})
        self.skipped, self._skipped_in_a_row = guard["skipped"], guard["in_a_row"]
        if scale := state_dict.pop("loss_scaler", None):
            self._scaler.load_state_dict(scale)
        super().load_state_dict(state_dict)

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        self._inner_count, self._max_counts, self._resumed_at = init_counts, max_counts, init_counts
        if not self.should_update():
            self._log("the run resumes between two optimizer steps; gradients accumulated earlier are lost.")

    def _window(self, iteration: int) -> tuple[int, bool]:
        """Return the size of the accumulation window of an iteration, from 0, and whether the window ends there.

        The window of a resumed run that begins within it holds the batches that are left.
        """
        counts = self._accumulative_counts
        begin, length = 0, math.inf
        if self._max_counts > 0:
            # Both from the hub: a resumed run of another length has its checkpoint's values there until it begins.
            steps = self.message_hub.get_info("max_iters", self._max_counts)
            length = steps // self.message_hub.get_info("max_epochs", 1)
            begin = iteration // length * length
        first = begin + (iteration - begin) // counts * counts
        end = min(first + counts, begin + length)
        return end - max(first, self._resumed_at), iteration == end - 1

    def should_update(self) -> bool:
        return self._window(self._inner_count - 1)[1]

    def should_sync(self) -> bool:
        return self._window(self._inner_count)[1]

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss / self._window(self._inner_count)[0]
