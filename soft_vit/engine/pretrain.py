"""Pre-train a model on a folder of images without labels, by one call."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soft_vit.engine.resume.read import find_newest_checkpoint
from soft_vit.engine.run import TrainResult, train
from soft_vit.linearise.images import UnlabelledImages
from soft_vit.resume.lock import only_run_in
from soft_vit.weights.files import ensure_writable, write_atomically

CONFIG = "configs/pretrain/simmim.py"
"""The config of a run, in which a call sets model, data and schedule."""


def pretrain(
    model: str,
    images: str | Path,
    out: str | Path,
    *,
    epochs: int = 100,
    size: int = 192,
    batch_size: int = 64,
    lr: float = 1e-3,
    mask_ratio: float = 0.6,
    mask_patch: int = 32,
    teacher: str | None = None,
    momentum: float | None = None,
    seed: int = 0,
    workers: int = 2,
    bf16: bool = False,
    command: str = "",
    options: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Pre-train a timm model on masked images, and write its weights and a report to `out`.

    images: a folder, a TAR or a ZIP; labels are not read. size: side of the crops in pixels. batch_size: of each
    process. mask_ratio, mask_patch, momentum: see `MaskedImageModel`. teacher: name of a timm model with weights, whose
    features are predicted instead of pixels. workers: processes that read images. command: shown in the report.
    options: values of the config by dotted name. The same call continues a run that was stopped; under torchrun,
    processes share each step. The weights are `model.safetensors`, see `PretrainingReportHook`.

    Raises ValueError and FileNotFoundError for mistakes, also for an `out` of another run or that another process
    writes to.
    """
    out = Path(out)
    settings: dict[str, Any] = {
        "model.model_name": model,
        "image_size": size,
        "train_cfg.max_epochs": epochs,
        "train_dataloader.batch_size": batch_size,
        "optim_wrapper.optimizer.lr": lr,
        "model.mask_ratio": mask_ratio,
        "model.mask_patch": mask_patch,
        "randomness.seed": seed,
        **({} if momentum is None else {"model.momentum": momentum}),
        **({"model.teacher": {"model_name": teacher, "pretrained": True}} if teacher else {}),
        **(options or {}),
    }
    noted = {**settings, "images": UnlabelledImages(images, (0.0,) * 3, (1.0,) * 3).fingerprint(), "bf16": bf16}
    resume = "auto" if find_newest_checkpoint(out) else None
    _note(out / "pretrain.json", json.loads(json.dumps(noted, default=str)), resume is not None)
    warm_up = max(1, settings["train_cfg.max_epochs"] // 10)
    data = {"data_root": str(Path(images).expanduser()), "train_dataloader.num_workers": workers}
    schedule = {"param_scheduler.0.end": warm_up, "param_scheduler.1.begin": warm_up}
    report = {"custom_hooks": [{"type": "PretrainingReportHook", "command": command}, {"type": "ProgressBarHook"}]}
    how = dict(work_dir=out, resume=resume, amp=bf16, launcher="pytorch" if "RANK" in os.environ else "none")
    result = train(CONFIG, options={**data, **schedule, **report, **settings}, **how)
    if int(os.environ.get("RANK", 0)) == 0:
        print((out / "report.md").read_text())
    return result


def _note(path: Path, noted: dict[str, Any], resumed: bool) -> None:
    """Write what a run depends on; ValueError if it is resumed and depended on something else."""
    for name, value in (json.loads(path.read_text()) if resumed and path.is_file() else {}).items():
        if noted.get(name) != value:
            what = f"must be of a run with {name}={value}, got {noted.get(name)}"
            raise ValueError(f"{path.parent} {what}; give another --out.")
    if int(os.environ.get("RANK", 0)) == 0:
        ensure_writable(path)
        # What a run that goes on has noted there stays.
        with only_run_in(path.parent):
            write_atomically(path, json.dumps(noted, indent=1).encode())
