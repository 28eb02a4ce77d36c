"""Redraw the random features of Performer attentions during training."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.resume.position import run_seed
from soft_vit.layers.attention.performer import PerformerAttention
from soft_vit.registry import HOOKS, register
from soft_vit.resume.position import seeded_generator


@register(HOOKS)
class FeatureRedrawHook(Hook):
    """Redraws the random features of each Performer attention in training mode, every n iterations.

    As in Performer (Choromanski et al. 2020, arXiv 2009.14794, Sec. 4.2), it keeps weights from adapting to one draw.
    Evaluation, a frozen teacher and frozen stages keep their features. The seed of a draw is made of the run's seed and
    the iteration, so all ranks and resumed runs draw the same.

    feature_redraw_interval: n.
    """

    def __init__(self, feature_redraw_interval: int = 1000) -> None:
        self.interval = feature_redraw_interval

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter == 0 or runner.iter % self.interval:
            return
        # The step itself draws from the global generator.
        generator = seeded_generator(run_seed(runner), runner.iter)
        for module in runner.model.modules():
            if isinstance(module, PerformerAttention) and module.training:
                module.redraw(generator)
