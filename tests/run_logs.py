"""Logs of runs, as MMEngine writes them."""

import json
from pathlib import Path


def train_line(step: int, loss: float, per_epoch: int = 10, **more) -> dict:
    return {
        "loss": loss,
        "lr": 1e-3,
        "time": 0.5,
        "epoch": (step - 1) // per_epoch + 1,
        "iter": step,
        "step": step,
        **more,
    }


def val_line(epoch: int, top1: float) -> dict:
    return {"accuracy/top1": top1, "time": 0.1, "step": epoch}


def write_log(folder: Path, start: str, lines: list[dict], ending: str = "") -> None:
    target = folder / start / "vis_data"
    target.mkdir(parents=True)
    (target / "scalars.json").write_text("".join(json.dumps(line) + "\n" for line in lines) + ending)
