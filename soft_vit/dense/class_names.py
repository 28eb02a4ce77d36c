"""Class names of the training data against those of the data that a model is tested on."""

import itertools
from collections.abc import Sequence

from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import Dataset

from soft_vit.engine.errors import UserError
from soft_vit.registry import HOOKS, register

__all__ = ["ClassNamesHook"]


@register(HOOKS)
class ClassNamesHook(Hook):
    """Compares class names before each evaluation, since a model predicts numbers.

    COCO categories are matched by name: the tested file may lack some of the trained ones and number them otherwise.
    Label maps hold numbers themselves, so their classes must be the trained ones in the same order. Raises UserError
    for other classes.
    """

    def __init__(self) -> None:
        self.trained: Sequence[str] | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.trained = ((checkpoint.get("meta") or {}).get("dataset_meta") or {}).get("classes")

    def before_val(self, runner: Runner) -> None:
        trained = runner.train_dataloader.dataset.metainfo.get("classes")
        self._match(trained, runner.val_dataloader.dataset, runner.val_evaluator)

    def before_test(self, runner: Runner) -> None:
        self._match(self.trained, runner.test_dataloader.dataset, runner.test_evaluator)

    @staticmethod
    def _match(trained: Sequence[str] | None, dataset: Dataset, evaluator: Evaluator) -> None:
        meta = dataset.metainfo
        given = meta.get("classes")
        if not trained or not given or list(trained) == list(given):
            return
        unknown = [name for name in given if name not in trained]
        if unknown:
            raise UserError(
                f"The tested data has the class {unknown[0]!r} and the model was trained on {', '.join(trained)}; give "
                "data with these names."
            )
        if "category_ids" not in meta:
            raise UserError(
                f"The label maps are of {', '.join(given)} and the model was trained on {', '.join(trained)}; give "
                "label maps with the same classes in this order."
            )
        ids = dict(zip(given, meta["category_ids"], strict=True))
        # Categories without objects have no average precision.
        free = itertools.count(max(ids.values()) + 1)
        ids = {name: ids[name] if name in ids else next(free) for name in trained}
        evaluator.dataset_meta = {**meta, "classes": tuple(ids), "category_ids": tuple(ids.values())}
