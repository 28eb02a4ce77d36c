"""Other random features for Performer's attentions in the course of a training."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.resume.position import run_seed, seeded_generator
from soft_vit.layers.attention.performer import PerformerAttention
from soft_vit.registry import HOOKS, register

__all__ = ["FeatureRedrawHook"]


@register(HOOKS)
class FeatureRedrawHook(Hook):
    """Redraws the features of every Performer attention that trains, before each n-th training iteration.

    As in Performer (Choromanski et al. 2020, arXiv 2009.14794, Sec. 4.2), so that no weight adapts to one draw.
    Evaluation, a frozen teacher and frozen stages keep the features that they have. A draw follows from the run's seed
    and the iteration: it is the same on all ranks, and in a run that was resumed.

    feature_redraw_interval: n. Raises ValueError for one below 1, and for a model without such attention.
    """

    def __init__(self, feature_redraw_interval: int = 1000) -> None:
        if feature_redraw_interval < 1:
            raise ValueError(f"feature_redraw_interval is {feature_redraw_interval}; choose 1 or more.")
        self.interval = feature_redraw_interval

    def before_train(self, runner: Runner) -> None:
        if not any(isinstance(module, PerformerAttention) for module in runner.model.modules()):
            raise ValueError(
                "The model has no Performer attention whose features FeatureRedrawHook could redraw; leave the hook "
                "out, or train a model such as performer_pyramid_tiny."
            )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter == 0 or runner.iter % self.interval:
            return
        # Not the global generator, from which the step draws what it needs.
        generator = seeded_generator(run_seed(runner), runner.iter)
        for module in runner.model.modules():
            if isinstance(module, PerformerAttention) and module.training:
                module.redraw(generator)
