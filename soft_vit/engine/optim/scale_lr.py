"""The linear rule: a learning rate that belongs to one batch, scaled for another (Goyal et al., arXiv 1706.02677)."""

from mmengine.runner import Runner

from soft_vit.engine.errors import UserError

__all__ = ["scale_learning_rate"]


def scale_learning_rate(runner: Runner) -> None:
    """Scale the learning rate before a run if `auto_scale_lr.enable` is set, and log it.

    The factor is the number of images in an optimizer step, over all processes and accumulated batches, divided by
    `auto_scale_lr.base_batch_size`. It also scales the bounds `eta_min` and `eta_max` of schedulers; warm-up factors
    are relative already. Raises UserError (a ValueError) without a base batch.
    """
    rule = runner.auto_scale_lr or {}
    if not rule.get("enable", False):
        return
    # MMEngine's own rule, which would scale again, ignores accumulated batches and the bounds.
    runner.auto_scale_lr = None
    base = rule.get("base_batch_size")
    if not base:
        raise UserError(
            "The learning rate cannot be scaled without auto_scale_lr.base_batch_size; set it to the number of images "
            "that the config's learning rate belongs to."
        )
    loader = runner.cfg.train_dataloader
    # As MMEngine does: the batch sampler's own number comes first.
    batch = {**loader, **(loader.get("batch_sampler") or {})}["batch_size"]
    accumulated = runner.optim_wrapper.get("accumulative_counts", 1)
    total = runner.world_size * batch * accumulated
    optimizer = runner.optim_wrapper["optimizer"]
    before = optimizer["lr"]
    optimizer["lr"] = before * total / base
    for scheduler in _schedulers(runner.param_schedulers):
        for bound in {"eta_min", "eta_max"} & scheduler.keys() if scheduler["type"].endswith("LR") else ():
            # A value for each parameter group, or one for all.
            value = scheduler[bound]
            many = isinstance(value, list | tuple)
            scheduler[bound] = [one * total / base for one in value] if many else value * total / base
    parts = f"{runner.world_size} processes x {batch} images" + (f" x {accumulated} batches" if accumulated > 1 else "")
    runner.logger.info(
        f"The learning rate is {optimizer['lr']:g}: the global batch is {total} ({parts}), and the config's "
        f"{before:g} belongs to a batch of {base}."
    )


def _schedulers(configured: list | dict | None) -> list[dict]:
    if isinstance(configured, dict):
        return [configured]
    return list(configured or [])
