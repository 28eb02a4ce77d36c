"""Train from a config: resolve it, build MMEngine's Runner, and run."""

import itertools
import logging
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import MMLogger
from mmengine.runner import Runner

from soft_vit.engine.config import resolve
from soft_vit.engine.data.bad_images import ReadingDataset, require_data_root
from soft_vit.engine.data.datasets import TimmDataset
from soft_vit.engine.entries import class_of
from soft_vit.engine.machine import start_processes
from soft_vit.engine.resume.restart import note_launchers
from soft_vit.registry import DATASETS
from soft_vit.resume.lock import only_run_in
from soft_vit.resume.stop import listening

_runs_in_this_process = itertools.count()
# Patterns of the beginnings of MMEngine's records that describe the machine, the config, the hooks and each parameter,
# repeat what SummaryHook logs, or warn about MMEngine's own code.
_FOR_THE_FILE = (
    "\n-----",
    "Config:",
    "Hooks will be executed",
    "paramwise_options -- ",
    "set param ",
    "Param groups",
    r"[\w.]+ is skipped since its requires_grad",
    "Distributed training is not used",
    "Checkpoints will be saved",
    '"FileClient"',
    '"HardDiskBackend"',
)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run.

    metrics: of the last validation, empty without one. images: number of validation images. checkpoint: the last one
    that the run wrote, otherwise the one that it resumed from, or None.
    """

    metrics: dict[str, float]
    images: int
    checkpoint: Path | None

    def __str__(self) -> str:
        if (top1 := self.metrics.get("accuracy/top1")) is not None:
            average = self.metrics.get("ema/accuracy/top1")
            also = "" if average is None else f", {average:.2f} % with averaged weights,"
            line = f"Final top-1 accuracy: {top1:.2f} %{also} on {self.images} held-out images."
        elif self.metrics:
            values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
            line = f"Final metrics on {self.images} held-out images: {values}."
        else:
            line = "Training ended without validation."
        return f"{line}\nCheckpoint: {self.checkpoint}" if self.checkpoint else line


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
    """Train the model of a config.

    work_dir: by default work_dirs/<config name>. resume: None, "auto" for the newest checkpoint in the work directory,
    or a path. amp: autocast in bfloat16, or in float16 with optim_wrapper.dtype=float16. validate: run the config's
    validation. options: values of the config by dotted name. launcher: see `LAUNCHERS`. auto_scale_lr: scale the
    learning rate with the batch. stop_signals: signals at which the run is saved, and the process ends with code 75.

    Raises ValueError or FileNotFoundError for arguments that do not fit, and ValueError for a work_dir in which another
    run goes on.
    """
    messages: list[str] = []
    flags = {"amp": amp, "auto_scale_lr": auto_scale_lr, "validate": validate, "launcher": launcher}
    cfg = resolve(config, options, work_dir=work_dir, resume=resume, notify=messages.append, **flags)
    dataset = cfg.train_dataloader.dataset
    kind = class_of(dataset, DATASETS) or object
    if issubclass(kind, ReadingDataset) and kind is not TimmDataset:
        # Before the runner creates files and logs its config. A data set of timm may still be downloaded.
        require_data_root(dataset.get("data_root"))
    start_processes(cfg)
    lock = only_run_in(cfg.work_dir) if is_main_process() else nullcontext()
    with listening(stop_signals), lock, traceback_in_log():
        runner = build_runner(cfg)
        for message in messages:
            runner.logger.info(message)
        note_launchers(runner.work_dir)
        runner.train()
    validated = runner.val_loop is not None
    metrics = {
        name.removeprefix("val/"): float(history.current())
        for name, history in runner.message_hub.log_scalars.items()
        if validated and name.startswith("val/") and name not in ("val/time", "val/data_time")
    }
    written = any(getattr(hook, "last_ckpt", None) for hook in runner.hooks)
    resumed = runner.cfg.load_from if runner.cfg.get("resume") else None
    last = runner.message_hub.get_info("last_ckpt") if written else resumed
    return TrainResult(metrics, len(runner.val_dataloader.dataset) if validated else 0, last and Path(last))


class _QuietRunner(Runner):
    """MMEngine's Runner, whose long descriptions go to the log file alone."""

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(lambda record: not re.match("|".join(_FOR_THE_FILE), record.getMessage()))
        return logger


def build_runner(cfg: Config) -> Runner:
    """Return MMEngine's Runner for a resolved config; for several CPU processes, start their process group."""
    start_processes(cfg)
    run = next(_runs_in_this_process)
    if run and cfg.get("experiment_name") is None:
        # Two runs of one name that begin in the same second would share MMEngine's logs.
        cfg.experiment_name = f"{Path(cfg.filename).stem}_run{run}"
    return _QuietRunner.from_cfg(cfg)


@contextmanager
def traceback_in_log() -> Iterator[None]:
    """Write the traceback of an error in the block to the log file of the run, and raise the error again."""
    try:
        yield
    except Exception:
        logger = MMLogger.get_current_instance()
        record = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, traceback.format_exc(), (), None)
        for handler in logger.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)
        raise
