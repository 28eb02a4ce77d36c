"""The configs of configs/detection: what they build, and that they are the published recipe."""

from pathlib import Path

import pytest

from soft_vit.engine.config import resolve

FOLDER = Path(__file__).parents[3] / "configs" / "detection"
CONFIGS = sorted(FOLDER.glob("*.py"))
PUBLISHED = [path for path in CONFIGS if "1x_coco" in path.name]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_fits_together(path):
    config = resolve(path)
    header = path.read_text().splitlines()
    assert f"configs/detection/{path.name}" in header[0]
    masks = config.model.type == "TorchvisionMaskRCNN"
    for split in ("train", "val", "test"):
        data = config[f"{split}_dataloader"].dataset
        assert data.get("masks", False) == masks
        assert data.get("test_mode", False) == (split != "train")
    assert config.val_evaluator == config.test_evaluator
    assert ("segm" in config.val_evaluator.kinds) == masks


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_schedule_is_the_published_one(path):
    config = resolve(path)
    assert config.train_cfg.max_epochs == 12
    warmup, steps = config.param_scheduler
    assert (warmup.end, steps.milestones) == (500, [8, 11])
    assert config.optim_wrapper.optimizer == {"type": "AdamW", "lr": 1e-4, "weight_decay": 1e-4}
    # On eight processes.
    assert config.train_dataloader.batch_size * 8 == config.auto_scale_lr.base_batch_size == 16
    assert config.model.backbone.max_bottleneck == (7, 7)
    assert config.model.backbone.model_name in path.stem
