"""MESA against its formula; a run with it is in tests/engine/test_zoo_recipes.py."""

import copy

import pytest
import torch
from engine.runs import DEMO, tiny
from mmpretrain.structures import DataSample
from torch import nn

from soft_vit.engine import MesaClassifier, train

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


def test_average_is_required(tmp_path):
    with pytest.raises(ValueError, match="EMAEvalHook"):
        train(DEMO, work_dir=tmp_path, options=tiny(4, 4, 1) | {"custom_hooks": [dict(type="MesaHook")]})
