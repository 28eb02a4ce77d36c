"""Progress line, JSON lines, and histories of bounded length."""

import json

import numpy as np
import torch

from soft_vit.engine import JsonLinesBackend


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def test_lines(tmp_path):
    backend = JsonLinesBackend(str(tmp_path))
    backend.add_scalars({"loss": torch.tensor(2.5), "grad_norm": float("nan"), "iter": 3}, step=3, file_path="run.json")
    backend.add_scalars({"accuracy/top1": np.float32(75.0), "cross_entropy": float("inf")}, step=1)
    # A later process appends.
    backend = JsonLinesBackend(str(tmp_path))
    backend.add_scalar("extra", torch.tensor(float("-inf")), step=4)
    backend.add_scalar("several", np.array([1.5, np.nan]), step=5)
    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "scalars.json").read_text().splitlines()]
    assert lines == [
        {"mode": "train", "loss": 2.5, "grad_norm": None, "iter": 3, "step": 3},
        {"mode": "val", "accuracy/top1": 75.0, "cross_entropy": None, "step": 1},
        {"extra": None, "step": 4},
        {"several": [1.5, None], "step": 5},
    ]
    assert json.loads((tmp_path / "run.json").read_text()) == lines[0]
