"""Refusing a checkpoint that belongs to another model."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.errors import UserError, as_user_error
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.registry import HOOKS, register
from soft_vit.weights.loading import describe_mismatch, filter_weights

__all__ = ["CheckpointMatchHook", "require_match"]


def require_match(runner: Runner, checkpoint: dict, exact: bool = True) -> None:
    """UserError if a checkpoint's names and shapes are not those of the model; if not exact, only where none fits.

    MMEngine alone only logs a warning and goes on with whatever fitted.
    """
    expected = unwrapped(runner.model).state_dict()
    given = checkpoint.get("state_dict", checkpoint)
    given = {name.removeprefix("module."): value for name, value in given.items() if hasattr(value, "shape")}
    mismatch = describe_mismatch(expected, given)
    fitting = any(name in given and expected[name].shape == given[name].shape for name in expected)
    if mismatch and (exact or not fitting):
        raise UserError(
            f"The checkpoint belongs to another model: {mismatch}; use the config that it was trained with."
        )


@register(HOOKS)
class CheckpointMatchHook(Hook):
    """Refuses to resume from a checkpoint of another model, with UserError (a ValueError)."""

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        require_match(runner, checkpoint)
        network = getattr(unwrapped(runner.model), "model", None)
        if hasattr(network, "pretrained_cfg"):
            # Of models whose parameters are alike, only the notes of a checkpoint tell.
            with as_user_error():
                filter_weights(checkpoint, network)
