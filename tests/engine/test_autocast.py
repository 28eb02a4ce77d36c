"""Mixed precision without a GPU."""

import pytest
import torch
from mmengine.registry import OPTIM_WRAPPERS, DefaultScope
from torch import nn

from soft_vit.engine import AutocastOptimWrapper


def wrapper(model, **kwargs):
    return AutocastOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **kwargs)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_forward_runs_in(dtype, expected):
    model = nn.Linear(4, 4)
    optim = wrapper(model, dtype=dtype, clip_grad={"max_norm": 1.0})
    with optim.optim_context(model):
        output = model(torch.ones(2, 4))
    assert output.dtype == expected
    before = model.weight.detach().clone()
    optim.update_params(output.float().sum())
    assert model.weight.dtype == torch.float32
    assert not torch.equal(before, model.weight)
    assert model(torch.ones(2, 4)).dtype == torch.float32


def test_float16_needs_a_loss_scale():
    with pytest.raises(ValueError, match="dtype is 'float16'"):
        wrapper(nn.Linear(1, 1), dtype="float16")


@pytest.mark.parametrize("name", ["AutocastOptimWrapper", "soft_vit.AutocastOptimWrapper"])
def test_found_by_name(name):
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        assert OPTIM_WRAPPERS.get(name) is AutocastOptimWrapper
