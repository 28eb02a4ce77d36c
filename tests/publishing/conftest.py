"""A checkpoint as MMEngine writes one, with everything that must not leave the house."""

from pathlib import Path

import pytest
import timm
import torch
from publications import run

from soft_vit.data import CLASSES

SECRET = "secret_place"

CFG = f"""
model = dict(img_size=64, model_name='soft_pico', num_classes=10, newton_iters=12, type='TimmProgressClassifier')
data_preprocessor = dict(mean=[127.5, 127.5, 127.5], std=[64.0, 64.0, 64.0], to_rgb=False)
optim_wrapper = dict(optimizer=dict(lr=0.001, type='AdamW', weight_decay=0.02), type='SafeOptimWrapper')
train_cfg = dict(max_epochs=5, type='/home/{SECRET}/loop')
train_dataloader = dict(batch_size=32, dataset=dict(data_root='/home/{SECRET}', type='ImageTree'))
test_dataloader = dict(dataset=dict(size=64, type='ShapesDataset', data_root='/home/{SECRET}'))
work_dir = '/home/{SECRET}'
executed = open('/tmp/{SECRET}')
"""


def state_dict(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()


@pytest.fixture(scope="session")
def averaged() -> dict[str, torch.Tensor]:
    return state_dict(1)


@pytest.fixture(scope="session")
def plain() -> dict[str, torch.Tensor]:
    return state_dict(2)


@pytest.fixture
def checkpoint(averaged, plain, tmp_path) -> Path:
    content = {
        "meta": {
            "cfg": CFG,
            "experiment_name": SECRET,
            "config": f"/home/{SECRET}/config.py",
            "dataset_meta": {"classes": CLASSES},
            "hostname": SECRET,
        },
        "state_dict": averaged,
        "ema_state_dict": {"steps": torch.tensor(3), **{f"module.{name}": value for name, value in plain.items()}},
        "message_hub": {"runtime_info": {"log_dir": f"/home/{SECRET}"}},
        "optimizer": {"param_groups": [{"lr": 0.1}]},
        "param_schedulers": [],
    }
    path = tmp_path / SECRET / "epoch_5.pth"
    path.parent.mkdir()
    torch.save(content, path)
    return path


@pytest.fixture
def published(checkpoint, tmp_path) -> Path:
    """The folder of what was published, with a repository of the hub in hub/."""
    out = tmp_path / "published"
    run(checkpoint, out, hf_dir=tmp_path / "published" / "hub")
    return out
