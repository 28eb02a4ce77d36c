"""Keep an exponential moving average (EMA) of the weights, and validate it together with the weights."""

import copy
from typing import Any

import torch
from mmengine.hooks import EMAHook
from mmengine.model import ExponentialMovingAverage
from mmengine.runner import BaseLoop, Runner
from mmengine.runner.amp import autocast
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from soft_vit.registry import HOOKS, MODELS, register
from soft_vit.weights.load import load_into
from soft_vit.weights.read import AVERAGED_KEYS, NotedWeights
from soft_vit.weights.spec import ModelSpec

PREFIX = "ema/"


@register(MODELS)
class SmoothedModel(ExponentialMovingAverage):
    """MMEngine's ExponentialMovingAverage with fused operations over all parameters.

    Parameters and BatchNorm's statistics are averaged; other buffers are copied. The average starts with the weights
    after the first step.

    momentum: weight of the new values in each update, one minus timm's decay. interval: steps between updates.
    """

    def __init__(self, model: nn.Module, momentum: float = 4e-5, interval: int = 1) -> None:
        super().__init__(model, momentum, interval, update_buffers=True)
        self.module.eval()
        self._source: nn.Module | None = None

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        if model is not self._source:
            self._pair_with(model)
        updates, rest = divmod(int(self.steps), self.interval)
        if rest == 0:
            torch._foreach_lerp_(*self._averaged, self.momentum if updates else 1.0)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)
        self.steps += 1

    def _pair_with(self, model: nn.Module) -> None:
        """Collect the tensors to average and to copy once; walking the model takes longer than the arithmetic."""
        self._averaged: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._copied: tuple[list[Tensor], list[Tensor]] = ([], [])
        for side, source in enumerate((self.module, model)):
            norms = [module for module in source.modules() if isinstance(module, _BatchNorm)]
            statistics = [x for norm in norms for x in norm.buffers(recurse=False) if x.is_floating_point()]
            averaged = {id(buffer) for buffer in statistics}
            self._averaged[side].extend([*source.parameters(), *statistics])
            self._copied[side].extend(buffer for buffer in source.buffers() if id(buffer) not in averaged)
        # Module.__setattr__ would make the model a submodule of its own average.
        object.__setattr__(self, "_source", model)


@register(HOOKS)
class EMAEvalHook(EMAHook):
    """MMEngine's EMAHook with both sets of weights in every validation: `accuracy/top1` and `ema/accuracy/top1`.

    Each validation batch is loaded once, for both models. A checkpoint holds both, in MMEngine's layout: the averaged
    weights in `state_dict`, where other programs find them, and the plain ones in `ema_state_dict`; see
    `choose_weights`. The average is updated with each step of the optimizer, not within a window of accumulated
    gradients or in a step that SafeOptimWrapper skips. `save_best="ema/accuracy/top1"` keeps the checkpoint with the
    best averaged weights. Arguments are `SmoothedModel`'s, and EMAHook's `begin_iter` and `begin_epoch`.
    """

    # After RuntimeInfoHook, which reports the plain metrics; before the hooks that log and save.
    priority = "ABOVE_NORMAL"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("SmoothedModel", strict_load=True, **kwargs)
        self.ema_model = None

    def before_run(self, runner: Runner) -> None:
        # In a test the training loop is not built, and the weights stay as they were loaded.
        if isinstance(runner._train_loop, BaseLoop):
            super().before_run(runner)

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if self.ema_model.steps == 0:
            # The average was made before the weights were initialised or loaded.
            load_into(self.ema_model.module, NotedWeights(self.src_model.state_dict(), ModelSpec()))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        wrapper = runner.optim_wrapper
        if wrapper.stepped if hasattr(wrapper, "stepped") else wrapper.should_update():
            super().after_train_iter(runner, *args, **kwargs)

    def before_val_epoch(self, runner: Runner) -> None:
        self._evaluator = copy.deepcopy(runner.val_loop.evaluator)

    @torch.no_grad()
    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        batch = dict(data_batch)
        # Batches of `collate_labels` come without data_samples.
        if "data_samples" in batch:
            # Predictions are written into the samples, and later hooks read those.
            batch["data_samples"] = [copy.copy(sample) for sample in batch["data_samples"]]
        with autocast(enabled=runner.val_loop.fp16):
            predictions = self.ema_model.module.val_step(batch)
        self._evaluator.process(data_samples=predictions, data_batch=batch)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        for name, value in self._evaluator.evaluate(len(runner.val_dataloader.dataset)).items():
            metrics[PREFIX + name] = value
            update = runner.message_hub.update_scalar if isinstance(value, float) else runner.message_hub.update_info
            update(f"val/{PREFIX}{name}", value)

    def before_test_epoch(self, runner: Runner) -> None:
        """Keep the weights that were loaded from the checkpoint."""

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Keep the weights; see before_test_epoch."""

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self.ema_model is None or not runner._resume:
            return
        if "ema_state_dict" in checkpoint:
            self._swap_ema_state_dict(checkpoint)
            # Names begin with `module.`, which is otherwise removed.
            load_into(self.ema_model, NotedWeights(checkpoint["ema_state_dict"], ModelSpec()))
        else:
            runner.logger.warning("The checkpoint lacks averaged weights; the average starts from its plain weights.")


def choose_weights(checkpoint: dict, ema: bool) -> None:
    """Put the averaged (`ema`) or the plain weights of a checkpoint into its `state_dict`, in place.

    Raises ValueError if ema is True and the checkpoint lacks an average.
    """
    other = checkpoint.get("ema_state_dict")
    if ema and other is None and not checkpoint.keys() & {*AVERAGED_KEYS}:
        raise ValueError("ema=True needs a checkpoint with averaged weights.")
    for key in () if ema else AVERAGED_KEYS:
        checkpoint.pop(key, None)
    if other is not None and not ema:
        plain = {name.removeprefix("module."): value for name, value in other.items() if name.startswith("module.")}
        checkpoint["state_dict"] = plain
