"""What a run refuses before its first step, because it would fail later or learn something else."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.errors import UserError
from soft_vit.engine.models.unwrapping import unwrapped
from soft_vit.registry import HOOKS, register

__all__ = ["RunChecksHook"]

# More names than these are not worth a line of the log.
_NAMED_CLASSES = 10


@register(HOOKS)
class RunChecksHook(Hook):
    """Checks that classes, targets and schedules fit each other, and logs the classes of the training data.

    Raises UserError (a ValueError) when they do not.
    """

    def before_train(self, runner: Runner) -> None:
        self._check_classes(runner)
        self._check_schedules(runner)

    def _check_classes(self, runner: Runner) -> None:
        classes = getattr(runner.train_dataloader.dataset, "metainfo", {}).get("classes")
        model = unwrapped(runner.model)
        # A detector itself, a timm model inside ours, or the head of one of MMPretrain.
        owners = (model, getattr(model, "model", None), getattr(model, "head", None))
        head = next((owner.num_classes for owner in owners if hasattr(owner, "num_classes")), None)
        if classes is not None:
            names = f": {', '.join(map(str, classes))}" if len(classes) <= _NAMED_CLASSES else ""
            runner.logger.info(f"The training data has {len(classes)} classes{names}.")
        if classes is not None and head is not None and len(classes) > head:
            raise UserError(
                f"The training data has {len(classes)} classes and the model has {head}; set num_classes to "
                f"{len(classes)}."
            )
        mixing = getattr(getattr(model, "data_preprocessor", None), "mixing", None)
        if mixing is not None and head is not None and mixing.num_classes != head:
            raise UserError(
                f"The data preprocessor makes targets for {mixing.num_classes} classes and the model has {head}; set "
                f"data_preprocessor.num_classes to {head}."
            )

    def _check_schedules(self, runner: Runner) -> None:
        """Refuse a OneCycleLR of fewer steps than the run has: MMEngine would raise an error after its last one."""
        named = runner.param_schedulers or []
        lists = named.values() if isinstance(named, dict) else [named]
        for scheduler in (scheduler for schedulers in lists for scheduler in schedulers):
            total = getattr(scheduler, "total_steps", None)
            # The number of its last step, in epochs or iterations; the step at the start is number 0.
            run = runner.max_epochs if scheduler.by_epoch else runner.max_iters
            last = min(run, scheduler.end - 1) - scheduler.begin
            if total is not None and last > total:
                raise UserError(
                    f"{type(scheduler).__name__} of param_scheduler has {total} steps, and the run takes {last}; set "
                    f"its total_steps to {last}, or its end to {scheduler.begin + total}."
                )
