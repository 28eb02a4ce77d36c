"""Check the class names of a checkpoint against those of the test data."""

from collections.abc import Sequence

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.hooks.checks import match_classes
from soft_vit.registry import HOOKS, register
from soft_vit.weights.read import spec_of


@register(HOOKS)
class ClassNamesHook(Hook):
    """Matches class names of the trained and the test data before a test; `RunChecksHook` does so before training.

    COCO categories are matched by name: the test file may lack some and number them differently. Label maps hold
    numbers, so their classes must be the trained ones in the same order. Raises ValueError for other classes.
    """

    def __init__(self) -> None:
        self.trained: Sequence[str] = ()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.trained = spec_of(checkpoint).label_names

    def before_test(self, runner: Runner) -> None:
        if self.trained:
            dataset = runner.test_dataloader.dataset
            match_classes(dataset, self.trained, "the checkpoint")
            runner.test_evaluator.dataset_meta = dataset.metainfo
