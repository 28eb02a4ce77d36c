"""Keeping in checkpoints how the samples were shared out, so that a resumed run finds its place among them."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.errors import UserError
from soft_vit.registry import HOOKS, register

__all__ = ["BatchPositionHook"]


@register(HOOKS)
class BatchPositionHook(Hook):
    """Notes the number of processes, their batch and the steps of an epoch in `meta` of each checkpoint.

    On resuming: other steps or another global batch is a UserError (a ValueError), because the position among the
    samples and in the schedule is counted in steps; the same global batch from other processes is a warning.
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint["meta"]["batches"] = self._describe(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        before, now = checkpoint.get("meta", {}).get("batches"), self._describe(runner)
        if not runner._resume or before is None or before == now:
            return
        both = f"was written by {_sentence(before)}, and this run has {_sentence(now)}"
        same_batch = before["processes"] * before["batch_size"] == now["processes"] * now["batch_size"]
        if not same_batch or before["steps"] != now["steps"]:
            raise UserError(
                f"The checkpoint {both}; resume with the same data and global batch, or begin a run from its weights "
                "with load_from."
            )
        runner.logger.warning(f"The checkpoint {both}: the order of samples is kept, random numbers of steps are not.")

    @staticmethod
    def _describe(runner: Runner) -> dict[str, int]:
        loader = runner.train_dataloader
        # The loader's own is None where the config names a batch sampler, as those of mmdet do.
        batch_size = loader.batch_sampler.batch_size
        return {"processes": runner.world_size, "batch_size": batch_size, "steps": len(loader)}


def _sentence(batches: dict[str, int]) -> str:
    return "{processes} processes of batch {batch_size} with {steps} steps an epoch".format(**batches)
