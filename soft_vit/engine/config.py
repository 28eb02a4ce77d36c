"""Resolve a config in three steps: merge its file and options, ask weights and data, and fit the machine.

MMEngine saves the result, which is exactly what runs, in the work directory.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS

from soft_vit.engine.ask import ask, check_task
from soft_vit.engine.entries import class_of
from soft_vit.engine.machine import fit
from soft_vit.engine.merge import merge
from soft_vit.weights.spec import ModelSpec


def resolve(
    config: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    work_dir: str | Path | None = None,
    tested: ModelSpec | None = None,
    resume: str | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    validate: bool = True,
    launcher: str = "none",
    notify: Callable[[str], None] = print,
) -> Config:
    """Return the config that runs, from a file, options, shared values, flags, weights, data and this machine.

    config: see `find_config`; MMEngine's pure Python style is supported. options: values by dotted name, as in
    `--cfg-options`. tested: record of a checkpoint that is tested; `load_from` is ignored then. notify: receives a
    sentence about each value that neither the file nor an option has set. Flags are those of
    `soft_vit.engine.run.train`. Values that entries share: see `soft_vit.engine.shared`.

    Raises FileNotFoundError for a missing file, and ValueError for an option that does not fit or is not read, and
    for values that contradict each other.
    """
    cfg, earlier = merge(config, dict(options or {}), amp=amp, validate=validate)
    cfg.work_dir = str(work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    cfg.launcher = launcher
    ask(cfg, earlier, resume=resume, tested=tested, notify=notify)
    check_task(cfg)
    fit(cfg, auto_scale_lr, notify)
    return cfg


def timm_model_of(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the timm name and the arguments of the model that a config trains.

    Raises what `resolve` raises, and ValueError for a config of another model.
    """
    arguments = dict(resolve(path, tested=ModelSpec()).get("model") or {})
    if "model_name" not in arguments:
        raise ValueError(f"The config {path} must have a model with a model_name.")
    bases = inspect.getmro(class_of(arguments, MODELS))
    of_classifier = {key for base in bases for key in inspect.signature(base.__init__).parameters}
    left_out = {*of_classifier, "model_name", "pretrained", "type"}
    return arguments["model_name"], {key: value for key, value in arguments.items() if key not in left_out}
