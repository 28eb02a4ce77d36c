"""Training from a config: what the command line calls."""

import errno
import itertools
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS, OPTIMIZERS
from mmengine.runner import Runner

from soft_vit.engine.checkpoints.checkpoint_hook import find_newest_checkpoint
from soft_vit.engine.checkpoints.checkpoint_match import CheckpointMatchHook
from soft_vit.engine.config import (
    apply_options,
    check_keys,
    load_config,
    places_being_built,
    require_registered,
    type_name,
)
from soft_vit.engine.data.data_checks import ClassCountHook, fill_data_root
from soft_vit.engine.errors import UserError, in_worker, one_line
from soft_vit.engine.loops import ExactEpochLoop, ExactIterLoop
from soft_vit.engine.models.finetune import StartWeightsHook
from soft_vit.engine.optim.schedule import ScheduleEndHook, scale_learning_rate
from soft_vit.engine.resume.position import BatchPositionHook, StepSeedHook
from soft_vit.engine.resume.stop_hook import StopHook
from soft_vit.weights.files import write_atomically

__all__ = ["LAUNCHERS", "TrainResult", "prepare", "train"]

_runs_in_this_process = itertools.count()

LAUNCHERS = ("none", "pytorch", "slurm", "mpi")
_HOOKS_OF_MMENGINE = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")


@dataclass(frozen=True)
class TrainResult:
    """What a training run ends with.

    metrics: those of the last validation, empty without one. images: number of validated images. checkpoint: the last
    one that the run wrote, or went on from; None when there was none.
    """

    metrics: dict[str, float]
    images: int
    checkpoint: Path | None
    work_dir: Path

    @property
    def top1(self) -> float | None:
        """Accuracy in percent, None where none was measured."""
        return self.metrics.get("accuracy/top1")

    def __str__(self) -> str:
        if self.top1 is not None:
            line = f"Final top-1 accuracy: {self.top1:.2f} % on {self.images} held-out images."
        elif self.metrics:
            values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
            line = f"Final metrics on {self.images} held-out images: {values}."
        elif self.images:
            line = f"Training ended; the last validation, on {self.images} held-out images, gave no metrics."
        else:
            line = "Training ended without validation."
        return f"{line}\nCheckpoint: {self.checkpoint}" if self.checkpoint else line


class StartHook(Hook):
    """Knows what a run does for the first time: an error there comes from the config, or from what it names.

    doing: what that is, None while nothing is. log_dir: where the run keeps its logs, once it has begun.
    """

    # After what the other hooks do with the first batch.
    priority = "LOWEST"

    def __init__(self) -> None:
        self.doing: str | None = "building"
        self.log_dir = Path()
        self._stepped = self._validated = False

    def before_run(self, runner: Runner) -> None:
        self.log_dir = Path(runner.log_dir)

    def before_train(self, runner: Runner) -> None:
        self.doing = "the first training step"

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self.doing, self._stepped = None, True

    def before_val_epoch(self, runner: Runner) -> None:
        self.doing = None if self._validated else "the first validation"

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._validated = True
        # A run that goes on from the end of an epoch begins with its validation.
        self.doing = None if self._stepped else "the first training step"

    def before_test(self, runner: Runner) -> None:
        self.doing = "the test"


@contextmanager
def config_errors(start: StartHook, config: Config) -> Iterator[None]:
    """Turn an error while objects are built from a config, or first used, into one sentence.

    What is behind an error of the second kind stands in a file among the logs, because it may be in a user's own code.
    """
    try:
        yield
    except (UserError, FileNotFoundError) as error:
        if in_worker(error):
            raise UserError(f"{one_line(error)}.") from error
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk is full ({error}); make room, then go on with --resume from the last checkpoint."
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, ImportError, RuntimeError) as error:
        if start.doing is None:
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        if start.doing == "building":
            at = " or ".join(places_being_built(config, error))
            raise UserError(
                f"The config {config.filename} cannot be built{at and f' at {at}'} ({what}); correct the config or the "
                "option that sets it."
            ) from error
        file = start.log_dir / "traceback.txt"
        write_atomically(file, traceback.format_exc().encode())
        raise UserError(
            f"The config {config.filename} fails in {start.doing} ({what}); correct the config, the data or the code "
            f"that {file} names."
        ) from error


