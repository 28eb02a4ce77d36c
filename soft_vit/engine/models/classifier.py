"""The classifier of the demo and ImageNet configs."""

from typing import Any

import torch
from mmpretrain.models import TimmClassifier
from mmpretrain.structures import DataSample
from torch import Tensor, nn

import soft_vit  # noqa: F401  registers its models with timm
from soft_vit.engine.models.finetune import freeze_stages, wholly_frozen
from soft_vit.models.base import require_known
from soft_vit.registry import MODELS, register


@register(MODELS, "TimmProgressClassifier")
class TimmTrainClassifier(TimmClassifier):
    """mmpretrain's TimmClassifier, which also logs the accuracy on each training batch.

    Its checkpoints use the parameter names of the timm model; `load_from` sets the initial weights.
    frozen_stages: number of stages that are frozen with the stem, 0 for none; see `freeze_stages`. with_cp: recompute
    activations in the backward pass. compile_model: compile the timm model with torch.compile, True or a dict of its
    options. channels_last: keep images and convolutions in that memory format. multi_label: images have any number of
    classes: the loss is binary cross entropy by default, and scores are sigmoids of the logits.
    """

    def __init__(
        self,
        model_name: str,
        *args: Any,
        frozen_stages: int = 0,
        checkpoint_path: str = "",
        compile_model: bool | dict = False,
        channels_last: bool = False,
        multi_label: bool = False,
        **kwargs: Any,
    ) -> None:
        require_known(model_name)
        if checkpoint_path:
            # timm would read it without the checks of load_from.
            raise ValueError(f"checkpoint_path must be empty, got {checkpoint_path!r}; set load_from.")
        self.multi_label = multi_label
        if multi_label:
            kwargs.setdefault("loss", {"type": "CrossEntropyLoss", "use_sigmoid": True})
        super().__init__(model_name, *args, **kwargs)
        # Before a run MMEngine calls each init_weights(), which would overwrite pretrained weights; timm's models are
        # initialised already.
        self.model.is_init = True
        self._frozen = bool(frozen_stages)
        if frozen_stages:
            freeze_stages(self.model, frozen_stages)
        self.channels_last = channels_last
        if channels_last:
            self.model.to(memory_format=torch.channels_last)
        if compile_model:
            # In place, because a compiled wrapper would add a prefix to the names in checkpoints.
            self.model.compile(**({} if compile_model is True else compile_model))

    def forward(self, inputs: Tensor, data_samples: list[DataSample] | None = None, mode: str = "tensor") -> Any:
        if self.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return super().forward(inputs, data_samples, mode)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        # Asked again, as MMEngine may have replaced BatchNorm by SyncBatchNorm.
        for module in wholly_frozen(self.model) if self._frozen else ():
            module.eval()
        return self

    @staticmethod
    def _remove_state_dict_prefix(module: nn.Module, state_dict: dict, prefix: str, local_metadata: dict) -> None:
        # In place, because torch ignores what the hook of an inner module returns, and an EMA wraps this module.
        for name in [name for name in state_dict if name.startswith(f"{prefix}model.")]:
            state_dict[prefix + name.removeprefix(f"{prefix}model.")] = state_dict.pop(name)

    def _get_loss(self, cls_score: Tensor, data_samples: list[DataSample], **kwargs: object) -> dict[str, Tensor]:
        self._check_scores(cls_score)
        is_soft = getattr(self.loss_module, "use_soft", False)
        if is_soft and "gt_score" not in data_samples[0]:
            # With as many images as classes, labels would be broadcast to scores.
            raise ValueError("model.loss.use_soft=True needs mixup, cutmix or smoothing in data_preprocessor.")
        if not is_soft and ("gt_score" if self.multi_label else "gt_label") not in data_samples[0]:
            raise ValueError(f"model.multi_label must be that of the data sets, got {self.multi_label}.")
        losses = super()._get_loss(cls_score, data_samples, **kwargs)
        if self.multi_label:
            return losses
        if "gt_score" in data_samples[0]:
            target = torch.stack([sample.gt_score for sample in data_samples]).argmax(dim=1)
        else:
            target = torch.cat([sample.gt_label for sample in data_samples])
        # MMEngine logs it, and adds only names with "loss" to the loss.
        losses["train_acc"] = (cls_score.detach().argmax(dim=1) == target).float().mean() * 100
        return losses

    def _get_predictions(self, cls_score: Tensor, data_samples: list[DataSample] | None = None) -> list[DataSample]:
        self._check_scores(cls_score)
        if not self.multi_label:
            return super()._get_predictions(cls_score, data_samples)
        samples = [DataSample() for _ in cls_score] if data_samples is None else data_samples
        for sample, score in zip(samples, cls_score.sigmoid(), strict=True):
            sample.set_pred_score(score).set_pred_label((score >= 0.5).nonzero().flatten())
        return samples

    @staticmethod
    def _check_scores(cls_score: Tensor) -> None:
        if cls_score.ndim != 2:
            raise ValueError(f"model.model_name must be a classifier, got scores of shape {tuple(cls_score.shape)}.")
