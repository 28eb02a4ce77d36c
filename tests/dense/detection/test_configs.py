"""The configs for COCO follow the published recipe."""

from pathlib import Path

import pytest

from soft_vit.engine.config import resolve

PUBLISHED = sorted((Path(__file__).parents[3] / "configs" / "detection").glob("*1x_coco*.py"))


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
