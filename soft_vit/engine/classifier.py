"""The classifier that demo and ImageNet configs train."""

import torch
from mmpretrain.models import TimmClassifier
from mmpretrain.structures import DataSample

import soft_vit  # noqa: F401  its models have to be known to timm before one is built by name
from soft_vit.registry import MODELS, register

__all__ = ["TimmProgressClassifier"]


@register(MODELS)
class TimmProgressClassifier(TimmClassifier):
    """mmpretrain's TimmClassifier that also reports the accuracy on the training batch, for the progress line.

    The weights in its checkpoints have the names of the timm model.
    """

    def _get_loss(
        self, cls_score: torch.Tensor, data_samples: list[DataSample], **kwargs: object
    ) -> dict[str, torch.Tensor]:
        losses = super()._get_loss(cls_score, data_samples, **kwargs)
        if "gt_score" in data_samples[0]:
            target = torch.stack([sample.gt_score for sample in data_samples]).argmax(dim=1)
        else:
            target = torch.cat([sample.gt_label for sample in data_samples])
        # Without "loss" in its name MMEngine logs it and leaves it out of the sum.
        losses["train_acc"] = (cls_score.detach().argmax(dim=1) == target).float().mean() * 100
        return losses
