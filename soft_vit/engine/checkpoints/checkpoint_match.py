"""Refusing a checkpoint that belongs to another model."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.errors import UserError, as_user_error
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.registry import HOOKS, register
from soft_vit.weights.loading import describe_mismatch, filter_weights

__all__ = ["CheckpointMatchHook", "describe_mismatch"]


@register(HOOKS)
class CheckpointMatchHook(Hook):
    """Compares a checkpoint with the model before it is loaded.

    exact: every parameter has to be there with its shape (resuming, testing); otherwise one fitting parameter is enough
    (starting from other weights, where a new head is normal). MMEngine alone only logs a warning and goes on with
    whatever fitted. Raises UserError (a ValueError) when the checkpoint does not fit.
    """

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        model = unwrapped(runner.model)
        expected = model.state_dict()
        given = checkpoint.get("state_dict", checkpoint)
        given = {name.removeprefix("module."): value for name, value in given.items() if hasattr(value, "shape")}
        mismatch = describe_mismatch(expected, given)
        fitting = sum(name in given and expected[name].shape == given[name].shape for name in expected)
        if mismatch and (self.exact or not fitting):
            raise UserError(
                f"The checkpoint belongs to another model: {mismatch}; use the config that it was trained with."
            )
        network = getattr(model, "model", None)
        if self.exact and hasattr(network, "pretrained_cfg"):
            # Of models whose parameters are alike, only the notes of a checkpoint tell.
            with as_user_error():
                filter_weights(checkpoint, network)
