"""Short runs of the demo, and what tests read of their folders."""

import functools
import json
from pathlib import Path

import torch
from stored import leaves

from soft_vit.engine.config import resolve
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import TrainResult, train

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "demo" / "soft_pico_shapes.py"

# One block a stage. Their checkpoints have a tenth of the bytes.
NARROW = {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32], "num_heads": [1, 2, 3, 4]}
NARROW_MODEL = {f"model.{name}": value for name, value in NARROW.items()}
# Where no test reads the stages. Half of the time of a short run goes by the number of parameters.
TWO_STAGES = {"depths": [1, 1], "embed_dims": [8, 16], "num_heads": [1, 2], "sr_ratios": [8, 4]}

# Configs that are only looked at.
resolved = functools.cache(resolve)


def tiny(images: int, batch: int, epochs: int, validation: int = 4, size: int = 32, stages: dict = TWO_STAGES) -> dict:
    """Options of a run of the demo with few blocks, which keeps every checkpoint and draws no pictures."""
    return {
        **{f"model.{name}": value for name, value in stages.items()},
        "image_size": size,
        "train_dataloader.dataset.length": images,
        "train_dataloader.batch_size": batch,
        "val_dataloader.dataset.length": validation,
        "train_cfg.max_epochs": epochs,
        "default_hooks.logger.interval": 1,
        "default_hooks.checkpoint.max_keep_ckpts": -1,
        "default_hooks.watch": None,
    }


def on_images(root: Path, batch: int, size: int, epochs: int = 1) -> dict:
    """Options of a run on the images of a tree of class folders, with soft_pico instead of the config's model."""
    return {
        "data_root": str(root),
        "image_size": size,
        "model.model_name": "soft_pico",
        **{f"{split}_dataloader.num_workers": 0 for split in ("train", "val", "test")},
        "train_dataloader.batch_size": batch,
        "train_cfg.max_epochs": epochs,
        "default_hooks.logger.interval": 1,
    }


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint_file(path)["state_dict"]


def differences(one: object, other: object) -> list[str]:
    """Paths of tensors whose bits differ, of other values that differ, and of values that one of two lacks."""
    first, second = leaves(one), leaves(other)

    def same(a: object, b: object) -> bool:
        return a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    both = first.keys() & second.keys()
    return sorted((first.keys() ^ second.keys()) | {name for name in both if not same(first[name], second[name])})


def assert_same(one: object, other: object) -> None:
    assert differences(one, other) == []


def assert_same_state(one: Path, other: Path, *parts: str) -> None:
    """Compare parts of two checkpoints; the weights, if none is named."""
    first, second = load_checkpoint_file(one), load_checkpoint_file(other)
    for part in parts or ("state_dict",):
        assert_same(first[part], second[part])


def assert_resumes(config: Path, folder: Path, options: dict, stop: str, *parts: str, **how: object) -> TrainResult:
    """Train in folder/whole, and again from its checkpoint `stop`: the last checkpoints are the same in these parts."""
    whole = train(config, work_dir=folder / "whole", options=options, **how)
    rest = train(config, work_dir=folder / "rest", options=options, resume=str(folder / "whole" / stop), **how)
    assert_same_state(whole.checkpoint, rest.checkpoint, *parts)
    return whole


def scalars(work_dir: Path) -> list[dict]:
    """Lines that the runs in a folder logged."""
    lines = [file.read_text().splitlines() for file in sorted(work_dir.glob("*/vis_data/scalars.json"))]
    return [json.loads(line) for part in lines for line in part]
