"""Refusing a schedule that would end a run before its last step."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.errors import UserError

__all__ = ["ScheduleEndHook"]


class ScheduleEndHook(Hook):
    """Refuses a OneCycleLR of fewer steps than the run has, which MMEngine would notice at the step after its last.

    Raises UserError (a ValueError) before the first step.
    """

    def before_train(self, runner: Runner) -> None:
        named = runner.param_schedulers or []
        lists = named.values() if isinstance(named, dict) else [named]
        for scheduler in (scheduler for schedulers in lists for scheduler in schedulers):
            total = getattr(scheduler, "total_steps", None)
            # The number of its last step, in epochs or iterations; the step at the start is number 0.
            run = runner.max_epochs if scheduler.by_epoch else runner.max_iters
            last = min(run, scheduler.end - 1) - scheduler.begin
            if total is not None and last > total:
                raise UserError(
                    f"{type(scheduler).__name__} of param_scheduler has {total} steps, and the run takes {last} with "
                    f"it; set its total_steps to {last}, or its end to {scheduler.begin + total}."
                )
