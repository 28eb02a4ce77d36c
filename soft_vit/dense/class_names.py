"""Check the number of classes of a detector or a segmentor."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.hooks.checks import outputs_of
from soft_vit.engine.models.timm_model import classes_of
from soft_vit.registry import HOOKS, register


@register(HOOKS)
class ClassNamesHook(Hook):
    """Raises ValueError before training for a model with another number of classes than the data."""

    def before_train(self, runner: Runner) -> None:
        classes, head = classes_of(runner.train_dataloader.dataset), outputs_of(runner.model)
        if classes and head not in (None, len(classes)):
            raise ValueError(f"model.num_classes must be {len(classes)} as in the training data, got {head}.")
