"""Check the class names of a checkpoint against those of the test data."""

from collections.abc import Sequence

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.hooks.checks import match_classes, outputs_of
from soft_vit.engine.models.timm_model import classes_of
from soft_vit.registry import HOOKS, register
from soft_vit.weights.read import spec_of


@register(HOOKS)
class ClassNamesHook(Hook):
    """Matches the classes of the test data with those of the checkpoint, before a test.

    COCO categories are matched by name: the test file may lack some, and may number them differently. Classes of label
    maps must be those of the checkpoint in the same order. Raises ValueError for other classes, and before training for
    a model with another number of classes than the data.
    """

    def __init__(self) -> None:
        self.trained: Sequence[str] = ()

    def before_train(self, runner: Runner) -> None:
        classes, head = classes_of(runner.train_dataloader.dataset), outputs_of(runner.model)
        if classes and head not in (None, len(classes)):
            raise ValueError(f"model.num_classes must be {len(classes)} as in the training data, got {head}.")

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.trained = spec_of(checkpoint).label_names

    def before_test(self, runner: Runner) -> None:
        if self.trained:
            dataset = runner.test_dataloader.dataset
            match_classes(dataset, self.trained, "the checkpoint")
            runner.test_evaluator.dataset_meta = dataset.metainfo