def prepare(
    config: str | Path, work_dir: str | Path | None = None, options: dict | None = None, launcher: str = "none"
) -> Config:
    """Read a config and fill in what the command line decides.

    work_dir: by default work_dirs/<config name>. Raises UserError (a ValueError) or FileNotFoundError for what cannot
    be used.
    """
    if launcher not in LAUNCHERS:
        raise UserError(f"launcher is {launcher!r}; choose one of {', '.join(LAUNCHERS)}.")
    cfg = apply_options(load_config(config), options)
    check_keys(cfg)
    if work_dir is not None:
        cfg.work_dir = str(work_dir)
    elif cfg.get("work_dir") is None:
        cfg.work_dir = str(Path("work_dirs") / Path(config).stem)
    cfg.launcher = launcher
    fill_data_root(cfg)
    _use_exact_loop(cfg)
    _fit_loaders(cfg)
    _drop_hooks(cfg)
    run = next(_runs_in_this_process)
    if run and cfg.get("experiment_name") is None:
        # MMEngine keeps logs in memory under a name that two runs begun in the same second would share.
        cfg.experiment_name = f"{Path(config).stem}_run{run}"
    if launcher != "none" and not torch.cuda.is_available():
        _distribute_on_cpu(cfg, launcher)
    elif launcher == "pytorch" and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > torch.cuda.device_count():
        raise UserError(
            f"This machine has {torch.cuda.device_count()} GPUs for {os.environ['LOCAL_WORLD_SIZE']} processes; start "
            "at most one a GPU."
        )
    return cfg


def _use_exact_loop(cfg: Config) -> None:
    """Train with a loop that resumes exactly, where the config names none."""
    loop = cfg.get("train_cfg") or {}
    if "type" not in loop and "by_epoch" in loop:
        loop["type"] = (ExactEpochLoop if loop.pop("by_epoch") else ExactIterLoop).__name__


def _fit_loaders(cfg: Config) -> None:
    """Workers that outlive a notice to stop, and nothing asked for workers or a GPU that are not there.

    Raises UserError (a ValueError) for the name of a function that there is not.
    """
    for split in ("train", "val", "test"):
        loader = cfg.get(f"{split}_dataloader") or {}
        for function in ("collate_fn", "worker_init_fn"):
            require_registered(cfg, f"{split}_dataloader.{function}", FUNCTIONS)
        if loader.get("num_workers", 0) > 0:
            loader.setdefault("worker_init_fn", {"type": "shield_worker"})
        elif loader.get("persistent_workers"):
            # torch refuses persistent workers without workers; num_workers=0 is how one looks for a mistake.
            loader["persistent_workers"] = False
        if loader.get("pin_memory") and not torch.cuda.is_available():
            loader["pin_memory"] = False


def _drop_hooks(cfg: Config) -> None:
    """Leave out default hooks set to None, which MMEngine itself understands of its own ones alone."""
    hooks = cfg.get("default_hooks") or {}
    for name in [name for name, hook in hooks.items() if hook is None and name not in _HOOKS_OF_MMENGINE]:
        hooks.pop(name)


def _distribute_on_cpu(cfg: Config, launcher: str) -> None:
    """MMEngine assumes GPUs: on CPUs the process group has to exist before it looks, and DDP must not name a device."""
    if launcher != "pytorch" or "RANK" not in os.environ:
        raise UserError(
            f"The launcher {launcher} needs GPUs or torchrun; start several CPU processes with "
            "`torchrun --nproc_per_node=N tools/train.py CONFIG --launcher pytorch`."
        )
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    # Statistics over processes need GPUs; here each process keeps its own.
    cfg.sync_bn = None
    wrapper = {"type": "MMDistributedDataParallel", **(cfg.get("model_wrapper_cfg") or {})}
    if type_name(wrapper) == "MMDistributedDataParallel":
        wrapper["device_ids"] = None
    cfg.model_wrapper_cfg = wrapper


