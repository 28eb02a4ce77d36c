"""Fit a config to this machine: data loaders, processes, and the learning rate for their batch."""

import os
from collections.abc import Callable
from inspect import signature

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, init_dist, is_distributed
from mmengine.utils.dl_utils import set_multi_processing
from timm.scheduler import create_scheduler_v2
from torch import distributed

from soft_vit.engine.entries import as_list

LAUNCHERS = ("none", "pytorch", "slurm", "mpi")
"""Launchers of the processes of a run, by MMEngine's names."""


# Arguments of schedules that are learning rates; their other arguments are factors.
_RATES = {"eta_min", "eta_max", "min_value", "min_lr", "warmup_lr"}


def fit(cfg: Config, auto_scale_lr: bool, notify: Callable[[str], None]) -> None:
    """Fit a config to this machine, in place. auto_scale_lr: as if the config enabled it, see `scale_learning_rate`."""
    if cfg.launcher != "none" and not torch.cuda.is_available():
        _fit_cpu_processes(cfg)
    for split in ("train", "val", "test"):
        loader = cfg.get(f"{split}_dataloader") or {}
        if loader.get("num_workers", 0):
            # Workers finish their batch when a cluster sends SIGTERM to every process.
            loader.setdefault("worker_init_fn", {"type": "shield_worker"})
        elif loader.get("persistent_workers"):
            loader["persistent_workers"] = False
        if loader.get("pin_memory") and not torch.cuda.is_available():
            loader["pin_memory"] = False
    if auto_scale_lr or (cfg.get("auto_scale_lr") or {}).get("enable"):
        scale_learning_rate(cfg, notify)


def _fit_cpu_processes(cfg: Config) -> None:
    """Fit processes without GPUs; MMEngine assumes a GPU for each."""
    # SyncBatchNorm needs GPUs; on CPUs each process keeps its own statistics.
    cfg.sync_bn = None
    wrapper = {"type": "MMDistributedDataParallel", **(cfg.get("model_wrapper_cfg") or {})}
    if wrapper["type"].endswith("MMDistributedDataParallel"):
        # MMEngine's defaults, which it does not give to a wrapper that is set.
        unused = cfg.get("find_unused_parameters", False)
        wrapper = {"broadcast_buffers": False, "find_unused_parameters": unused, **wrapper, "device_ids": None}
    cfg.model_wrapper_cfg = wrapper


def start_processes(cfg: Config) -> None:
    """Start the process group of a config with a launcher, as MMEngine's Runner would, unless it is started."""
    if cfg.get("launcher", "none") == "none" or is_distributed():
        return
    meeting = {}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # After a restart the launcher's store still holds the addresses of the processes before.
        store, rank, count = next(distributed.rendezvous("env://"))
        store = distributed.PrefixStore(f"attempt_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        meeting = {"store": store, "rank": rank, "world_size": count}
    if not torch.cuda.is_available():
        # MMEngine would choose NCCL.
        distributed.init_process_group("gloo", **meeting)
        return
    env = cfg.get("env_cfg") or {}
    set_multi_processing(**env.get("mp_cfg", {}), distributed=True)
    init_dist(cfg.launcher, **env.get("dist_cfg", {}), **meeting)


def scale_learning_rate(cfg: Config, notify: Callable[[str], None] = print) -> None:
    """Scale the learning rate with the batch (arXiv 1706.02677), and the bounds of its schedules.

    The factor is the number of images in an optimizer step, over all processes and accumulated batches, divided by
    `auto_scale_lr.base_batch_size`. Warm-up factors are relative already.
    """
    base, optimizer = (cfg.get("auto_scale_lr") or {}).get("base_batch_size"), cfg.optim_wrapper.optimizer
    if not base or "lr" not in optimizer:
        what = f"auto_scale_lr.base_batch_size and optimizer.lr must be a batch and its rate, got {base}"
        raise ValueError(f"{what} and {optimizer.get('lr')}.")
    loader = cfg.train_dataloader
    batch = (loader.get("batch_sampler") or {}).get("batch_size", loader.get("batch_size"))
    start_processes(cfg)
    images = get_world_size() * batch * cfg.optim_wrapper.get("accumulative_counts", 1)
    # MMEngine's own rule would scale again, and ignores accumulated batches and the bounds. The saved config holds the
    # rate of this batch.
    cfg.auto_scale_lr.update(enable=False, base_batch_size=images)
    before, optimizer.lr = optimizer.lr, optimizer.lr * images / base
    for scheduler in as_list(cfg.get("param_scheduler")):
        is_rate = scheduler["type"].endswith("LR") or scheduler.get("param_name") == "lr"
        if scheduler["type"].endswith("TimmLR"):
            scheduler.setdefault("warmup_lr", signature(create_scheduler_v2).parameters["warmup_lr"].default)
        for bound in _RATES & scheduler.keys() if is_rate else ():
            scheduler[bound] *= images / base
    notify(f"The learning rate is {optimizer.lr:g} for steps of {images} images, scaled from {before:g} for {base}.")
