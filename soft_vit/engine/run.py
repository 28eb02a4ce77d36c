"""Train from a config; the command line calls `train`."""

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import OPTIMIZERS
from mmengine.runner import Runner

from soft_vit.engine.config import require_registered
from soft_vit.engine.config_values import count_classes, require_one_size, type_name
from soft_vit.engine.data.bad_images import ReadingDataset, require_data_root
from soft_vit.engine.hooks.checkpoint import find_newest_checkpoint
from soft_vit.engine.models.finetune import CheckpointMatchHook, StartWeightsHook
from soft_vit.engine.prepare import prepare
from soft_vit.engine.resume.stop import StopHook
from soft_vit.registry import DATASETS

__all__ = ["TrainResult", "require_checkpoint", "scale_learning_rate", "traceback_in_log", "train"]


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run.

    metrics: of the last validation, empty without one. images: number of validated images. checkpoint: the last one
    that the run wrote or resumed from, or None.
    """

    metrics: dict[str, float]
    images: int
    checkpoint: Path | None
    work_dir: Path

    @property
    def top1(self) -> float | None:
        """Accuracy in percent; None if it was not measured."""
        return self.metrics.get("accuracy/top1")

    def __str__(self) -> str:
        if self.top1 is not None:
            average = self.metrics.get("ema/accuracy/top1")
            also = "" if average is None else f", {average:.2f} % with averaged weights,"
            line = f"Final top-1 accuracy: {self.top1:.2f} %{also} on {self.images} held-out images."
        elif self.metrics:
            values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
            line = f"Final metrics on {self.images} held-out images: {values}."
        elif self.images:
            line = f"Training ended; the last validation, on {self.images} held-out images, gave no metrics."
        else:
            line = "Training ended without validation."
        return f"{line}\nCheckpoint: {self.checkpoint}" if self.checkpoint else line


@contextmanager
def traceback_in_log() -> Iterator[None]:
    """Write the traceback of an error in the block into the log of the run, and raise the error again."""
    try:
        yield
    except Exception:
        logger = MMLogger.get_current_instance()
        record = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, traceback.format_exc(), (), None)
        for handler in logger.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)
        raise


def use_amp(cfg: Config) -> None:
    """Switch a config to autocast on any device: in bfloat16, unless it asks for float16."""
    wrapper = cfg.optim_wrapper
    kind = type_name(wrapper) or "OptimWrapper"
    if kind not in ("OptimWrapper", "AmpOptimWrapper", "SafeOptimWrapper"):
        raise ValueError(f"--amp cannot change the optimizer wrapper {kind}; set its precision in the config instead.")
    wrapper.type = "SafeOptimWrapper"
    if wrapper.get("dtype") != "float16":
        wrapper.pop("loss_scale", None)
        wrapper.dtype = "bfloat16"


def scale_learning_rate(runner: Runner) -> None:
    """Scale the learning rate before a run if `auto_scale_lr.enable` is set, and log it (arXiv 1706.02677).

    The factor is the number of images in an optimizer step, over all processes and accumulated batches, divided by
    `auto_scale_lr.base_batch_size`. It also scales the bounds `eta_min` and `eta_max` of schedulers; warm-up factors
    are relative already. Raises ValueError without a base batch.
    """
    rule = runner.auto_scale_lr or {}
    if not rule.get("enable", False):
        return
    # MMEngine's own rule, which would scale again, ignores accumulated batches and the bounds.
    runner.auto_scale_lr = None
    base = rule.get("base_batch_size")
    if not base:
        raise ValueError(
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
    schedulers = runner.param_schedulers or []
    for scheduler in [schedulers] if isinstance(schedulers, dict) else schedulers:
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


def _resume(cfg: Config, resume: str) -> None:
    """resume: "auto", for the newest checkpoint in the work directory, or a path."""
    if resume == "auto":
        newest = find_newest_checkpoint(cfg.work_dir)
        if newest is None:
            # A job that restarts itself passes --resume from the start.
            print(f"No checkpoint in {cfg.work_dir}: training starts from the beginning.")
            return
        resume = str(newest)
    require_checkpoint(resume)
    cfg.load_from, cfg.resume = resume, True


def require_checkpoint(path: str) -> None:
    """FileNotFoundError unless path is a file or an address."""
    if "://" not in path and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}; give the path of a file that exists.")


def train(
    config: str | Path,
    *,
    work_dir: str | Path | None = None,
    resume: str | None = None,
    amp: bool = False,
    validate: bool = True,
    options: dict | None = None,
    launcher: str = "none",
    auto_scale_lr: bool = False,
    stop_signals: Sequence[str] = ("SIGTERM", "SIGINT"),
) -> TrainResult:
    """Train what a config describes.

    resume: None, "auto" for the newest checkpoint in the work directory, or the path of one. amp: autocast in bfloat16,
    or in optim_wrapper.dtype=float16. validate: run the config's validation. options: entries of the config by dotted
    name. launcher: "none" or that of the processes. auto_scale_lr: scale the learning rate with the batch.
    stop_signals: at one of these the run is saved and the process ends with code 75.

    Raises ValueError or FileNotFoundError before training begins for what cannot be used, and ValueError
    when a checkpoint cannot be written.
    """
    cfg = prepare(config, work_dir, options, launcher)
    dataset = (cfg.get("train_dataloader") or {}).get("dataset") or {}
    if "type" not in dataset:
        raise ValueError(f"The config {cfg.filename} names no train_dataloader.dataset.type; give training data.")
    cls = DATASETS.get(type_name(dataset))
    if isinstance(cls, type) and issubclass(cls, ReadingDataset):
        # The runner would say so after pages of its config.
        require_data_root(dataset.get("data_root"))
    count_classes(cfg)
    require_one_size(cfg)
    require_registered(cfg, "optim_wrapper.optimizer", OPTIMIZERS)
    if amp:
        use_amp(cfg)
    if auto_scale_lr:
        cfg.auto_scale_lr = {**(cfg.get("auto_scale_lr") or {}), "enable": True}
    if not validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if resume is None and cfg.get("resume") and not cfg.get("load_from"):
        # As MMEngine understands it.
        resume = "auto"
    if resume is not None:
        _resume(cfg, resume)
    elif cfg.get("load_from"):
        require_checkpoint(cfg.load_from)
    # What depends on this call; all other hooks stand in configs/_base_/default_runtime.py.
    stop = StopHook(stop_signals)
    match = CheckpointMatchHook() if cfg.get("resume") else StartWeightsHook()
    with traceback_in_log(), stop:
        runner = Runner.from_cfg(cfg)
        for hook in (match, stop):
            runner.register_hook(hook)
        scale_learning_rate(runner)
        runner.train()
    written = any(getattr(hook, "last_ckpt", None) for hook in runner.hooks)
    resumed = cfg.load_from if cfg.get("resume") else None
    last = runner.message_hub.get_info("last_ckpt") if written else resumed
    return TrainResult(
        metrics=_last_metrics(runner) if validate else {},
        images=len(runner.val_dataloader.dataset) if validate and runner.val_loop is not None else 0,
        checkpoint=last and Path(last),
        work_dir=Path(runner.work_dir),
    )


def _last_metrics(runner: Runner) -> dict[str, float]:
    """The metrics of the last validation, without its own timing."""
    scalars = {
        name.removeprefix("val/"): float(history.current())
        for name, history in runner.message_hub.log_scalars.items()
        if name.startswith("val/")
    }
    return {name: value for name, value in scalars.items() if name not in ("time", "data_time")}
