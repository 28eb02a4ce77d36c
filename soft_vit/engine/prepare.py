"""What a run changes in its config before MMEngine reads it: the list REWRITES, in its order."""

import itertools
import os
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import FUNCTIONS

from soft_vit.engine.config import check_keys, load_config, require_registered
from soft_vit.engine.config_values import entries, type_name
from soft_vit.engine.resume.loops import ExactEpochLoop, ExactIterLoop

__all__ = ["LAUNCHERS", "REWRITES", "prepare"]

LAUNCHERS = ("none", "pytorch", "slurm", "mpi")
"""What can start the processes of a run, as MMEngine names it."""
_HOOKS_OF_MMENGINE = ("runtime_info", "timer", "sampler_seed", "logger", "param_scheduler", "checkpoint")
_SPLITS = ("train", "val", "test")
_runs_in_this_process = itertools.count()


def prepare(
    config: str | Path, work_dir: str | Path | None = None, options: dict | None = None, launcher: str = "none"
) -> Config:
    """Read a config and make it ready for a run.

    work_dir: by default work_dirs/<config name>. Raises ValueError or FileNotFoundError for what cannot
    be used.
    """
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher is {launcher!r}; choose one of {', '.join(LAUNCHERS)}.")
    cfg = load_config(config, options)
    check_keys(cfg)
    if work_dir is not None:
        cfg.work_dir = str(work_dir)
    elif cfg.get("work_dir") is None:
        cfg.work_dir = str(Path("work_dirs") / Path(config).stem)
    cfg.launcher = launcher
    for rewrite in REWRITES:
        rewrite(cfg)
    return cfg


def use_exact_loop(cfg: Config) -> None:
    """Train with a loop that resumes exactly, unless the config names another."""
    loop = cfg.get("train_cfg") or {}
    if "type" not in loop and "by_epoch" in loop:
        loop["type"] = (ExactEpochLoop if loop.pop("by_epoch") else ExactIterLoop).__name__


def check_loader_functions(cfg: Config) -> None:
    """Refuse the name of a function for batches or workers that is not registered, which MMEngine would ignore."""
    for split in _SPLITS:
        for function in ("collate_fn", "worker_init_fn"):
            require_registered(cfg, f"{split}_dataloader.{function}", FUNCTIONS)


def check_channel_order(cfg: Config) -> None:
    """Refuse BGR images for a preprocessor whose means are RGB."""
    preprocessors = (cfg.get("data_preprocessor"), (cfg.get("model") or {}).get("data_preprocessor"))
    if all(type_name(entry or {}) != "RecipeDataPreprocessor" for entry in preprocessors):
        return
    for split in _SPLITS:
        for place, entry in entries(cfg.get(f"{split}_dataloader") or {}, f"{split}_dataloader"):
            if type_name(entry) == "LoadImageFromFile":
                raise ValueError(
                    f"{place} loads BGR images, and RecipeDataPreprocessor takes RGB; use the data set ImageTree, or "
                    "data_preprocessor=dict(type='ClsDataPreprocessor', to_rgb=True, ...)."
                )


def shield_workers(cfg: Config) -> None:
    """Let workers that load data finish their batch when a cluster sends SIGTERM to every process."""
    for split in _SPLITS:
        loader = cfg.get(f"{split}_dataloader") or {}
        if loader.get("num_workers", 0) > 0:
            loader.setdefault("worker_init_fn", {"type": "shield_worker"})


def fit_loaders_to_machine(cfg: Config) -> None:
    """Switch off persistent workers without workers, and pinned memory without a GPU; torch refuses or warns."""
    for split in _SPLITS:
        loader = cfg.get(f"{split}_dataloader") or {}
        if loader.get("persistent_workers") and not loader.get("num_workers", 0):
            loader["persistent_workers"] = False
        if loader.get("pin_memory") and not torch.cuda.is_available():
            loader["pin_memory"] = False


def drop_hooks(cfg: Config) -> None:
    """Drop default hooks set to None; MMEngine does so for its own hooks only."""
    hooks = cfg.get("default_hooks") or {}
    for name in [name for name, hook in hooks.items() if hook is None and name not in _HOOKS_OF_MMENGINE]:
        hooks.pop(name)


def name_run(cfg: Config) -> None:
    """Name all runs of this process but the first: MMEngine would share logs between two that begin in one second."""
    run = next(_runs_in_this_process)
    if run and cfg.get("experiment_name") is None:
        cfg.experiment_name = f"{Path(cfg.filename).stem}_run{run}"


def distribute(cfg: Config) -> None:
    """Make a run of several processes work without GPUs; refuse more processes than GPUs.

    MMEngine assumes GPUs: on CPUs the process group has to exist before it looks, and DDP must not name a device.
    """
    if cfg.launcher == "none":
        return
    if torch.cuda.is_available():
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if cfg.launcher == "pytorch" and processes > torch.cuda.device_count():
            raise ValueError(
                f"This machine has {torch.cuda.device_count()} GPUs for {processes} processes; start at most one a GPU."
            )
        return
    if cfg.launcher != "pytorch" or "RANK" not in os.environ:
        raise ValueError(
            f"The launcher {cfg.launcher} needs GPUs or torchrun; start several CPU processes with "
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


REWRITES = (
    use_exact_loop,
    check_loader_functions,
    check_channel_order,
    shield_workers,
    fit_loaders_to_machine,
    drop_hooks,
    name_run,
    distribute,
)
"""What `prepare` does to a config, in this order."""
