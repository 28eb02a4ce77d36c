"""A checkpoint in MMEngine's layout, with contents that must not be published."""

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from publications import NOTES, SECRET, run
from torch import nn

from soft_vit.data import CLASSES
from soft_vit.weights.spec import NOTES_KEY


def state_dict(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return timm.create_model("soft_pico", num_classes=10, img_size=64).state_dict()


@pytest.fixture(scope="session")
def averaged() -> dict[str, torch.Tensor]:
    return state_dict(1)


@pytest.fixture(scope="session")
def plain() -> dict[str, torch.Tensor]:
    return state_dict(2)


@pytest.fixture(scope="session")
def checkpoint(averaged, plain, tmp_path_factory) -> Path:
    content = {
        "meta": {
            "cfg": f"work_dir = '/home/{SECRET}'",
            NOTES_KEY: NOTES.to_dict(),
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
    path = tmp_path_factory.mktemp("run") / SECRET / "epoch_5.pth"
    path.parent.mkdir()
    torch.save(content, path)
    return path


@pytest.fixture
def assert_published(averaged) -> Callable[[nn.Module], None]:
    """Return a function that compares a model with that of the checkpoint."""
    expected = timm.create_model("soft_pico", num_classes=10, img_size=64, newton_iters=12).eval()
    expected.load_state_dict(averaged)

    def compare(model: nn.Module) -> None:
        images = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            assert torch.equal(model.eval()(images), expected(images))

    return compare


@pytest.fixture(scope="session")
def published(checkpoint, tmp_path_factory) -> Path:
    """The folder of a publication, with a repository of the hub in hub/; tests must not change it."""
    out = tmp_path_factory.mktemp("out") / "published"
    run(checkpoint, out, hf_dir=out / "hub")
    return out