def use_amp(cfg: Config) -> None:
    """Switch a config to autocast, on whichever device it will run: in bfloat16, unless it asks for float16."""
    wrapper = cfg.optim_wrapper
    kind = type_name(wrapper) or "OptimWrapper"
    if kind not in ("OptimWrapper", "AmpOptimWrapper", "SafeOptimWrapper"):
        raise UserError(f"--amp cannot change the optimizer wrapper {kind}; set its precision in the config instead.")
    wrapper.type = "SafeOptimWrapper"
    if wrapper.get("dtype") != "float16":
        wrapper.pop("loss_scale", None)
        wrapper.dtype = "bfloat16"


def _resume(cfg: Config, resume: str) -> None:
    """resume: "auto", for the newest checkpoint in the work directory, or a path."""
    if resume == "auto":
        newest = find_newest_checkpoint(cfg.work_dir)
        if newest is None:
            # A job that restarts itself passes --resume from its first start on.
            print(f"No checkpoint in {cfg.work_dir}: training starts from the beginning.")
            return
        resume = str(newest)
    require_checkpoint(resume)
    cfg.load_from, cfg.resume = resume, True


def require_checkpoint(path: str) -> None:
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
    stop_signals: Sequence[str] = ("SIGTERM",),
) -> TrainResult:
    """Train what a config describes.

    resume: None, "auto" for the newest checkpoint in the work directory, or the path of one. amp: autocast in bfloat16,
    or in optim_wrapper.dtype=float16. validate: run the config's validation. options: entries of the config by dotted
    name. launcher: "none" or that of the processes. auto_scale_lr: scale the learning rate with the batch.
    stop_signals: at one of these the run is saved and the process ends with code 75. Raises UserError (a ValueError) or
    FileNotFoundError for what cannot be used, before training begins, and UserError when a checkpoint cannot be
    written.
    """
    cfg = prepare(config, work_dir, options, launcher)
    require_registered(cfg, "optim_wrapper.optimizer", OPTIMIZERS)
    if amp:
        use_amp(cfg)
    if auto_scale_lr:
        cfg.auto_scale_lr = {**(cfg.get("auto_scale_lr") or {}), "enable": True}
    if not validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if resume is not None:
        _resume(cfg, resume)
    elif cfg.get("load_from"):
        require_checkpoint(cfg.load_from)
    start, stop = StartHook(), StopHook(stop_signals)
    match = CheckpointMatchHook(exact=True) if cfg.get("resume") else StartWeightsHook()
    with config_errors(start, cfg), stop:
        runner = Runner.from_cfg(cfg)
        for hook in (start, match, StepSeedHook(), BatchPositionHook(), ClassCountHook(), ScheduleEndHook(), stop):
            runner.register_hook(hook)
        scale_learning_rate(runner)
        runner.train()
    # Another run may have left some in the folder.
    own = cfg.get("resume") or any(getattr(hook, "last_ckpt", None) for hook in runner.hooks)
    return TrainResult(
        metrics=_last_metrics(runner) if validate else {},
        images=len(runner.val_dataloader.dataset) if validate and runner.val_loop is not None else 0,
        checkpoint=find_newest_checkpoint(runner.work_dir) if own else None,
        work_dir=Path(runner.work_dir),
    )


def _last_metrics(runner: Runner) -> dict[str, float]:
    """Of the last validation, without what it measured of itself."""
    scalars = {
        name.removeprefix("val/"): float(history.current())
        for name, history in runner.message_hub.log_scalars.items()
        if name.startswith("val/")
    }
    return {name: value for name, value in scalars.items() if name not in ("time", "data_time")}
