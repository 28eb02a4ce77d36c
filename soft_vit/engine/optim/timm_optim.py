"""timm's optimizers and learning-rate schedules by name."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.param_scheduler import INF, _ParamScheduler
from mmengine.registry import OPTIMIZERS, Registry
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch.optim import Optimizer

from soft_vit.registry import PARAM_SCHEDULERS, register

# Arguments of create_optimizer_v2 that need the names of parameters.
_OF_GROUPS = ("fallback_list", "fallback_no_weight_decay", "filter_bias_and_bn", "layer_decay", "param_group_fn")


class TimmOptimizers(Registry):
    """Registry of scope `timm`: an optimizer has `type="timm.NAME"`, with a name of `timm.optim.list_optimizers()`.

    The other keys are arguments of timm's `create_optimizer_v2`, whose defaults apply. `lookahead_NAME` wraps an
    optimizer as in timm. torch's names, such as `AdamW`, stay torch's. A dotted path such as `timm.optim.Lion` is the
    class itself, with its own defaults.
    """

    def get(self, key: str) -> Callable[..., Optimizer] | None:
        """Return the function that builds an optimizer from parameters or groups.

        The function raises ValueError for a name that timm does not know and for arguments that need names.
        """
        if "." in key:
            return None

        def build(params: Any, lr: float | None = None, **options: Any) -> Optimizer:
            if misplaced := [name for name in _OF_GROUPS if name in options]:
                raise ValueError(f"{misplaced[0]} must be in paramwise_cfg of TimmOptimWrapperConstructor.")
            optimizer = create_optimizer_v2(params, key, lr=lr, **options)
            if any(group["lr"] is None for group in optimizer.param_groups):
                # It would choose the rate itself, and schedules and logs need a number.
                raise ValueError(f"optimizer.lr must be set for timm.{key}, got None, its default.")
            return optimizer

        return build


TimmOptimizers("optimizer", parent=OPTIMIZERS, scope="timm")


@register(PARAM_SCHEDULERS)
class TimmLR(_ParamScheduler):
    """timm's learning-rate schedules: `param_scheduler=dict(type="TimmLR", sched="wsd", warmup_epochs=5)`.

    sched: "cosine", "tanh", "step", "multistep", "poly", "wsd", "rsqrt" or "constant". options: arguments of timm's
    `create_scheduler_v2`, whose defaults apply; its `num_epochs` follows from begin and end, which are by default those
    of the run. They count epochs, or iterations with by_epoch=False. `convert_to_iter_based=True` updates the rate with
    every iteration, and keeps these units. As in timm, `layer_decay` scales `warmup_lr` and `min_lr`, too.
    """

    def __init__(
        self,
        optimizer: Optimizer | OptimWrapper,
        sched: str,
        begin: int = 0,
        end: int = INF,
        last_step: int = -1,
        by_epoch: bool = True,
        verbose: bool = False,
        epoch_length: int = 1,
        **options: Any,
    ) -> None:
        length = (end - begin) / epoch_length
        how = dict(step_on_epochs=False, updates_per_epoch=epoch_length, **options)
        # A schedule before this one may have lowered a rate. timm scales rates and their bounds by layer.
        rates = [(group.get("initial_lr", group["lr"]), group.get("lr_scale", 1)) for group in optimizer.param_groups]
        groups = [{"lr": rate / scale, "lr_scale": scale} for rate, scale in rates]
        self._schedule, _ = create_scheduler_v2(SimpleNamespace(param_groups=groups), sched, length, **how)
        super().__init__(optimizer, "lr", begin, end, last_step, by_epoch, verbose)

    @classmethod
    def build_iter_from_epoch(
        cls, *args: Any, epoch_length: int, begin: int = 0, end: int = INF, by_epoch: bool = True, **kwargs: Any
    ) -> "TimmLR":
        """Return a schedule of iterations from one of epochs, as MMEngine's schedules do."""
        steps = {"begin": int(begin * epoch_length), "end": end if end == INF else int(end * epoch_length)}
        return cls(*args, **steps, by_epoch=False, epoch_length=epoch_length, **kwargs)

    def _get_value(self) -> list[float]:
        self._schedule.step_update(self.last_step)
        return [group["lr"] for group in self._schedule.optimizer.param_groups]

    def state_dict(self) -> dict:
        # timm's schedules are functions of the step.
        return {key: value for key, value in super().state_dict().items() if key != "_schedule"}
