"""MESA: distillation from averaged weights (Du et al., "Sharpness-Aware Training for Free", arXiv 2205.14083).

As in the recipes of MILA and ViT3, after a quarter of the run the loss gains `ratio * CE(z, softmax(z_average))`.

Letters: B batch, K classes.
"""

from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from torch import Tensor, nn
from torch.nn import functional as F

from soft_vit.engine.models.classifier import TimmTrainClassifier
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.engine.optim.ema_hook import EMAEvalHook
from soft_vit.registry import HOOKS, MODELS, register


@register(MODELS)
class MesaClassifier(TimmTrainClassifier):
    """A classifier whose loss has a second term once `MesaHook` has given it the average of its weights.

    mesa_ratio: factor of `CE(z, softmax(z_average))`, with logits z `[B, K]` of the batch after mixup.
    """

    def __init__(self, *args: Any, mesa_ratio: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mesa_ratio = mesa_ratio
        # In a list, because a submodule's weights would be in every checkpoint.
        self.average: list[nn.Module] = []

    def loss(self, inputs: Tensor, data_samples: list[DataSample], **kwargs: Any) -> dict[str, Tensor]:
        if not self.average:
            return super().loss(inputs, data_samples, **kwargs)
        with torch.no_grad():
            target = self.average[0](inputs).softmax(dim=1)
        return super().loss(inputs, data_samples, mesa_target=target, **kwargs)

    def _get_loss(
        self, cls_score: Tensor, data_samples: list[DataSample], mesa_target: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        losses = super()._get_loss(cls_score, data_samples, **kwargs)
        if mesa_target is not None:
            # MMEngine adds up the values with "loss" in their names, and logs the sum as "loss".
            losses["loss_labels"] = losses.pop("loss")
            losses["loss_mesa"] = self.mesa_ratio * F.cross_entropy(cls_score, mesa_target)
        return losses


@register(HOOKS)
class MesaHook(Hook):
    """Gives a `MesaClassifier` the average of the run's `EMAEvalHook` from the share `begin` of its iterations on."""

    def __init__(self, begin: float = 0.25) -> None:
        self.begin = begin

    def before_train(self, runner: Runner) -> None:
        average, *_ = [hook.ema_model for hook in runner.hooks if isinstance(hook, EMAEvalHook)]
        self._average = average.module.model

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        # Progress is counted in iterations, because a run by iterations has a single epoch.
        begun = runner.iter >= self.begin * runner.max_iters
        unwrapped(runner.model).average[:] = [self._average] if begun else []
