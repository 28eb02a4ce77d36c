"""Weights of a classifier of drawn shapes."""

from pathlib import Path

import pytest
import timm
import torch

from soft_vit.data import CLASSES


@pytest.fixture(scope="session")
def ten_classes(tmp_path_factory) -> Path:
    """A checkpoint of the demo, as a run writes it, with averaged weights of another scale."""
    torch.manual_seed(0)
    weights = timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()
    plain = {f"module.{name}": value * 2 for name, value in weights.items()}
    meta = {"dataset_meta": {"classes": CLASSES}}
    path = tmp_path_factory.mktemp("weights") / "demo.pth"
    torch.save({"state_dict": weights, "ema_state_dict": plain, "meta": meta}, path)
    return path
