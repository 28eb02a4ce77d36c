"""Check before the first step that data and model fit each other."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from soft_vit.engine.models.timm_model import classes_of, timm_network, unwrapped
from soft_vit.engine.optim.ema_hook import PREFIX, EMAEvalHook
from soft_vit.registry import HOOKS, register

# Maximum number of class names in an error.
_NAMED_CLASSES = 10


def match_classes(dataset: Any, expected: Sequence[str], owner: str) -> None:
    """Number the classes of a data set as `expected` does, if their names are the same.

    owner: of the expected classes, as in "the training data". Raises ValueError for a class that `expected`
    lacks, and for a data set in another order without the method `number_like`.
    """
    names_of_data, expected = classes_of(dataset), tuple(map(str, expected))
    if not names_of_data or names_of_data == expected:
        return
    strange = [name for name in names_of_data if name not in expected]
    if not strange and len({*expected}) == len(expected) and hasattr(dataset, "number_like"):
        dataset.number_like(expected)
        return
    shown = ", ".join(expected[:_NAMED_CLASSES])
    raise ValueError(f"The images must have the classes of {owner}, {shown}, got {(strange or names_of_data)[0]!r}.")


def require_batches(loader: Any, model: nn.Module) -> None:
    """Raise ValueError if a batch has a single image whose last map is too small for BatchNorm.

    loader: the training data. model: a classifier with a timm model.
    """
    batches = loader.batch_sampler
    single = batches.batch_size == 1 or (not batches.drop_last and len(batches.sampler) % batches.batch_size == 1)
    inputs = loader.dataset[0].get("inputs") if single and hasattr(model, "model") else None
    if not isinstance(inputs, Tensor):
        return
    try:
        network = copy.deepcopy(model).train().model.to("meta")
        network(torch.empty(1, *inputs.shape, device="meta"))
    except Exception as error:
        # Models that do not run on the meta device are not checked.
        if "more than 1 value per channel" in str(error):
            what = "must leave no batch of one image, for which BatchNorm needs more than one position"
            sizes = f"{batches.batch_size} for {len(batches.sampler)} images; drop_last=True leaves a smaller one out"
            raise ValueError(f"train_dataloader.batch_size {what}, got {sizes}.") from error


def outputs_of(model: nn.Module) -> int | None:
    """Return the number of classes of a model of MMEngine, or None if it is unknown."""
    model = unwrapped(model)
    # A detector itself, a timm model inside ours, or the head of a segmentor or of a model of MMPretrain.
    owners = (model, getattr(model, "model", None), getattr(model, "head", None))
    return next((owner.num_classes for owner in owners if hasattr(owner, "num_classes")), None)


def require_metrics(runner: Runner) -> None:
    """Raise ValueError for a metric that a hook or a schedule watches and the validation does not measure.

    Metrics of other libraries do not tell their names, and are not checked.
    """
    metrics = runner.val_evaluator.metrics
    if not all(hasattr(metric, "names") for metric in metrics):
        return
    names = {name for metric in metrics for name in metric.names}
    names |= {PREFIX + name for name in names if any(isinstance(hook, EMAEvalHook) for hook in runner.hooks)}
    schedulers = runner.param_schedulers if isinstance(runner.param_schedulers, list) else ()
    watched = [getattr(one, "monitor", None) for one in (*runner.hooks, *schedulers)]
    watched += [name for hook in runner.hooks for name in getattr(hook, "save_best", None) or ()]
    if unknown := [name for name in watched if name not in (None, "auto", *names)]:
        raise ValueError(f"A metric to watch must be one of {', '.join(sorted(names))}, got {unknown[0]}.")


@register(HOOKS)
class RunChecksHook(Hook):
    """Checks before the first step that data, model and metrics fit each other.

    The model must have at least as many classes as the training data, and a teacher that names its classes the same
    ones. Classes of the validation data are matched by name. Raises ValueError for other classes, and what
    `match_classes`, `require_metrics` and `require_batches` raise.
    """

    def before_train(self, runner: Runner) -> None:
        classes, head = classes_of(runner.train_dataloader.dataset), outputs_of(runner.model)
        if head is not None and len(classes) > head:
            raise ValueError(f"num_classes must be {len(classes)} as in the training data, got {head}.")
        teacher = timm_network(getattr(unwrapped(runner.model), "teacher", None))
        taught = tuple(getattr(teacher, "pretrained_cfg", {}).get("label_names") or ())
        if classes and taught and taught != classes:
            data, own = (", ".join(names[:_NAMED_CLASSES]) for names in (classes, taught))
            raise ValueError(f"teacher must have the classes of the training data, {data}, got {own}.")
        if classes and runner.val_loop is not None:
            match_classes(runner.val_dataloader.dataset, classes, "the training data")
            runner.val_evaluator.dataset_meta = getattr(runner.val_dataloader.dataset, "metainfo", None)
        if runner.val_loop is not None:
            require_metrics(runner)
        if hasattr(getattr(runner.train_dataloader, "batch_sampler", None), "drop_last"):
            require_batches(runner.train_dataloader, unwrapped(runner.model))
