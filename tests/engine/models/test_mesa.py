"""MESA against its formula, and a run that begins it, stops and resumes."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from mmpretrain.structures import DataSample
from torch import nn

from soft_vit.engine import MesaClassifier, UserError, train
from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file

DEMO = Path(__file__).parents[3] / "configs" / "demo" / "soft_pico_shapes.py"
SMALL = dict(depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), img_size=32)


def test_loss_is_the_formula():
    model = MesaClassifier(model_name="mlla_tiny", num_classes=10, mesa_ratio=1.5, **SMALL).eval()
    x, labels = torch.randn(3, 3, 32, 32), torch.tensor([1, 9, 4])
    samples = [DataSample().set_gt_label(label) for label in labels]
    plain = model.parse_losses(model.loss(x, samples))[0]
    other = copy.deepcopy(model.model)
    nn.init.normal_(other.head.weight, std=0.5)
    model.average.append(other)
    total, logged = model.parse_losses(model.loss(x, samples))
    term = -(other(x).softmax(1) * model(x).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(total, plain + 1.5 * term)
    total.backward()
    assert all(parameter.grad is None for parameter in other.parameters())
    assert {"loss", "loss_labels", "loss_mesa", "train_acc"} <= logged.keys()
    assert not any("average" in name for name in model.state_dict())
    with pytest.raises(UserError, match="mesa_ratio is -1"):
        MesaClassifier(model_name="mlla_tiny", mesa_ratio=-1, **SMALL)


OPTIONS = {
    "model": {"type": "MesaClassifier", "model_name": "mlla_tiny", "drop_path_rate": 0.2, **SMALL},
    "image_size": 32,
    "custom_hooks": [dict(type="EMAEvalHook", momentum=0.1), dict(type="MesaHook", begin=0.5)],
    "train_cfg.max_epochs": 4,
    "train_dataloader.dataset": dict(length=8, size=32),
    "train_dataloader.batch_size": 4,
    "val_dataloader.dataset": dict(length=4, size=32),
    "default_hooks.logger.interval": 1,
    "default_hooks.checkpoint.max_keep_ckpts": 4,
}


def test_a_run_begins_it_in_time_and_resumes_exactly(tmp_path):
    whole = train(DEMO, work_dir=tmp_path / "whole", options=OPTIONS)
    log = next((tmp_path / "whole").glob("*/vis_data/scalars.json"))
    steps = [entry for entry in map(json.loads, log.read_text().splitlines()) if "loss" in entry]
    assert ["loss_mesa" in entry for entry in steps] == [False] * 4 + [True] * 4
    (tmp_path / "parts").mkdir()
    shutil.copy(tmp_path / "whole" / "epoch_3.pth", tmp_path / "parts")
    (tmp_path / "parts" / "last_checkpoint").write_text(str(tmp_path / "parts" / "epoch_3.pth"))
    resumed = train(DEMO, work_dir=tmp_path / "parts", options=OPTIONS, resume="auto")
    expected, found = (load_checkpoint_file(result.checkpoint) for result in (whole, resumed))
    for key in ("state_dict", "ema_state_dict"):
        assert expected[key].keys() == found[key].keys()
        for name, value in expected[key].items():
            assert torch.equal(found[key][name], value), name


def test_without_an_average_it_says_so(tmp_path):
    with pytest.raises(UserError, match="EMAEvalHook"):
        train(DEMO, work_dir=tmp_path, options={**OPTIONS, "custom_hooks": [dict(type="MesaHook")]})
