"""Testing a checkpoint from a config: what the command line calls."""

import json
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.runner import Runner

from soft_vit.engine.atomic_storage import write_atomically
from soft_vit.engine.checkpoint_match import CheckpointMatchHook
from soft_vit.engine.run import StartHook, config_errors, prepare, require_checkpoint

__all__ = ["evaluate"]


def evaluate(
    config: str | Path,
    checkpoint: str,
    *,
    work_dir: str | Path | None = None,
    out: str | Path | None = None,
    options: dict | None = None,
    launcher: str = "none",
) -> dict[str, float]:
    """Metrics of a checkpoint on the test split of a config, such as {"accuracy/top1": 97.5}, in percent.

    out: a JSON file to write them to. Raises UserError (a ValueError) or FileNotFoundError for what cannot be used.
    """
    cfg = prepare(config, work_dir, options, launcher)
    require_checkpoint(checkpoint)
    cfg.load_from, cfg.resume = checkpoint, False
    start = StartHook()
    with config_errors(start, cfg):
        runner = Runner.from_cfg(cfg)
        runner.register_hook(start)
        runner.register_hook(CheckpointMatchHook(exact=True))
        metrics = {name: float(value) for name, value in runner.test().items()}
    if out is not None and is_main_process():
        write_atomically(out, (json.dumps(metrics, indent=2) + "\n").encode())
    return metrics
