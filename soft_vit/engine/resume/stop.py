"""Save and end a run of MMEngine at a signal."""

from typing import Any

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS
from mmengine.runner import Runner

from soft_vit.engine.hooks.checkpoint import SafeCheckpointHook
from soft_vit.registry import HOOKS, register
from soft_vit.resume.position import seed_worker
from soft_vit.resume.stop import Stop, shield


@register(HOOKS)
class StopHook(Hook):
    """Saves and ends a run after a signal that `soft_vit.resume.stop.listening` received.

    All ranks stop after the same iteration: the first that ends a window of accumulated gradients after any rank got
    the signal. They write one checkpoint. In a validation they stop at once if the training so far is saved.
    """

    # After the hooks that save, so that nothing is saved twice.
    priority = "LOWEST"

    def __init__(self) -> None:
        self._stop = Stop()

    def before_run(self, runner: Runner) -> None:
        if not _checkpoint_hooks(runner):
            # MMEngine's own hook writes nothing between its intervals.
            runner.register_hook(SafeCheckpointHook(interval=-1, save_last=False, max_keep_ckpts=-1))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if self._stop.is_asked() and runner.optim_wrapper.should_update():
            hooks = _checkpoint_hooks(runner)
            if all(hook.saved_iter != runner.iter + 1 for hook in hooks):
                hooks[0].save_between(runner)
            self._leave(runner, runner.iter + 1)

    def after_val_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        loader = runner.val_dataloader
        # Ranks may differ by one batch.
        everywhere = len(loader.dataset) // (runner.world_size * loader.batch_sampler.batch_size)
        saved = any(hook.saved_iter == runner.iter for hook in _checkpoint_hooks(runner))
        if batch_idx < everywhere and self._stop.is_asked() and saved:
            self._leave(runner, runner.iter)

    def _leave(self, runner: Runner, iteration: int) -> None:
        runner.logger.info(f"Stopped by {self._stop.reason}: iteration {iteration} is saved; go on with --resume.")
        self._stop.leave()


def _checkpoint_hooks(runner: Runner) -> list[SafeCheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, SafeCheckpointHook)]


@FUNCTIONS.register_module()
def shield_worker(worker_id: int) -> None:
    """As a `worker_init_fn`, let a worker end when its run ends it, see `soft_vit.resume.stop.shield`.

    Like the MMEngine function that it replaces, it seeds the workers of each rank differently.
    """
    seed_worker(get_rank())
    shield()
